"""Call a function with a module that has been created and not yet run: the half that `wrapt.when_imported` lacks."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from verl_ext.errors import NereusError

Hook = Callable[[ModuleType], None]


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, hook: Hook) -> None:
        self._inner, self._hook = inner, hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if this loader had never been there: inspect and pickle look at these.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._inner
        self._hook(module)
        self._inner.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self.hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            found = finder.find_spec(name, path, target) if finder is not self else None
            if found is not None:
                if found.loader is not None:
                    found.loader = _Loader(found.loader, hook)
                return found
        return None


_FINDER = _Finder()


def before_import(name: str, hook: Hook) -> None:
    """Call `hook(module)` when `name` is imported, before the module's own code runs.

    Raises:
        NereusError: the module has been imported already, or has a hook.
    """
    if name in sys.modules or name in _FINDER.hooks:
        raise NereusError(
            f"{name} is imported already" if name in sys.modules else f"{name} has a hook already",
            where="before_import",
            expected="a module that nothing has imported",
            got=name,
            change="start nereus before Megatron is imported: +plugins=nereus does",
        )
    _FINDER.hooks[name] = hook
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
