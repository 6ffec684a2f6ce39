"""The `cpu` platform for verl's PlatformRegistry: gloo, and Ray's GPU resource as a plain counter."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any


def make_device_module() -> types.ModuleType:
    """`torch.cpu` with the functions of `torch.cuda` that verl calls on the device module.

    `is_available()` is False: every use of it in verl guards work that only an accelerator has.
    """
    import psutil
    import torch

    process = psutil.Process()

    def resident(*_: Any, **__: Any) -> int:
        return int(process.memory_info().rss)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    module = types.ModuleType("nereus_torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    same: dict[str, Any] = dict.fromkeys(
        ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"), nothing
    )
    same["set_per_process_memory_fraction"] = nothing
    same.update(
        dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), resident)
    )
    module.__dict__.update(
        same,
        is_available=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: torch.device("cpu"),
        mem_get_info=lambda *_: (psutil.virtual_memory().available, psutil.virtual_memory().total),
        get_device_name=lambda *_: "cpu",
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
    )
    return module


def make_platform() -> type:
    """The platform class. A function, because its base class lives in verl."""
    import torch
    from verl.plugin.platform import PlatformBase

    class PlatformCPU(PlatformBase):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = make_device_module()

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            # Never picked by detection: a user asks for it with trainer.device=cpu.
            return False

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            return None

        def synchronize(self, device_index: int | None = None) -> None:
            return None

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            return None

        def empty_cache(self) -> None:
            return None

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "NEREUS_CPU_VISIBLE_DEVICES"

        # Ray counts "GPU" as a logical resource on any machine, so verl's placement groups work as they are.
        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
            return {"num_gpus": num_gpus}

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def rollout_env_vars(self) -> dict[str, str]:
            return {}

        def get_collective_module(self) -> None:
            return None

        @contextlib.contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            return None

        def profiler_stop(self) -> None:
            return None

        def cudart(self) -> None:
            return None

    return PlatformCPU
