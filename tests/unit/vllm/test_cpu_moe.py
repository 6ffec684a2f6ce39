"""The torch experts and top-k kernels that stand in on vLLM's CPU build, against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from verl_ext.integrations.vllm import cpu_moe


def block(experts: int, top_k: int, renormalize: bool) -> Qwen3MoeSparseMoeBlock:
    config = Qwen3MoeConfig(
        hidden_size=16,
        moe_intermediate_size=8,
        num_experts=experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=renormalize,
    )
    config._experts_implementation = "eager"
    made = Qwen3MoeSparseMoeBlock(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(1, 2), st.booleans(), st.integers(1, 20), st.integers(0, 2**31))
def test_a_layer_equals_transformers(experts, top_k, renormalize, tokens, seed):
    torch.manual_seed(seed)
    reference = block(experts, top_k, renormalize)
    hidden = torch.randn(tokens, 16)
    cpu_moe.register_kernels()
    with torch.no_grad():
        wanted = reference(hidden[None])
        wanted = (wanted[0] if isinstance(wanted, tuple) else wanted).reshape(tokens, 16)
        logits = torch.nn.functional.linear(hidden, reference.gate.weight)
        weights, ids = torch.empty(tokens, top_k), torch.empty(tokens, top_k, dtype=torch.int32)
        torch.ops._moe_C.topk_softmax(weights, ids, torch.empty_like(ids), logits, renormalize, None)
        got = cpu_moe.experts_forward(
            hidden, reference.experts.gate_up_proj, reference.experts.down_proj, weights, ids.long()
        )
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_bias_chooses_and_does_not_weigh():
    cpu_moe.register_kernels()
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    weights, ids = torch.empty(1, 1), torch.empty(1, 1, dtype=torch.int32)
    torch.ops._moe_C.topk_sigmoid(weights, ids, torch.empty_like(ids), logits, False, torch.tensor([0.0, 0.0, 5.0]))
    assert ids.item() == 2
    assert weights.item() == pytest.approx(0.5)


def test_an_expert_on_another_rank_adds_nothing():
    hidden, ids = torch.randn(3, 16), torch.full((3, 2), -1)
    out = cpu_moe.experts_forward(hidden, torch.randn(2, 16, 16), torch.randn(2, 16, 8), torch.ones(3, 2), ids)
    assert torch.equal(out, torch.zeros(3, 16))
