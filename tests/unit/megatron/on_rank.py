"""What single patches of Megatron on the CPU change, seen on one gloo rank. Functions for `run_on_ranks`."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any


def _error(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def groups() -> dict[str, str]:
    """What comes of a process group that names NCCL."""
    import torch.distributed as dist

    before = _error(lambda: dist.new_group.__wrapped__([0], backend="nccl"))
    return {"before": before, "after": dist.get_backend(dist.new_group([0], backend="nccl"))}


def recompute() -> dict[str, str]:
    """A forward and a backward pass through Megatron-Core's checkpoint that keeps no output."""
    import megatron.core.tensor_parallel.random as module
    import torch

    def run() -> None:
        module.initialize_rng_tracker(force_reset=True)
        x = torch.ones(3, requires_grad=True)
        kept = module.CheckpointWithoutOutput()
        y = kept.checkpoint(torch.sin, x)
        z = y * 2
        kept.discard_output_and_register_recompute(z)
        z.sum().backward()
        assert torch.allclose(x.grad, 2 * torch.cos(torch.ones(3)))

    after = _error(run)
    for name in ("FP8GlobalStateManager", "activation_recompute_forward", "fp8_autocast"):
        delattr(module, name)
    return {"before": _error(run), "after": after}


def adapters() -> dict[str, str]:
    """Importing Megatron-Bridge's LoRA layers, with the hook and from the same file without it."""
    import megatron.bridge.peft.lora_layers as module

    spec = importlib.util.spec_from_file_location("unhooked_lora_layers", module.__file__)
    assert spec is not None and spec.loader is not None
    unhooked = importlib.util.module_from_spec(spec)
    loader = spec.loader
    return {"before": _error(lambda: loader.exec_module(unhooked)), "after": _error(lambda: module.LinearAdapter)}


def adapters_of_local_layers() -> dict[str, str]:
    """What Megatron-Bridge says of an adapter for the duplicated linear layer."""
    import megatron.bridge.peft.utils as module
    import torch

    from verl_ext.integrations.cpu.megatron.layers import DuplicatedLinear

    layer = DuplicatedLinear.__new__(DuplicatedLinear)
    torch.nn.Module.__init__(layer)
    layer.in_features, layer.out_features = 4, 2
    layer.config = SimpleNamespace(sequence_parallel=False)
    find = module.get_adapter_attributes_from_linear
    return {"before": _error(lambda: find.__wrapped__(layer)), "after": _error(lambda: find(layer))}
