"""Tiny random models of the mixture-of-experts families that nereus is tested with, built on the spot.

Four layers each, with everything that makes the family different: grouped-query attention and a softmax router for
Qwen3-MoE; latent attention (MLA), a dense first layer, a sigmoid router with a selection bias, group-limited top-k and
shared experts for DeepSeek-V3; the same without a query down-projection and without groups for Moonlight.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("qwen3-moe", "deepseek-v3", "moonlight")

_COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    # Wide enough that routes and attention differ from token to token.
    "initializer_range": 0.2,
}
# vLLM's CPU attention knows a few head sizes only: nope + rope has to be one of them.
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    # transformers has no such fields; vLLM makes the router's bias from them.
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
_DEEPSEEK: dict[str, Any] = {
    "q_lora_rank": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    # Megatron-Core ranks a group by its best num_experts_per_tok / topk_group scores, transformers by its best two.
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
_MOONLIGHT: dict[str, Any] = {
    "q_lora_rank": None,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.446,
}
_QWEN3: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "router_aux_loss_coef": 0.0,
}


def family_config(family: str) -> PretrainedConfig:
    """The config of a family's tiny model.

    Raises:
        ValueError: a family that is not in FAMILIES.
    """
    from transformers import DeepseekV3Config, Qwen3MoeConfig

    from verl_ext.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID

    tokens = {"pad_token_id": PAD_ID, "eos_token_id": EOS_ID, "bos_token_id": BOS_ID}
    if family == "qwen3-moe":
        return Qwen3MoeConfig(**_COMMON, **tokens, **_QWEN3)
    if family == "deepseek-v3":
        return DeepseekV3Config(**_COMMON, **tokens, **_LATENT, **_DEEPSEEK)
    if family == "moonlight":
        return DeepseekV3Config(**_COMMON, **tokens, **_LATENT, **_MOONLIGHT)
    raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")


def build_family(family: str, folder: Path, seed: int = 0) -> Path:
    """Write a family's tiny model as a Hugging Face folder (float32, with tokenizer), unless it is there.

    Args:
        family: one of FAMILIES.
        folder: where to put it; written under another name and renamed.
        seed: of the weights.

    Returns:
        The folder.
    """
    if folder.is_dir():
        return folder
    import torch
    from transformers import AutoModelForCausalLM

    from verl_ext.demo.tokenizer import build_tokenizer

    config = family_config(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            for name, buffer in model.named_buffers():
                if "e_score_correction_bias" in name:
                    buffer.copy_(0.1 * torch.randn_like(buffer))
            # transformers leaves the pad token's row at zero and drops its gradient, Megatron does not: where a zero
            # row is normalised, its gradient is a thousand times that of all others.
            rows = model.get_input_embeddings().weight
            rows[config.pad_token_id].normal_(0, config.initializer_range)
    work = folder.with_name(f".{folder.name}.{os.getpid()}.{uuid4().hex[:8]}")
    model.save_pretrained(work)
    build_tokenizer(("",), size=config.vocab_size, max_length=config.max_position_embeddings).save_pretrained(work)
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, with the same weights
            raise
    return folder
