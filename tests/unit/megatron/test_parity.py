"""A step of verl's Megatron engine on gloo ranks is the step of transformers, in float32."""

from __future__ import annotations

import pytest
import torch

from verl_ext.demo.families import build_family
from verl_ext.integrations.megatron.layout import Layout
from verl_ext.integrations.megatron.parity import Case, Outcome, compare, gather, reference, run_case
from verl_ext.integrations.megatron.ranks import run_on_ranks


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(build_family("qwen3-moe", tmp_path_factory.mktemp("models") / "qwen3-moe"))


@pytest.fixture(scope="module")
def expected(case: Case) -> Outcome:
    return reference(case)


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2)], ids=str)
def test_a_step_in_megatron_is_the_step_of_transformers(case: Case, expected: Outcome, layout: Layout):
    found = gather(run_on_ranks(layout.world, run_case, case.on(layout)))
    assert all(torch.equal(found.exported[name], weight) for name, weight in expected.exported.items())
    difference = compare(found, expected)
    assert difference.log_prob < 1e-5 and difference.grad_norm < 1e-4 and difference.weight < 1e-4
