"""Every patch of Megatron on the CPU by its effect: what happens without it, and with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_ext.integrations.megatron.ranks import run_on_ranks

sys.path.insert(0, str(Path(__file__).parent))  # a rank imports its function by name

import on_rank


def test_a_process_group_that_names_nccl_is_one_of_gloo():
    (found,) = run_on_ranks(1, on_rank.groups)
    assert "NCCL" in found["before"] and found["after"] == "gloo"


def test_selective_recomputation_needs_no_transformer_engine():
    (found,) = run_on_ranks(1, on_rank.recompute)
    assert found == {"before": "NameError: name 'FP8GlobalStateManager' is not defined", "after": "works"}


def test_the_layers_of_adapters_can_be_imported():
    (found,) = run_on_ranks(1, on_rank.adapters)
    assert found == {"before": "ModuleNotFoundError: No module named 'transformer_engine'", "after": "works"}


def test_the_duplicated_linear_layer_can_have_an_adapter():
    (found,) = run_on_ranks(1, on_rank.adapters_of_local_layers)
    assert found["before"] != "works" and found["after"] == "works"


# patch -> family, layout, and what the step comes to without it; with it, see test_parity.py.
WITHOUT = {
    "megatron-cpu-cuda-device": ("qwen3-moe", "one", "fails: RuntimeError: Found no NVIDIA driver"),
    "megatron-cpu-cuda-tensors": ("qwen3-moe", "one", "fails: RuntimeError: Invalid device, must be cuda device"),
    "megatron-cpu-generator": ("qwen3-moe", "one", "fails: TypeError: "),
    "megatron-cpu-split-sizes": ("qwen3-moe", "dp=2,ep=2", "fails: "),
    "megatron-cpu-uneven-gather": ("qwen3-moe", "tp=2,dp=2,ep=2,etp=2", "fails: RuntimeError: ProcessGroupGloo"),
    "megatron-cpu-duplicated-down-projection": ("deepseek-v3", "tp=2", "fails: ValueError: Unsupported linear_q_down"),
    "megatron-cpu-plain-query-projection": ("moonlight", "one", "fails: RuntimeError: qk_layernorm requires"),
    "megatron-cpu-local-provider": ("qwen3-moe", "one", "fails: ValueError: fused permutation is not available"),
    "megatron-cpu-float32-engine": ("qwen3-moe", "one", "fails: AssertionError: dtype float32 not supported"),
}


@pytest.mark.slow
@pytest.mark.parametrize("patch", WITHOUT)
def test_without_it_a_training_step_fails(patch: str, tmp_path: Path):
    family, layout, expected = WITHOUT[patch]
    script = Path(__file__).with_name("left_out.py")
    done = subprocess.run(
        [sys.executable, script, patch, family, layout, tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(script.parent)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith(expected)
