"""Runtime patches of vLLM that every platform needs. None so far: the doors are enough."""

from __future__ import annotations

from verl_ext.compat.patch import Patch

VLLM_PATCHES: tuple[type[Patch], ...] = ()
