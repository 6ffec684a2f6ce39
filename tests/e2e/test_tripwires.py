"""Each tripwire ends a real run within a minute, with its cause and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from verl_ext.config import NereusOptions
from verl_ext.integrations.run import VARIABLE, Run

pytestmark = pytest.mark.e2e


def test_a_failed_weight_sync_ends_the_job_with_its_cause(train):
    # The engine is built for other shapes than the trainer sends, so its loader raises in the first sync.
    run = train("+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides={moe_intermediate_size:16}")
    run.refused()
    assert "update_weights_from_ipc" in run.log


def test_an_engine_that_loads_no_plugins_is_named(train, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_PLUGINS", "some_other_plugin")
    message = train().refused()
    assert "not active in rollout 0 engine" in message
    assert "VLLM_PLUGINS" in message


def test_a_node_without_the_package_ends_the_job(train, tmp_path: Path):
    # A stand-in for another node's environment: the same interpreter, with nereus hidden from it.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'verl_ext':\n"
        "            raise ModuleNotFoundError(f\"No module named '{name}'\", name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={hidden} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    run = train(f"nereus.cpu.python={python}")
    run.refused()
    assert "No module named 'verl_ext'" in run.log


def test_another_run_s_options_in_one_process_are_refused(train, monkeypatch: pytest.MonkeyPatch):
    # What a stale NEREUS_ACTIVATION in a worker's environment looks like to the roll call is a unit test; here the
    # driver itself inherits one from an earlier run.
    monkeypatch.setenv(VARIABLE, Run(NereusOptions(), "cpu", "vllm").to_json())
    assert "part of another run" in train().refused()
