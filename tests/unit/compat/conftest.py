"""Upstream modules to patch, and patches for them, as files: what a digest is made of is the source text."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from verl_ext.compat.touch import Patch, fingerprint, resolve

UPSTREAM = """
def answer():
    return "original"


class Engine:
    def run(self):
        return "original"

    @staticmethod
    def fixed():
        return "original"

    @classmethod
    def made(cls):
        return "original"

    @property
    def state(self):
        return "original"


compiled = len
"""

_numbers = itertools.count()


@dataclass
class Workshop:
    """Writes modules into a folder on the path. Names are new each time, because import hooks stay for good."""

    folder: Path

    def module(self, source: str = UPSTREAM) -> str:
        name = f"upstream_{next(_numbers)}"
        (self.folder / f"{name}.py").write_text(source)
        return name

    def load(self, name: str) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def digest(self, target: str) -> str:
        """Of a target in a module, without importing that module under its name."""
        name = target.split(":")[0]
        copy = self.module((self.folder / f"{name}.py").read_text())
        return fingerprint(resolve(self.load(copy), target))

    def patch(self, target: str, *, known: str | None = None, **attributes: object) -> Patch:
        """A patch that replaces `answer`; it knows the target's present source unless `known` is given."""
        calls: list[ModuleType] = []

        def replace(_self: Patch, module: ModuleType) -> None:
            calls.append(module)
            module.answer = lambda: "patched"

        values = {
            "name": "upstream-answer",
            "target": target,
            "why": "It is wrong.",
            "upstream": "no report",
            "remove_when": "it is right",
            "versions": {"pytest": ">=8"},
            "fingerprints": (known or self.digest(target),),
            "roles": frozenset({"actor"}),
            "replace": replace,
            "calls": calls,
            **attributes,
        }
        return type("AnswerPatch", (Patch,), values)()


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Workshop(tmp_path)
    for name in [name for name in sys.modules if name.startswith("upstream_")]:
        del sys.modules[name]
