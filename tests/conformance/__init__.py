"""The same program twice: once plain on the CPU, once on devices, and every bit compared.

`torch`'s own databases of operators, list operators and modules supply the programs; a few
models supply training loops. A sweep never swallows anything: whatever does not end in
"equal" is listed with its operator, its sample and the reason.
"""
