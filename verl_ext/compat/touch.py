"""Everything that reaches into upstream, one class a place, and the manifest of all of them.

A *touch* says what it is about, why, since which upstream report, for which versions and when it can go. It knows
digests of the upstream source that it relies on and compares them before it does anything. It is listed with its state
by `nereus doctor`, at the roll call and in the report. There are three kinds:

- `Door`: something upstream offers (a registry, a hook, a global) or that can be added without replacing anything.
- `Extension`: methods for a subclass of an upstream class. Those of all active features for one class are composed into
  one subclass by that class's `Slot`.
- `Patch`: a replacement, the last resort.

Touches are *armed* when a process becomes part of a run and *applied* when their module is imported (at once when it is
imported already). A process that never imports the module is never touched.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import ModuleType
from typing import Any, ClassVar

import wrapt

from verl_ext.compat.before_import import before_import
from verl_ext.errors import NereusError

logger = logging.getLogger(__name__)

OFF, ARMED, APPLIED = "off", "armed", "applied"


class Touch(ABC):
    """One place in upstream. Subclasses fill in the class attributes.

    Attributes:
        name: unique, kebab-case, beginning with the upstream project.
        target: `module:attribute.path` of what it is about.
        why, upstream, remove_when: one sentence each.
        versions: distribution -> specifier for which it was written. Named in messages; what decides in a process are
            the digests below.
        fingerprints: digests (`fingerprint()`) of the target's source that it is right for; () when it relies on no
            source of the target.
        relies_on: further sources, each `module:attribute.path` followed by its digests.
        changes: what is other than without it, as `module:attribute.path`; None for the target.
        roles: processes in which it must be applied before training starts, by the names that the roll call has for
            them (`actor`, `server`, `engine_core`, `engine_worker`, ...).
        trigger: module whose import applies it, where the target's own is imported by processes that do not need it.
        before: apply it to the trigger before that runs. The target is then a whole module, `module:*`.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    target: ClassVar[str]
    why: ClassVar[str]
    upstream: ClassVar[str]
    remove_when: ClassVar[str]
    versions: ClassVar[dict[str, str]]
    fingerprints: ClassVar[tuple[str, ...]] = ()
    relies_on: ClassVar[tuple[tuple[str, ...], ...]] = ()
    changes: ClassVar[tuple[str, ...] | None] = None
    roles: ClassVar[frozenset[str]] = frozenset()
    trigger: ClassVar[str] = ""
    before: ClassVar[bool] = False

    def __init__(self) -> None:
        self.state = OFF

    @classmethod
    def wanted(cls, run: Any) -> bool:
        """Whether a run in which its feature is on needs it, e.g. only with one of the rollout engines."""
        return True

    @classmethod
    def needed(cls, role: str, run: Any) -> bool:
        """Whether it must be applied in a process of this role by now."""
        return role in cls.roles

    @classmethod
    def applicable(cls) -> bool:
        """Whether what it is about is installed here, in whatever version."""
        return any(_version(name) is not None for name in cls.versions)

    @classmethod
    def changed(cls) -> tuple[str, ...]:
        return (cls.target,) if cls.changes is None else cls.changes

    @property
    def module(self) -> str:
        return self.target.split(":")[0]

    def arm(self) -> None:
        """Apply now if the module is imported, else as soon as it is. Arming twice does nothing."""
        if self.state != OFF:
            return
        self.state = ARMED
        if self.before:
            before_import(self.trigger or self.module, self._imported)
        else:
            wrapt.when_imported(self.trigger or self.module)(self._imported)

    def _imported(self, module: ModuleType) -> None:
        if self.state == APPLIED:
            return
        if self.trigger:
            module = importlib.import_module(self.module)
        self.verify(module)
        self.apply(module)
        self.state = APPLIED
        logger.debug("nereus %s %s applied to %s", self.kind, self.name, self.target)

    def verify(self, module: ModuleType) -> None:
        """Raise NereusError when something it relies on is not what it was written against."""
        if self.fingerprints:
            self._verify(module, self.target, self.fingerprints)
        for target, *known in self.relies_on:
            self._verify(importlib.import_module(target.split(":")[0]), target, tuple(known))

    def _verify(self, module: ModuleType, target: str, known: tuple[str, ...]) -> None:
        try:
            found = "digest " + fingerprint(resolve(module, target))
        except AttributeError:
            found = "nothing of that name"
        except (OSError, TypeError) as error:  # compiled, or made at run time
            found = f"an object without source ({error})"
        if found not in [f"digest {digest}" for digest in known]:
            versions = ", ".join(
                f"{name} {_version(name) or 'not installed'}, written for {specifier}"
                for name, specifier in self.versions.items()
            )
            raise NereusError(
                f"{self.kind} {self.name} does not know this version of {target}",
                where=f"{target} ({versions})",
                expected="source with digest " + " or ".join(known),
                got=found,
                change="install the versions in `nereus doctor`, or report the digest so that nereus can be updated",
            )

    @abstractmethod
    def apply(self, module: ModuleType) -> None:
        """Do it. Called once, with the imported target module."""


class Door(Touch):
    """Something that upstream offers, or that is added beside it; harmless in a process that never uses it."""

    kind = "door"


class Patch(Touch):
    """A replacement, where upstream has no registry, hook or config key."""

    kind = "patch"

    def apply(self, module: ModuleType) -> None:
        self.replace(module)

    @abstractmethod
    def replace(self, module: ModuleType) -> None:
        """Put the replacement in place. Called once, with the imported target module."""


def resolve(module: ModuleType, target: str) -> Any:
    """The object that `module:attribute.path` names, unwrapped from properties and class methods."""
    found: Any = module
    if target.endswith(":*"):
        return module
    for part in target.split(":")[1].split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        return found.fget
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    return found


def fingerprint(target: Any) -> str:
    """First 12 hex digits of the SHA-256 of the target's source text."""
    return hashlib.sha256(inspect.getsource(target).encode()).hexdigest()[:12]


def rebind(name: str, old: Any, new: Any, modules: Iterable[str]) -> None:
    """Replace `name` in modules that had imported `old` by name before."""
    for path in modules:
        module = sys.modules.get(path)
        if module is not None and getattr(module, name, None) is old:
            setattr(module, name, new)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


class Manifest:
    """The touches of this process, in the order in which they were armed."""

    def __init__(self) -> None:
        self._touches: dict[str, Touch] = {}

    def arm(self, touches: Iterable[Touch]) -> None:
        for touch in touches:
            if touch.name in self._touches:
                continue
            self._touches[touch.name] = touch
            touch.arm()

    def states(self) -> dict[str, str]:
        """Name -> armed or applied."""
        return {name: touch.state for name, touch in self._touches.items()}

    def needed(self, role: str, run: Any) -> list[str]:
        """Names of the touches that have to be applied in a process of this role."""
        return [name for name, touch in self._touches.items() if touch.needed(role, run)]

    def digest(self) -> str:
        """First 12 hex digits over the names of the armed touches; equal in every process of a run."""
        return hashlib.sha256("\n".join(sorted(self._touches)).encode()).hexdigest()[:12]


MANIFEST = Manifest()
