"""Layers for Megatron-Core's layer specs that need neither Transformer Engine nor a GPU.

Imported only in processes that train with Megatron.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from verl_ext.integrations.cpu.megatron.attention import attention

# Whether padding is masked too makes no difference to rows that count.
CAUSAL = ("causal", "padding_causal")


class TorchAttention(MegatronModule):
    """What `TEDotProductAttention` is: packed sequences, context parallelism, and MLA's two head sizes.

    Megatron-Core's own `DotProductAttention` has none of the three.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale or (k_channels or config.kv_channels) ** -0.5
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        groups = getattr(pg_collection, "cp", None)
        self.cp_group = groups if groups is not None else parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attend causally.

        Args:
            query, key, value: [rows, batch, heads, d], or packed [tokens, heads, d].
            attention_mask: not used, as by Transformer Engine for the causal mask; padding is on the right, where no
                token of the sequence looks.
            packed_seq_params: Megatron-Core's PackedSeqParams in the `thd` format.

        Returns:
            [rows, batch, heads * d_v], or packed [tokens, heads * d_v].
        """
        if attention_bias is not None or (attn_mask_type or self.attn_mask_type).name not in CAUSAL:
            raise NotImplementedError(
                f"{attn_mask_type or self.attn_mask_type}, or an attention bias, on the cpu platform"
            )
        cp_group = self.cp_group if self.cp_group.size() > 1 else None
        packed = packed_seq_params is not None
        if packed:
            query, key, value = (part.reshape(1, -1, *part.shape[-2:]) for part in (query, key, value))
            lengths = _packed_lengths(packed_seq_params, query.shape[1], self.cp_group.size())
        else:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
            lengths = [query.shape[1] * self.cp_group.size()]
        output = attention(
            query,
            key,
            value,
            lengths,
            self.softmax_scale,
            dropout=self.dropout if self.training else 0.0,
            cp_group=cp_group,
        )
        if packed:
            return output.flatten(2).squeeze(0)
        return output.flatten(2).transpose(0, 1).contiguous()


def _packed_lengths(params: Any, rows: int, cp_size: int) -> list[int]:
    """Padded lengths of the packed sequences; rows after the last one count as a sequence of their own."""
    bounds = params.cu_seqlens_q if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
    lengths: list[int] = (bounds[1:] - bounds[:-1]).tolist()
    rest = rows * cp_size - sum(lengths)
    return [*lengths, rest] if rest else lengths


class TorchNorm:
    """torch's RMSNorm or LayerNorm, its gradient marked for reduction where the sequence is sharded over TP ranks.

    Megatron-Core's `WrappedTorchNorm` refuses sequence parallelism.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        if config.normalization not in ("RMSNorm", "LayerNorm") or config.layernorm_zero_centered_gamma:
            raise NotImplementedError(
                f"normalization={config.normalization}, zero_centered_gamma={config.layernorm_zero_centered_gamma} "
                "on the cpu platform"
            )
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class DuplicatedLinear(MegatronModule):
    """A whole linear layer on every TP rank, as `TELinear(parallel_mode="duplicated")` is. No bias.

    MLA's down-projections. With Megatron-Core's local spec (column parallel, then gathered) the gradient of `k_pos_emb`
    holds only the rank's own heads.
    """

    def __init__(self, input_size: int, output_size: int, *, config: Any, init_method: Any, **_: Any) -> None:
        super().__init__(config=config)
        self.in_features, self.out_features = input_size, output_size
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        init_method(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel
        self.weight.allreduce = True

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(rows, self.weight), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {}, sharded_offsets)
