"""Environment variables of the cpu platform. Left alone where the user has set them."""

from __future__ import annotations

import os

# Read by vLLM's CPU build, by OpenMP and by torch, some of them while they are imported.
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_MLA_DISABLE": "1",
    # Eager mode compiles nothing, yet vLLM warms up the compiler for 15 s.
    "TORCHDYNAMO_DISABLE": "1",
}


def cpu_environment() -> dict[str, str]:
    """The environment of this process with the missing ones added."""
    return {**CPU_ENVIRONMENT, **os.environ}
