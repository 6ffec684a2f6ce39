"""Subclasses of upstream classes, composed from all features that want one.

Composition order, from the outside in: the order of the features in `integrations/features.py`, then upstream's class.
Every method but the innermost of its name has to call `super()`; one that does not would silently take the method from
the features behind it, so that is refused with both names.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

from verl_ext.compat.touch import APPLIED, ARMED, Door, Touch, rebind
from verl_ext.errors import NereusError
from verl_ext.feature import load

_MARK = "__nereus_extensions__"
# What every class body defines.
_ANYWAY = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__slots__"}
_ANYWAY |= {"__static_attributes__", "__firstlineno__", "__annotate__", "__annotations_cache__"}


class Slot(Door):
    """An upstream class that features may extend: puts the composed subclass in its place. Made when there is one.

    Attributes:
        target: `module:Class`.
        also: other modules that hold the class under its name.
    """

    also: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.extensions: list[Extension] = []

    def apply(self, module: ModuleType) -> None:
        name = self.target.split(":")[1]
        base = getattr(module, name)
        composed = self.compose(base)
        setattr(module, name, composed)
        rebind(name, base, composed, self.also)

    def compose(self, base: type) -> type:
        """`base` with the methods of all extensions before its own; `base` itself when it has them already.

        The name and module stay, so that the class is pickled by name and upstream's checks by name hold.
        """
        if any(_MARK in vars(parent) for parent in base.__mro__):
            return base
        for extension in self.extensions:
            extension.verify(importlib.import_module(extension.module))
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        names[_MARK] = ", ".join(extension.name for extension in self.extensions)
        mixins = [load(extension.mixin) for extension in self.extensions]
        composed = type(base.__name__, (*mixins, base), names)
        for extension in self.extensions:
            extension.state = APPLIED
        return composed


class Extension(Touch):
    """Methods for an upstream class.

    Attributes:
        slot: the class's slot.
        mixin: dotted name, `module:Class`, of a class without bases whose methods call `super()`. Its module is
            imported by the driver, so it imports neither an engine nor verl at its top.
    """

    kind = "extension"
    changes = ()  # its slot's
    slot: ClassVar[type[Slot]]
    mixin: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "slot" in vars(cls):
            cls.target = cls.slot.target

    def arm(self) -> None:
        """It is applied by its slot."""
        if self.state != APPLIED:
            self.state = ARMED

    def apply(self, module: ModuleType) -> None:
        raise AssertionError("an extension is applied by its slot")


def instances(classes: Iterable[type[Touch]]) -> list[Touch]:
    """One touch for each class, slots of their extensions included, extensions first."""
    touches: list[Touch] = []
    slots: dict[type[Slot], Slot] = {}
    for kind in dict.fromkeys(classes):
        touch = kind()
        touches.append(touch)
        if isinstance(touch, Extension):
            slots.setdefault(touch.slot, touch.slot()).extensions.append(touch)
    return [*touches, *slots.values()]


def clashes(classes: Sequence[type[Touch]]) -> Iterator[NereusError]:
    """The pairs of extensions that cannot be composed, of those that a run would have."""
    by_slot: dict[type[Slot], list[type[Extension]]] = {}
    for kind in dict.fromkeys(classes):
        if issubclass(kind, Extension):
            by_slot.setdefault(kind.slot, []).append(kind)
    for slot, extensions in by_slot.items():
        owners: dict[str, type[Extension]] = {}
        for extension in reversed(extensions):
            for name, value in _own(load(extension.mixin)).items():
                inner = owners.get(name)
                if inner is not None and not _passes_on(value):
                    yield NereusError(
                        f"{extension.name} and {inner.name} cannot both extend {slot.target}",
                        where=f"{extension.mixin}.{name}, {inner.mixin}.{name}",
                        expected="methods that call super(), so that one follows the other",
                        got=f"{extension.name} takes {name} for itself",
                        change="switch one of the two features off",
                    )
                owners[name] = extension


def _own(mixin: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for parent in reversed(mixin.__mro__[:-1]):
        found.update({name: value for name, value in vars(parent).items() if name not in _ANYWAY})
    return found


def _passes_on(value: Any) -> bool:
    """Whether a method calls `super()`; False for what is no method."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    function = getattr(function, "__wrapped__", function)
    return isinstance(function, types.FunctionType) and _names_super(function.__code__)


def _names_super(code: types.CodeType) -> bool:
    inner = (item for item in code.co_consts if isinstance(item, types.CodeType))
    return "super" in code.co_names or any(map(_names_super, inner))
