"""The decoder of Megatron-Core's local layer spec, with the layers of the cpu platform put in.

Imported only in processes that train with Megatron.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from verl_ext.errors import NereusError
from verl_ext.integrations.cpu.megatron.layers import DuplicatedLinear, TorchAttention, TorchNorm

REPLACED = {DotProductAttention: TorchAttention, WrappedTorchNorm: TorchNorm}

# Kernels and overlaps that need CUDA or Transformer Engine. All of them change speed only.
ACCELERATED = [
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_fusion",
    "moe_shared_expert_overlap",
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "cross_entropy_loss_fusion",
    "apply_rope_fusion",
    "persist_layer_norm",
    "tp_comm_overlap",
]


def decoder_spec(config: Any, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """Layer specs of this pipeline stage.

    Args:
        config: TransformerConfig (a provider of Megatron-Bridge is one).
        vp_stage: virtual pipeline stage, None without.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    return _on_cpu(block, config)


def _on_cpu(part: Any, config: Any) -> Any:
    if isinstance(part, type):
        return REPLACED.get(part, part)
    if isinstance(part, list):
        return [_on_cpu(item, config) for item in part]
    if isinstance(part, MLASelfAttentionSubmodules):
        part = dataclasses.replace(
            part,
            linear_q_down_proj=DuplicatedLinear,
            linear_kv_down_proj=DuplicatedLinear,
            # Without q_lora_rank nothing would use the norm, and megatron-core 0.19 refuses a spec that has it.
            **({"q_layernorm": IdentityOp} if config.q_lora_rank is None else {}),
        )
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        changed = {field.name: _on_cpu(getattr(part, field.name), config) for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **changed)
    return part


def localize(provider: Any) -> None:
    """Make a provider of Megatron-Bridge build its model from `decoder_spec`, with everything off that needs a GPU.

    Raises:
        NereusError: an attention variant that is no plain decoder (DSA, linear attention).
    """
    variant = getattr(provider, "experimental_attention_variant", None)
    if variant is not None:
        raise NereusError(
            f"the cpu platform cannot train this attention with Megatron: {variant}",
            where=type(provider).__name__,
            expected="full attention or MLA",
            got=f"experimental_attention_variant={variant}",
            change="train it with FSDP (model_engine=dp), or on GPUs",
        )
    provider.transformer_layer_spec = decoder_spec
    provider.transformer_impl = "local"
    provider.use_cpu_initialization = True
    provider.mtp_num_layers = None
    for name in ACCELERATED:
        if hasattr(provider, name):
            setattr(provider, name, False)
