"""Causal attention in plain torch over padded or packed sequences, with or without context parallelism.

Pure: no Megatron. With context parallelism every sequence of length L is cut into 2 * CP chunks, and rank r holds
chunks r and 2 * CP - 1 - r (the zigzag layout of Megatron-Core and Transformer Engine), sequence after sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def zigzag_rows(length: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    """Positions within one sequence that a rank of the context-parallel group holds, in its order.

    Args:
        length: of the sequence in tokens, padded to a multiple of 2 * cp_size where cp_size > 1.

    Returns:
        int64, [length / cp_size].

    Raises:
        ValueError: the length cannot be cut into 2 * cp_size equal chunks.
    """
    if cp_size == 1:
        return torch.arange(length)
    chunk, rest = divmod(length, 2 * cp_size)
    if rest:
        raise ValueError(f"a sequence of {length} tokens cannot be cut into 2 * CP = {2 * cp_size} equal chunks")
    first, second = cp_rank * chunk, (2 * cp_size - 1 - cp_rank) * chunk
    return torch.cat([torch.arange(first, first + chunk), torch.arange(second, second + chunk)])


def packed_rows(lengths: Sequence[int], cp_size: int, cp_rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which sequence, and which position in it, each local row of a packed batch is.

    Args:
        lengths: padded length of every sequence, over all ranks.

    Returns:
        Two int64 tensors [sum(lengths) / cp_size].
    """
    positions = [zigzag_rows(length, cp_size, cp_rank) for length in lengths]
    numbers = [torch.full_like(rows, number) for number, rows in enumerate(positions)]
    return torch.cat(numbers), torch.cat(positions)


class GatherFromContextParallel(torch.autograd.Function):
    """Concatenate dim 0 over the ranks of a group; backwards the sum over the ranks, of which each keeps its part."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        torch.distributed.all_gather(parts, local.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # gloo has no reduce-scatter of lists.
        total = gradient.contiguous().clone()
        torch.distributed.all_reduce(total, group=ctx.group)
        return total.chunk(ctx.group.size())[ctx.group.rank()], None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float,
    dropout: float = 0.0,
    cp_group: Any = None,
) -> torch.Tensor:
    """Causal softmax attention within each sequence, softmax in float32.

    Args:
        query: [batch, rows, heads, d]; rows are this rank's.
        key, value: [batch, rows, groups, d or d_v], `groups` divides `heads`.
        lengths: padded length of every sequence along the row dimension, over all ranks.
        scale: of the scores.
        dropout: probability on the attention weights.
        cp_group: process group of the context-parallel ranks; None for one.

    Returns:
        [batch, rows, heads, d_v], of `value`'s dtype.
    """
    size, rank = (cp_group.size(), cp_group.rank()) if cp_group is not None else (1, 0)
    repeat = query.shape[2] // key.shape[2]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2)
    sequence, position = key_sequence, key_position = packed_rows(lengths, size, rank)
    if size > 1:
        key = GatherFromContextParallel.apply(key.transpose(0, 1), cp_group).transpose(0, 1)
        value = GatherFromContextParallel.apply(value.transpose(0, 1), cp_group).transpose(0, 1)
        everyone = [packed_rows(lengths, size, other) for other in range(size)]
        key_sequence, key_position = (torch.cat(part) for part in zip(*everyone, strict=True))
    visible = (sequence[:, None] == key_sequence) & (key_position <= position[:, None])
    scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float()) * scale
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(torch.float32).min), dim=-1)
    weights = torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
    return torch.einsum("bhqk,bkhd->bqhd", weights.to(value.dtype), value)
