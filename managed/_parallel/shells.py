"""Shells: a tree of modules for each device, with local pieces in the places of the parameters.

The parts of a batch run in shells, which torch's own `_replicate_for_data_parallel()` makes. A
shell is a shallow copy: hooks, modes and all other attributes are those of its module, and are
renewed with each call. What the first part sets in its forward pass is on the module afterwards.
The first device's shells have the module's own buffers, the others have copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from managed._backend import C

__all__ = ["Shells"]


class Shells:
    """The trees, and the copies of parameters and buffers that they use."""

    def __init__(
        self, module: nn.Module, devices: list[torch.device], before: Shells | None = None
    ) -> None:
        """`before`: shells of the same tensors, whose copies and order are still good."""
        self.devices = devices
        self._root = weakref.ref(module)  # which has this object
        self._inner = list(module.modules())[1:]
        self._children = [list(m._modules.items()) for m in self._modules]
        self._found = _distinct(m._parameters for m in self._modules)
        #: The same in the order in which they cross.
        self._parameters: list[torch.Tensor] = before._parameters if before else self._found
        self._buffers = _distinct(m._buffers for m in self._modules)
        self._shared: object = before._shared if before else C.new_buckets(devices)
        self._kept: object = before._kept if before else C.new_buckets(devices)
        self._trees = [[_shell(m) for m in self._modules] for _ in devices]
        for tree in self._trees:
            shell_of = dict(zip(self._modules, tree, strict=True))
            for module, shell in zip(self._modules, tree, strict=True):
                for name, child in module._modules.items():
                    shell._modules[name] = None if child is None else shell_of[child]
                _run_uncompiled(shell)
        #: What a shell has for itself, beside its module's attributes.
        self._own = [
            {n for n, v in vars(s).items() if v is not vars(m).get(n, s)}
            for m, s in zip(self._modules, self._trees[0], strict=True)
        ]
        self._given: list[dict[str, Any]] = []  # the attributes of the first part's shells

    @property
    def _modules(self) -> list[nn.Module]:
        root = self._root()
        assert root is not None
        return [root, *self._inner]

    def fits(self) -> bool:
        """Whether the module still has the tensors and the children of which shells were made."""
        for module, children in zip(self._modules, self._children, strict=True):
            if list(module._modules.items()) != children:
                return False
        same = _same(self._found, _distinct(m._parameters for m in self._modules))
        return same and _same(self._buffers, _distinct(m._buffers for m in self._modules))

    def note_order(self) -> tuple[list[nn.Module], Callable[[], None]]:
        """A list of modules in the order in which the first part calls them, until `stop()`."""
        module_of = dict(zip(self._trees[0], self._modules, strict=True))
        used: list[nn.Module] = []

        def note(shell: nn.Module, _: Any) -> None:
            if shell in module_of:
                used.append(module_of[shell])

        handles = [m.register_forward_pre_hook(note) for m in self._modules if m._parameters]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return used, stop

    def order(self, used: Sequence[nn.Module]) -> None:
        """Lets parameters cross in the order in which their modules are used."""
        first = _distinct(m._parameters for m in used)
        known = {id(p) for p in first}
        ordered = first + [p for p in self._parameters if id(p) not in known]
        if len(ordered) == len(self._parameters):
            self._parameters = ordered

    def fill(self) -> list[nn.Module]:
        """Puts the pieces in their places, and returns the roots of the trees."""
        for tree in self._trees:  # what was sent before makes room
            for shell in tree:
                shell._parameters.clear()
                shell._buffers.clear()
        kept = C.spread(self._kept, self._buffers)
        shared = C.spread(self._shared, self._parameters)
        kept[0] = self._buffers
        for tree, parameters, buffers in zip(self._trees, shared, kept, strict=True):
            pieces = dict(zip(map(id, self._parameters), parameters, strict=True))
            copies = dict(zip(map(id, self._buffers), buffers, strict=True))
            for module, shell, own in zip(self._modules, tree, self._own, strict=True):
                _renew(module, shell, own)
                shell._parameters.update(_in_place(module._parameters, pieces))
                shell._buffers.update(_in_place(module._buffers, copies))
                _flatten(module, shell, pieces)
        return [tree[0] for tree in self._trees]

    def begin(self) -> None:
        """Remembers what the first part is given."""
        self._given = [dict(vars(shell)) for shell in self._trees[0]]

    def empty(self) -> None:
        """Gives the shells the parameters themselves.

        A piece would keep a graph, and so the parameters, where Python's collector cannot see them.
        """
        modules = self._modules
        for tree in self._trees:
            for module, shell in zip(modules, tree, strict=True):
                shell._parameters.update(module._parameters)
                _flatten(module, shell, {})

    def take_over(self) -> None:
        """Lets the modules have what the first part has set since `begin()`, or deleted.

        RuntimeError if it has registered parameters or modules: each part has its own of these.
        """
        both = [*zip(self._modules, self._trees[0], self._given, strict=True)]
        for module, shell, _ in both:
            for table in ("_parameters", "_modules"):
                made = vars(shell)[table].keys() - vars(module)[table].keys()
                if made:
                    raise RuntimeError(
                        f"managed: the forward pass of {type(module).__name__} has registered "
                        f"{sorted(made)}, and each part of the batch has made its own: call the "
                        "module once before it is given to managed.DataParallel"
                    )
        for module, shell, given in both:
            here, there = vars(module), vars(shell)
            for name in there.keys() | given.keys():
                if name not in there:
                    here.pop(name, None)
                elif there[name] is not given.get(name, shell):
                    here[name] = there[name]
            for name, value in shell._buffers.items():
                if name not in module._buffers:
                    lasts = name not in shell._non_persistent_buffers_set
                    module.register_buffer(name, value, lasts)
                elif value is not module._buffers[name]:
                    setattr(module, name, value)
        self._given = []

    def all(self) -> Iterator[tuple[int, nn.Module]]:
        """(the number of the part, shell) of all shells."""
        for number, tree in enumerate(self._trees):
            for shell in tree:
                yield number, shell


def _distinct(tables: Any) -> list[torch.Tensor]:
    """The tensors of tables, each once, in order."""
    return list({id(t): t for table in tables for t in table.values() if t is not None}.values())


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _shell(module: nn.Module) -> nn.Module:
    if "_orig_mod" in module._modules:  # torch.compile's, which sets attributes on what it wraps
        shell = object.__new__(type(module))
        apart = {name: dict(vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")}
        object.__setattr__(shell, "__dict__", vars(module) | apart)
    else:
        make: Any = module._replicate_for_data_parallel
        shell = make()
    if "_managed_parallel" in vars(shell):
        vars(shell)["_managed_parallel"] = None
    return shell


def _flatten(module: nn.Module, shell: nn.Module, pieces: dict[int, torch.Tensor]) -> None:
    """Recurrent modules keep a list of their parameters beside them."""
    if isinstance(module, nn.RNNBase):
        flat: Any = [pieces.get(id(p), p) for p in module._flat_weights]
        shell._flat_weights = flat


def _run_uncompiled(shell: nn.Module) -> None:
    """Gives a shell a forward pass of its own: a compiled one runs the module itself."""
    vars(shell)["_compiled_call_impl"] = None
    compiled = shell._modules.get("_orig_mod")
    if compiled is not None:
        vars(shell)["forward"] = compiled.__call__


def _renew(module: nn.Module, shell: nn.Module, own: set[str]) -> None:
    """Gives a shell the attributes that its module has now."""
    attributes = vars(shell)
    kept = {name: attributes[name] for name in own}
    attributes.update(vars(module))
    attributes.update(kept)
    if len(attributes) > len(vars(module)):
        for name in [n for n in attributes if n not in vars(module) and n not in own]:
            del attributes[name]


def _in_place(table: dict[str, Any], pieces: dict[int, torch.Tensor]) -> dict[str, Any]:
    return {name: t if t is None else pieces[id(t)] for name, t in table.items()}
