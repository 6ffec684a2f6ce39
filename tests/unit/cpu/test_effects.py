"""Every patch of the cpu platform by its effect: what upstream does without it, and what it does with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_ext.integrations.cpu.patches import CPU_PATCHES
from verl_ext.launch.environment import cpu_environment


@pytest.fixture(scope="module")
def effects() -> dict[str, dict[str, Any]]:
    """`before` and `after` the patches: patch -> what was seen."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("effects.py")],
        capture_output=True,
        text=True,
        timeout=200,
        env=cpu_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["before"]) == {patch.name for patch in CPU_PATCHES}
    return found


def test_torch_takes_the_backend_that_verl_asks_for(effects):
    assert effects["before"]["verl-single-gloo-backend"].startswith("cpu:gloo,cpu:gloo: ")
    assert effects["after"]["verl-single-gloo-backend"] == "taken"


def test_the_weight_of_a_linear_layer_can_be_loaded_again(effects):
    assert effects["before"]["vllm-cpu-loadable-linear"] == {"shape": [0]}
    assert effects["after"]["vllm-cpu-loadable-linear"] == {"shape": [32, 32], "follows": True}


def test_a_seeded_request_survives_a_prefill_in_pieces(effects):
    assert effects["before"]["vllm-cpu-seeded-chunked-prefill"].startswith("RuntimeError: ")
    assert effects["after"]["vllm-cpu-seeded-chunked-prefill"] == "goes on"


def test_the_rotary_embedding_is_right_on_a_view_with_gaps(effects):
    assert effects["before"]["vllm-cpu-contiguous-rotary"] > 0.1
    assert effects["after"]["vllm-cpu-contiguous-rotary"] < 1e-6
