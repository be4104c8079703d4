"""What is changed in torch's Python: one module a part of torch, each with an install()."""
