"""The pins: everything is pinned, and nothing but names and versions is in these files."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "constraints").glob("*.txt"))


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_exact_versions_and_no_addresses(file):
    for line in file.read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9.-]+==[0-9][a-z0-9.]*", line), line
        assert "://" not in line


def test_every_requirement_of_the_extras_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [
        Requirement(text) for text in project["dependencies"] + extras["cpu"] + extras["dev"] + extras["plots"]
    ]
    pinned = pins("cpu.txt")
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        assert name == "verl-nereus" or requirement.specifier.contains(pinned[name]), requirement


def test_the_override_is_what_is_pinned():
    pinned = pins("cpu.txt")
    assert {name: pinned[name] for name in pins("overrides.txt")} == pins("overrides.txt")


def test_what_is_installed_without_dependencies_is_apart():
    assert not set(pins("megatron.txt")) & set(pins("cpu.txt"))


def test_the_pinned_megatron_is_that_of_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = pins("megatron.txt")
    for requirement in map(Requirement, extras["megatron"]):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_the_older_pair_differs_in_nothing_but_the_pair():
    differing = set(pins("megatron.txt").items()) ^ set(pins("megatron-0.18.txt").items())
    assert sorted(name for name, _ in differing) == 2 * ["megatron-bridge"] + 2 * ["megatron-core"]
