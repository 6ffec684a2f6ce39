"""Every patch is tested by its effect: this table says where. A patch without a row, or a row without a test, fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from verl_ext.integrations.features import OWN

TESTS = Path(__file__).parents[2]
PATCHES = [touch.name for feature in OWN for touch in feature.touches if touch.kind == "patch"]

CPU = "unit/cpu/test_effects.py"
MEGATRON = "unit/megatron/test_effects.py"
LEFT_OUT = f"{MEGATRON}::test_without_it_a_training_step_fails"

TABLE = {
    "verl-bounded-weight-sync-wait": "e2e/test_tripwires.py::test_a_failed_weight_sync_ends_the_job_with_its_cause",
    "verl-single-gloo-backend": f"{CPU}::test_torch_takes_the_backend_that_verl_asks_for",
    "vllm-cpu-loadable-linear": f"{CPU}::test_the_weight_of_a_linear_layer_can_be_loaded_again",
    "vllm-cpu-seeded-chunked-prefill": f"{CPU}::test_a_seeded_request_survives_a_prefill_in_pieces",
    "vllm-cpu-contiguous-rotary": f"{CPU}::test_the_rotary_embedding_is_right_on_a_view_with_gaps",
    "megatron-cpu-gloo-groups": f"{MEGATRON}::test_a_process_group_that_names_nccl_is_one_of_gloo",
    "megatron-cpu-recompute": f"{MEGATRON}::test_selective_recomputation_needs_no_transformer_engine",
    "megatron-cpu-adapters-without-engine": f"{MEGATRON}::test_the_layers_of_adapters_can_be_imported",
    # The same in the older pair, with which the tests can be run as well (CONTRIBUTING).
    "megatron-cpu-adapters-without-engine-in-0-5": f"{MEGATRON}::test_the_layers_of_adapters_can_be_imported",
    "megatron-cpu-adapters-of-local-layers": f"{MEGATRON}::test_the_duplicated_linear_layer_can_have_an_adapter",
    "megatron-cpu-cuda-device": LEFT_OUT,
    "megatron-cpu-cuda-tensors": LEFT_OUT,
    "megatron-cpu-generator": LEFT_OUT,
    "megatron-cpu-split-sizes": LEFT_OUT,
    "megatron-cpu-uneven-gather": LEFT_OUT,
    "megatron-cpu-duplicated-down-projection": LEFT_OUT,
    "megatron-cpu-plain-query-projection": LEFT_OUT,
    "megatron-cpu-local-provider": LEFT_OUT,
    "megatron-cpu-float32-engine": LEFT_OUT,
}


@pytest.mark.parametrize("patch", PATCHES)
def test_every_patch_has_a_test_of_its_effect(patch):
    file, _, name = TABLE[patch].partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_row_is_of_a_patch_that_is_gone():
    assert set(TABLE) == set(PATCHES)
