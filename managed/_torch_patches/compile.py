"""What torch.compile's backends make of graphs with managed tensors.

A backend takes a graph whose operators each have one device. Where devices meet, and on simulated
devices, for which there is no code to generate, the graph runs operator by operator instead.
Inductor's kernels allocate their results below the dispatcher, so those are marked here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_leaves

from managed._backend import C
from managed._modules.walk import markable
from managed._torch_patches.fake import saw_managed
from managed._torch_patches.launch import wrap_inductor

__all__: list[str] = []


def install() -> None:
    """Wraps the two objects that torch.compile makes for a backend and Dynamo calls for a graph."""
    torch_module: Any = torch
    for wrapper in (torch_module._TorchCompileInductorWrapper, torch_module._TorchCompileWrapper):
        wrapper.__call__ = _with_managed(wrapper.__call__)


def _with_managed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        inductor = not hasattr(self, "compiler_fn")
        managed = saw_managed(detect_fake_mode(inputs))
        ours = inductor or self.compiler_fn.__module__.startswith("torch.")
        if ours and managed and any(map(_mixes_devices, _nodes(model))):
            return model.forward
        if inductor and any(map(_is_simulated, _nodes(model))):
            return model.forward
        if inductor and managed:
            wrap_inductor()
        compiled = original(self, model, inputs, **kwargs)
        return _marking(compiled) if managed else compiled

    return call


def _nodes(model: torch.nn.Module) -> Iterator[torch.fx.Node]:
    for part in model.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _tensors(*nodes: torch.fx.Node) -> list[torch.Tensor]:
    """What Dynamo computed for the nodes, as fake tensors."""
    leaves = tree_leaves([n.meta.get("example_value") for n in nodes])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_simulated(node: torch.fx.Node) -> bool:
    return any(t.device.type == "sim" for t in _tensors(node))


def _mixes_devices(node: torch.fx.Node) -> bool:
    """Whether operands may have to be brought together; a CPU number is at home everywhere."""
    operands = _tensors(*node.all_input_nodes)
    return len({t.device for t in operands if t.dim() > 0 or t.device.type != "cpu"}) > 1


def _marking(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph whose results are managed when one of its inputs is."""

    @functools.wraps(compiled)
    def run(*args: Any) -> Any:
        managed = any(map(C.is_managed, args))
        results = compiled(*args)
        if managed:
            for result in results:
                if isinstance(result, torch.Tensor) and markable(result):
                    C.mark(result)
        return results

    return run
