"""verl's and vLLM's own registries, opened when their module is imported.

Nothing here replaces upstream code; what does is a `Patch`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import wrapt


def open_all(platform: str) -> None:
    """Register trainers and, on the cpu platform, the platform itself and its engines."""
    wrapt.when_imported("verl.trainer.ppo.v1")(_trainers)
    wrapt.when_imported("verl.workers.rollout.base")(_rollouts)
    wrapt.when_imported("verl.workers.rollout.replica")(_replicas)
    wrapt.when_imported("vllm.v1.engine.core")(_engine_core)
    wrapt.when_imported("verl.workers.rollout.vllm_rollout.utils")(_engine_worker)
    if platform == "cpu":
        open_cpu_platform()
        wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")(_fsdp_engines)
        wrapt.when_imported("verl.workers.engine.base")(_megatron_engines)
        wrapt.when_imported("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method")(_modular_moe)


def open_cpu_platform() -> None:
    """Make this process run on the cpu platform; to be called before verl's device modules are imported."""
    from verl_ext.integrations.cpu import distribution

    distribution.install()
    wrapt.when_imported("verl.plugin.platform.platform_manager")(_platform)


def _trainers(_module: ModuleType) -> None:
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from verl_ext.integrations.verl.trainer import extended

    for name, trainer in list(TRAINER_REGISTRY.items()):
        TRAINER_REGISTRY[name] = extended(trainer)


def _rollouts(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY[("vllm", "async")] = "verl_ext.integrations.verl.weight_sync.WatchedServerAdapter"


def _replicas(module: ModuleType) -> None:
    def load() -> type:
        from verl_ext.integrations.vllm.server import ReportingReplica

        return ReportingReplica

    module.RolloutReplicaRegistry.register("vllm", load)


def _engine_core(module: ModuleType) -> None:
    from verl_ext.integrations.vllm.answers import core_report

    module.EngineCore.nereus_report = core_report


def _engine_worker(module: ModuleType) -> None:
    from verl_ext.integrations.vllm.answers import worker_report

    module.vLLMColocateWorkerExtension.nereus_report = worker_report


def _platform(module: ModuleType) -> None:
    from verl_ext.integrations.cpu.platform import make_platform

    if getattr(module._current_platform, "device_name", None) == "cpu":
        return
    platform = make_platform()
    module.PlatformRegistry.register(platform="cpu")(platform)
    # Not through set_platform: it warns when detection has run, and detection runs before any plugin is imported.
    module._current_platform = platform()


def _fsdp_engines(module: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    for model_type, engine in (
        ("language_model", module.FSDPEngineWithLMHead),
        ("value_model", module.FSDPEngineWithValueHead),
    ):
        EngineRegistry.register(model_type, ["fsdp", "fsdp2"], device="cpu")(engine)


def _megatron_engines(module: ModuleType) -> None:
    for model_type, name in (
        ("language_model", "MegatronEngineWithLMHead"),
        ("value_model", "MegatronEngineWithValueHead"),
    ):
        engine = _on_first_use(module.BaseEngine, "verl.workers.engine.megatron.transformer_impl", name)
        module.EngineRegistry.register(model_type, "megatron", device="cpu")(engine)


def _on_first_use(base: type, module: str, name: str) -> type:
    """A class that makes an instance of another one, which is imported only then: importing Megatron takes seconds."""

    class OnFirstUse(base):  # type: ignore[misc, valid-type]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return OnFirstUse


def _modular_moe(module: ModuleType) -> None:
    from verl_ext.integrations.vllm.cpu_moe import make_method

    module.UnquantizedFusedMoEMethod.register_oot(make_method(module.UnquantizedFusedMoEMethod))
