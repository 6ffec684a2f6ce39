"""What vLLM calls in every one of its processes (`vllm.general_plugins`). An exception here ends the engine's start."""

from __future__ import annotations


def load() -> None:
    """Take part in the run this process was started for; do nothing outside one. Safe to call again."""
    from verl_ext.integrations.verl.join import join_from_environment

    join_from_environment()
