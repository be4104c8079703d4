"""torch.compile, export and tracing

Compiled and traced programs take managed tensors and give what plain ones give.
"""

import pytest
import torch

from .common import Place, same


@pytest.mark.row("torch.compile, backend eager", note="One graph, no recompilation")
def test_compile_eager():
    place = Place("one")
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    body = torch.compile(lambda x, w: torch.tanh(x @ w) + 1, backend="eager", fullgraph=True)
    same(torch.tanh(x @ w) + 1, body(*place(x, w)))
