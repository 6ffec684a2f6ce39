"""`torch.cuda` for code that never asks whether there is a device.

Megatron-Core names the device in every factory and moves every tensor to it. In a process that imports Megatron on the
cpu platform those names mean the CPU. `torch.cuda.is_available()` stays False, so code that does ask takes its own way.
"""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections.abc import Callable
from typing import Any, ClassVar

from verl_ext.compat.touch import Patch
from verl_ext.integrations.cpu.device import make_device_module

TORCH_2_11 = {"torch": "==2.11.0"}
TRAINING_ROLES = frozenset({"actor", "remote_actor", "critic", "ref"})


FACTORIES = [
    "zeros",
    "ones",
    "empty",
    "full",
    "tensor",
    "as_tensor",
    "arange",
    "rand",
    "randn",
    "randint",
    "randperm",
    "eye",
    "linspace",
    "scalar_tensor",
    "empty_strided",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "rand_like",
    "randn_like",
]
TENSOR_FACTORIES = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
TYPED_TENSORS = ("Float", "Half", "BFloat16", "Long", "Int", "Byte", "Double", "Bool", "Short", "Char")


def on_cpu(device: Any) -> Any:
    """The CPU for anything that names a CUDA device (`cuda`, `cuda:0`, an index, `cpu:0`); else what was given."""
    import torch

    if isinstance(device, str):
        return "cpu" if device.startswith(("cuda", "cpu:")) else device
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    return device


def _factory(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return make


def _mover(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (on_cpu(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return original(self, *args, **kwargs)

    return to


class _TypeName(str):
    """`torch.FloatTensor`, which is also equal to `torch.cuda.FloatTensor`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.__eq__(self, other.replace("torch.cuda.", "torch."))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class MegatronPatch(Patch):
    """A patch that only a process which trains with Megatron has to have. Abstract."""

    roles = TRAINING_ROLES

    @classmethod
    def needed(cls, role: str, run: Any) -> bool:
        return role in cls.roles and run.engines.get(role.removeprefix("remote_")) == "megatron"


class _OnMegatronImport(MegatronPatch):
    """A patch of torch that only a process with Megatron gets. Abstract."""

    trigger: ClassVar[str] = "megatron.core"
    upstream = "megatron-core 0.18 and 0.19 are written for CUDA; no report expected"
    remove_when = "Megatron-Core asks for its device in one place"
    versions: ClassVar[dict[str, str]] = TORCH_2_11


class CudaDevice(_OnMegatronImport):
    name = "megatron-cpu-cuda-device"
    target = "torch.cuda:current_device"
    why = "Megatron-Core asks torch.cuda for device, streams, events, memory and generator without a device there."
    fingerprints = ("6e9804168a5c",)

    def replace(self, module: Any) -> None:
        import torch

        cuda, device = module, make_device_module()
        for name in (
            *("current_device", "set_device", "synchronize", "device_count", "get_device_name", "mem_get_info"),
            *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
            *("reset_peak_memory_stats", "empty_cache", "ipc_collect"),
            *("get_rng_state", "set_rng_state"),
        ):
            setattr(cuda, name, getattr(device, name))
        for name in ("get_rng_state", "set_rng_state"):
            setattr(cuda.random, name, getattr(device, name))
        for name in ("manual_seed", "manual_seed_all"):
            # Not torch.manual_seed, which calls these.
            setattr(cuda, name, torch.default_generator.manual_seed)
            setattr(cuda.random, name, torch.default_generator.manual_seed)
        # vLLM sets PYTORCH_NVML_BASED_CUDA_CHECK, with which this would follow device_count().
        cuda.is_available = lambda: False
        cuda.is_initialized = lambda: False
        cuda.memory_stats = lambda *_, **__: {}
        cuda.reset_max_memory_allocated = lambda *_, **__: None
        cuda.get_device_capability = lambda *_, **__: (0, 0)
        cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(
            name="cpu", major=0, minor=0, multi_processor_count=1, total_memory=device.mem_get_info()[1]
        )

        class Event(torch.cpu.Event):
            def __init__(self, *_: Any, **__: Any) -> None:
                self._at = time.perf_counter()

            def record(self, stream: Any = None) -> None:
                self._at = time.perf_counter()

            def elapsed_time(self, other: Event) -> float:
                return (other._at - self._at) * 1e3

        class Stream(torch.cpu.Stream):
            cuda_stream = 0

            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def synchronize(self) -> None:
                pass

            def record_event(self, event: Any = None) -> Any:
                return event or Event()

        stream = Stream()
        cuda.Event, cuda.Stream = Event, Stream
        cuda.current_stream = cuda.default_stream = lambda *_, **__: stream
        cuda.set_stream = lambda *_, **__: None
        cuda.stream = lambda *_, **__: contextlib.nullcontext()
        cuda.nvtx.range = lambda *_, **__: contextlib.nullcontext()
        for name in ("range_push", "range_pop", "mark"):
            setattr(cuda.nvtx, name, lambda *_, **__: None)


class CudaTensors(_OnMegatronImport):
    name = "megatron-cpu-cuda-tensors"
    target = "torch.nn.modules.module:Module.cuda"
    why = 'Megatron-Core makes tensors with device="cuda", pins them, moves them with .cuda() and compares type names.'
    fingerprints = ("a3f558ba5849",)

    def replace(self, module: Any) -> None:
        import torch
        import torch.utils._device as device_mode

        # `with torch.device("meta")` knows the factories by identity and collects them once: before they are wrapped,
        # or transformers builds its models outside the context and leaves buffers without their values.
        device_mode._device_constructors()
        for name in FACTORIES:
            setattr(torch, name, _factory(getattr(torch, name)))
        for name in TENSOR_FACTORIES:
            setattr(torch.Tensor, name, _factory(getattr(torch.Tensor, name)))
        for owner in (torch.Tensor, module.Module):
            owner.to = _mover(owner.to)
            owner.cuda = lambda self, *_, **__: self
        torch.Tensor.pin_memory = lambda self, *_, **__: self
        torch.Tensor.record_stream = lambda self, *_, **__: None

        original = torch.Tensor.type

        def type_(self: Any, dtype: Any = None, **kwargs: Any) -> Any:
            if dtype is None and not kwargs:
                return _TypeName(original(self))
            return original(self, dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype, **kwargs)

        torch.Tensor.type = type_
        for name in TYPED_TENSORS:
            setattr(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))


class GlooGroups(_OnMegatronImport):
    name = "megatron-cpu-gloo-groups"
    target = "torch.distributed.distributed_c10d:new_group"
    why = "Megatron-Core asks for NCCL by name, with NCCL's options and device ids, when it makes its process groups."
    fingerprints = ("d5ff3e1763ec",)

    def replace(self, module: Any) -> None:
        import torch.distributed as dist

        for name in ("new_group", "new_subgroups_by_enumeration"):
            gloo = _with_gloo(getattr(module, name))
            setattr(module, name, gloo)
            setattr(dist, name, gloo)
        original = module.barrier

        @functools.wraps(original)
        def barrier(*args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        module.barrier = dist.barrier = barrier


def _with_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, pg_options: Any = None, device_id: Any = None, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("backend"), str) and "nccl" in kwargs["backend"]:
            kwargs["backend"] = "gloo"
        return original(*args, **kwargs)

    return make
