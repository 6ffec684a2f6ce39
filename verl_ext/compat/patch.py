"""The base class of a runtime patch, and the manifest of all of them.

A patch is the last resort, where upstream has no registry, hook or config key. It says what it replaces, why, since
which upstream report, for which versions and when it can go; it verifies the source of what it replaces before it does;
and it is listed with its state in every process by `nereus doctor` and in the report.

Patches are *armed* when a process becomes part of a run and *applied* when their module is imported (at once when it
is imported already). A process that never imports the module is never touched.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import logging
import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import wrapt

from verl_ext.compat.before_import import before_import
from verl_ext.errors import NereusError

logger = logging.getLogger(__name__)

ARMED, APPLIED = "armed", "applied"


class Patch(ABC):
    """One replacement in one upstream module. Subclasses fill in every class attribute.

    Attributes:
        name: unique, kebab-case.
        target: `module:attribute.path` of what is replaced.
        why, upstream, remove_when: one sentence each.
        versions: distribution -> specifier for which this patch was written. Named in messages; what decides in a
            process is the digest below.
        fingerprints: digests (`fingerprint()`) of the target's source that this patch knows how to replace.
        roles: processes in which it must be applied before training starts, by the names that the roll call has for
            them (`actor`, `server`, `engine_core`, `engine_worker`, ...).
        engine: verl's training strategy that it belongs to; empty when it is needed whatever the strategy.
        trigger: module whose import applies it, where the target's own is imported by processes that do not need it.
        before: apply it to the trigger before that runs. The target is then a whole module, `module:*`.
    """

    name: ClassVar[str]
    target: ClassVar[str]
    why: ClassVar[str]
    upstream: ClassVar[str]
    remove_when: ClassVar[str]
    versions: ClassVar[dict[str, str]]
    fingerprints: ClassVar[tuple[str, ...]]
    roles: ClassVar[frozenset[str]] = frozenset()
    engine: ClassVar[str] = ""
    trigger: ClassVar[str] = ""
    before: ClassVar[bool] = False

    def __init__(self) -> None:
        self.state = "off"

    @property
    def module(self) -> str:
        return self.target.split(":")[0]

    def arm(self) -> None:
        """Apply now if the module is imported, else as soon as it is. Arming twice does nothing."""
        if self.state != "off":
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
        self.replace(module)
        self.state = APPLIED
        logger.debug("nereus patch %s applied to %s", self.name, self.target)

    def verify(self, module: ModuleType) -> None:
        """Raise NereusError when the target is not what this patch was written against."""
        try:
            found = "digest " + fingerprint(resolve(module, self.target))
        except AttributeError:
            found = "nothing of that name"
        except (OSError, TypeError) as error:  # compiled, or made at run time
            found = f"an object without source ({error})"
        if found not in [f"digest {known}" for known in self.fingerprints]:
            versions = ", ".join(
                f"{name} {_version(name) or 'not installed'}, written for {specifier}"
                for name, specifier in self.versions.items()
            )
            raise NereusError(
                f"patch {self.name} does not know this version of {self.target}",
                where=f"{self.target} ({versions})",
                expected="source with digest " + " or ".join(self.fingerprints),
                got=found,
                change="install the versions in `nereus doctor`, or report the digest so that the patch can be updated",
            )

    @abstractmethod
    def replace(self, module: ModuleType) -> None:
        """Put the replacement in place. Called once, with the imported target module."""

    @classmethod
    def applicable(cls) -> bool:
        """Whether what this patch replaces is installed here, in whatever version."""
        return any(_version(name) is not None for name in cls.versions)


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


def rebind(name: str, old: Any, new: Any, modules: tuple[str, ...]) -> None:
    """Replace `name` in modules that had imported `old` by name before the patch was applied."""
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
    """The patches of this process, in the order in which they were armed."""

    def __init__(self) -> None:
        self._patches: dict[str, Patch] = {}

    def arm(self, patches: list[Patch]) -> None:
        for patch in patches:
            if patch.name in self._patches:
                continue
            self._patches[patch.name] = patch
            patch.arm()

    def states(self) -> dict[str, str]:
        """Patch name -> armed or applied."""
        return {name: patch.state for name, patch in self._patches.items()}

    def missing(self, role: str, strategy: str = "") -> list[str]:
        """Names of patches that should be applied by now in a process of this role, training with this strategy."""
        return [
            name
            for name, patch in self._patches.items()
            if role in patch.roles and patch.engine in ("", strategy) and patch.state != APPLIED
        ]

    def digest(self) -> str:
        """First 12 hex digits over the names and source of the armed patches; equal in every process of a run."""
        text = "\n".join(f"{name}:{fingerprint(type(patch))}" for name, patch in sorted(self._patches.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


MANIFEST = Manifest()
