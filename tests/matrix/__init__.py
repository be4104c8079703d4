"""The compatibility matrix: what people combine with a model, with managed tensors in it.

Each row is one or more tests that carry `@pytest.mark.row(feature, state, note)`; a file is a
section, titled by the first line of its docstring. `python tools/compatibility.py` writes
docs/compatibility.md from the marks. A row works, or refuses with an error that its test shows.
"""
