"""The class that `from_module` gives an object: a subclass of its own class and of ManagedModule.

It carries the name of the original, as torch.nn.utils.parametrize does it, is made once a class,
and never reaches a file: pickling goes through the original class and `_rebuild`.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from managed._backend import INERT
from managed._modules import placed

__all__: list[str] = []

_MOVES = ("cuda", "cpu", "to")

#: The classes of each original, by their bases.
_made: weakref.WeakKeyDictionary[type, dict[type, weakref.ref[type]]]
_made = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def base_of(own: type) -> Any:
    """ManagedModule, if `own` is a class of managed modules, or None."""
    return next((c for c in own.__mro__ if "_managed_arrival" in vars(c)), None)


def class_for(module: nn.Module, base: type[nn.Module]) -> type[nn.Module]:
    """The class that `module` gets when it becomes managed; `base` is ManagedModule.

    torch.nn.utils.parametrize gives each module a class of its own, right above the one that it
    goes back to when the parametrization is removed. That order is kept: the managed class takes
    the place of the one to go back to.
    """
    own = type(module)
    if not is_parametrized(module) or "__getstate__" not in vars(own) or len(own.__bases__) != 1:
        return managed_class(own, base)
    body = {k: v for k, v in vars(own).items() if k not in ("__dict__", "__weakref__")}
    return _new_class(own, (managed_class(own.__bases__[0], base),), body)


def managed_class(original: type[nn.Module], base: type[nn.Module]) -> type[nn.Module]:
    """The class that stands for `original`; `base` is ManagedModule or a class of it.

    `original` comes first, so its methods stay in force and their super() reaches `base`.
    """
    if issubclass(original, base):
        return original
    original = _original(original)
    with _lock:
        of_original = _made.setdefault(original, {})
        reference = of_original.get(base)
        found = reference() if reference else None
        if found is None:
            found = _make(original, base)
            of_original[base] = weakref.ref(found)
    return found


def _make(original: type[nn.Module], base: type[nn.Module]) -> type[nn.Module]:
    body: dict[str, Any] = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_managed_original": original,
    }
    if hasattr(original, "insert"):
        body["insert"] = _insert
    if issubclass(original, ParametrizationList):
        body["forward"] = placed.parametrized(original.forward)
    if "__new__" in vars(base):  # which returns an object that has been made long ago
        body["__init__"] = _init
    for name in () if INERT else _MOVES:
        if getattr(original, name) is not getattr(nn.Module, name):
            body[name] = getattr(base, name)  # theirs is told afterwards: class_overrides.py
    return _new_class(original, (base,) if original is nn.Module else (original, base), body)


class _Silent:
    """Stands before a class that wants to hear of its subclasses: ours is none that it means."""

    def __init_subclass__(cls, **kwargs: Any) -> None: ...


def _new_class(
    original: type[nn.Module], bases: tuple[type, ...], body: dict[str, Any]
) -> type[nn.Module]:
    """Makes a class without telling registries of models or the metaclass of it."""
    if any("__init_subclass__" in vars(c) for c in original.__mro__[:-1]):
        bases = (_Silent, *bases)
    meta = type(original)
    new: Any = ABCMeta.__new__ if issubclass(meta, ABCMeta) else type.__new__
    made: type[nn.Module] = new(meta, original.__name__, bases, body)
    return made


def _original(value: Any) -> Any:
    """The original class for one of ours, anything else as it is."""
    return vars(value).get("_managed_original", value) if isinstance(value, type) else value


def _reduce_ex(self: nn.Module, protocol: Any) -> Any:
    ours: Any = next(c for c in type(self).__mro__ if "_managed_original" in vars(c))
    reduced = super(ours, self).__reduce_ex__(protocol)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    return (_rebuild, (base_of(ours), _original(function), *map(_original, arguments)), *rest)


def _init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Leaves an object alone that `__new__` has not made: Python initializes what it returns."""
    if "_parameters" not in vars(self):
        ours: Any = next(c for c in type(self).__mro__ if vars(c).get("__init__") is _init)
        super(ours, self).__init__(*args, **kwargs)


def _insert(self: nn.Module, index: int, module: nn.Module) -> Any:
    """A method of Sequential and ModuleList, which write into `_modules` unseen."""
    ours: Any = next(c for c in type(self).__mro__ if vars(c).get("insert") is _insert)
    result = super(ours, self).insert(index, module)
    base_of(ours).from_module(self)
    return result


def _rebuild(base: Any, function: Callable[..., nn.Module], *arguments: Any) -> Any:
    """Makes the object that was pickled or copied and gives it its managed class again."""
    module = function(*arguments)
    if "_modules" in module.__dict__:  # complete: its own __reduce__ made it
        return base.from_module(module)
    module.__class__ = managed_class(type(module), base)
    return module
