"""Every runtime patch, in one list: what `nereus doctor` prints and what a run arms."""

from __future__ import annotations

from collections.abc import Iterable

from verl_ext.compat.patch import Patch
from verl_ext.integrations.cpu.megatron.patches import MEGATRON_CPU_PATCHES
from verl_ext.integrations.cpu.patches import CPU_PATCHES
from verl_ext.integrations.vllm.patches import VLLM_PATCHES


def all_patches() -> list[Patch]:
    return [patch() for patch in (*VLLM_PATCHES, *CPU_PATCHES, *MEGATRON_CPU_PATCHES)]


def wanted(platform: str, rollout: str, strategies: Iterable[str]) -> list[Patch]:
    """The patches of a run. In a version of its upstream that a patch does not know, it ends the process.

    Args:
        platform: verl's `trainer.device`.
        rollout: verl's `rollout.name`.
        strategies: verl's training strategies in use, e.g. `megatron`.
    """
    classes = [*(VLLM_PATCHES if rollout == "vllm" else ())]
    if platform == "cpu":
        classes += [*CPU_PATCHES, *(MEGATRON_CPU_PATCHES if "megatron" in strategies else ())]
    return [patch() for patch in classes]
