"""What Megatron-Core, Megatron-Bridge and verl's Megatron engine have no door for on the cpu platform."""

from __future__ import annotations

import builtins
import functools
import importlib
import types
from types import ModuleType
from typing import Any, ClassVar

from verl_ext.compat.touch import Door, rebind
from verl_ext.compat.versions import find_named
from verl_ext.feature import Feature
from verl_ext.integrations.cpu.megatron.cuda import (
    CudaDevice,
    CudaTensors,
    GlooGroups,
    MegatronPatch,
)

CORE = {"megatron-core": ">=0.18.2,<0.20"}
BRIDGE = {"megatron-bridge": ">=0.5.1,<0.7"}


class CpuGenerator(MegatronPatch):
    name = "megatron-cpu-generator"
    target = "megatron.core.tensor_parallel.random:_set_cuda_rng_state"
    why = "The state of the model-parallel generators is set by a callback that waits until CUDA is initialised."
    upstream = "megatron-core 0.18.2 and 0.19.2 tensor_parallel/random.py"
    remove_when = "Megatron-Core keeps its generators for the device in use"
    versions = CORE
    fingerprints = ("b179c9d95438",)

    def replace(self, module: Any) -> None:
        import torch

        module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
        module._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: torch.set_rng_state(new_state)


class RecomputeWithoutEngine(MegatronPatch):
    name = "megatron-cpu-recompute"
    target = "megatron.core.tensor_parallel.random:CheckpointWithoutOutput"
    why = "Selective recomputation uses names of Transformer Engine that exist only where it is installed."
    upstream = "megatron-core 0.18.2 and 0.19.2 tensor_parallel/random.py, CheckpointWithoutOutput"
    remove_when = "CheckpointWithoutOutput asks for HAVE_TE itself"
    versions = CORE
    fingerprints = ("f4ae31c073b4",)

    def replace(self, module: Any) -> None:
        import contextlib

        if module.HAVE_TE:
            return
        module.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
        module.activation_recompute_forward = lambda **_: contextlib.nullcontext()
        module.fp8_autocast = lambda **_: contextlib.nullcontext()


class SplitSizesOnCpu(MegatronPatch):
    name = "megatron-cpu-split-sizes"
    target = "megatron.core.transformer.moe.moe_utils:maybe_move_tensor_to_cpu"
    why = "Split sizes of the token exchange stay tensors when they are on the CPU already; gloo wants integers."
    upstream = "megatron-core 0.18.2 and 0.19.2 transformer/moe/moe_utils.py: as_numpy only where tensor.is_cuda"
    remove_when = "as_numpy does not depend on the device"
    versions = CORE
    fingerprints = ("8fc5847a887d",)

    def replace(self, module: Any) -> None:
        import torch

        original = module.maybe_move_tensor_to_cpu

        def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
            if not torch.is_tensor(tensor):
                return tensor
            return tensor.detach().numpy() if as_numpy else tensor.detach()

        module.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu
        rebind(
            original.__name__, original, maybe_move_tensor_to_cpu, ("megatron.core.transformer.moe.token_dispatcher",)
        )


class UnevenGather(MegatronPatch):
    name = "megatron-cpu-uneven-gather"
    target = "megatron.core.tensor_parallel.mappings:_gather_along_first_dim"
    why = "With expert tensor parallelism ranks hold different numbers of rows; gloo gathers equal ones only."
    upstream = "torch 2.11 gloo: all_gather of unequal tensors; megatron-core tensor_parallel/mappings.py"
    remove_when = "gloo gathers tensors of unequal size"
    versions = CORE
    fingerprints = ("44633fe36d60",)

    def replace(self, module: Any) -> None:
        import torch

        even = module._gather_along_first_dim

        def _gather_along_first_dim(
            input_: Any, group: Any, output_split_sizes: Any = None, use_global_buffer: bool = False
        ) -> Any:
            if output_split_sizes is None or group.size() == 1:
                return even(input_, group, output_split_sizes, use_global_buffer)
            sizes = [int(size) for size in output_split_sizes]
            padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
            padded[: input_.shape[0]] = input_
            parts = [torch.empty_like(padded) for _ in sizes]
            torch.distributed.all_gather(parts, padded, group=group)
            return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

        module._gather_along_first_dim = _gather_along_first_dim


class DuplicatedDownProjection(MegatronPatch):
    name = "megatron-cpu-duplicated-down-projection"
    target = "megatron.core.transformer.multi_latent_attention:MLASelfAttention.__init__"
    why = (
        "The local spec gathers MLA's column-parallel down-projection: with TP > 1 the gradient of k_pos_emb misses "
        "the other ranks' heads. As on GPUs, the layer is whole on every rank; its class has to be one MLA knows."
    )
    upstream = "megatron-core 0.18.2 and 0.19.2 transformer/multi_latent_attention.py; no report found"
    remove_when = "Megatron-Core's local spec has a duplicated linear layer"
    versions = CORE
    fingerprints = ("de9041f3b07b", "356c54b1fcd3")

    def replace(self, module: Any) -> None:
        if module.HAVE_TE:
            return
        from verl_ext.integrations.cpu.megatron.layers import DuplicatedLinear

        module.TELinear = DuplicatedLinear


class PlainQueryProjection(MegatronPatch):
    name = "megatron-cpu-plain-query-projection"
    target = "megatron.core.transformer.mla_qk_norm_config:QKNormConfigResolver._mla_fused_linear_or_default"
    why = (
        "MLA without a query down-projection (Moonlight) is refused unless the query projection holds a norm, which "
        "such models do not have and only Transformer Engine offers."
    )
    upstream = "megatron-core 0.19.2 transformer/mla_qk_norm_config.py; not in 0.18.2; no report found"
    remove_when = "qk_layernorm with q_lora_rank=None takes a plain linear_q_proj"
    versions: ClassVar[dict[str, str]] = {"megatron-core": "==0.19.2"}
    fingerprints = ("2946948713f9",)
    roles = frozenset()  # the module is new in 0.19; where this is missing, Megatron-Core raises

    def replace(self, module: Any) -> None:
        resolver = module.QKNormConfigResolver
        original = resolver._mla_fused_linear_or_default

        def _mla_fused_linear_or_default(self, module_spec: Any, module_name: str) -> Any:  # type: ignore[no-untyped-def]
            if module_name == "linear_q_proj" and self.fused_norm_linear_impl is None:
                return module_spec or self.linear_impl
            return original(self, module_spec, module_name)

        resolver._mla_fused_linear_or_default = _mla_fused_linear_or_default


class AdaptersWithoutEngine(MegatronPatch):
    name = "megatron-cpu-adapters-without-engine"
    target = "megatron.bridge.peft.lora_layers:*"
    before = True
    why = "Megatron-Bridge's LoRA layers import Transformer Engine without asking whether it is there."
    upstream = "megatron-bridge 0.5.1 and 0.6.2 peft/lora_layers.py; no report found"
    remove_when = "peft/lora_layers.py imports without Transformer Engine"
    versions = BRIDGE
    fingerprints = ("56a2bc14a6cd", "b8d2233340cf")
    roles = frozenset()

    def replace(self, module: Any) -> None:
        see_stub_engine(module)


class AdaptersWithoutEngine05(AdaptersWithoutEngine):
    name = "megatron-cpu-adapters-without-engine-in-0-5"
    target = "megatron.bridge.peft.lora:*"
    versions: ClassVar[dict[str, str]] = {"megatron-bridge": "==0.5.1"}
    fingerprints = ("3085edc16552", "b8596ed74fb9")


def see_stub_engine(module: ModuleType) -> None:
    """Let this module, and no other, import a `transformer_engine` that has the names but no layers."""
    import torch

    class Absent(torch.nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("transformer_engine is not installed")

    pytorch = types.ModuleType("transformer_engine.pytorch")
    for name in ("Linear", "LayerNormLinear", "GroupedLinear", "LayerNorm", "RMSNorm"):
        setattr(pytorch, name, type(name, (Absent,), {}))
    pytorch.ops = types.SimpleNamespace(Sequential=type("Sequential", (Absent,), {}))  # type: ignore[attr-defined]
    engine = types.ModuleType("transformer_engine")
    engine.pytorch = pytorch  # type: ignore[attr-defined]

    def import_(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "transformer_engine":
            return engine
        return builtins.__import__(name, *args, **kwargs)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}


class AdaptersOfLocalLayers(MegatronPatch):
    name = "megatron-cpu-adapters-of-local-layers"
    target = "megatron.bridge.peft.utils:get_adapter_attributes_from_linear"
    why = (
        "Without Transformer Engine its layer classes are stand-ins that isinstance() cannot take, and the duplicated "
        "linear layer of the cpu platform is unknown."
    )
    upstream = "megatron-bridge 0.5.1 and 0.6.2 peft/utils.py, HAVE_TE; no report found"
    remove_when = "HAVE_TE is False where Transformer Engine is absent, and layer types can be registered"
    versions = BRIDGE
    fingerprints = ("15fb2eeae5fa", "5491566699c8")
    roles = frozenset()

    def replace(self, module: Any) -> None:
        for name in dir(module):
            if name.startswith("HAVE_TE"):
                setattr(module, name, False)
        original = module.get_adapter_attributes_from_linear

        @functools.wraps(original)
        def get_adapter_attributes_from_linear(layer: Any, *args: Any, **kwargs: Any) -> Any:
            from verl_ext.integrations.cpu.megatron.layers import DuplicatedLinear

            if not isinstance(layer, DuplicatedLinear):
                return original(layer, *args, **kwargs)
            return module.AdapterAttributes(
                input_is_parallel=False,
                in_features=layer.in_features,
                out_features=layer.out_features,
                disable_tensor_parallel_comm=True,
                disable_sequence_parallel_comm=True,
                base_linear_is_parallel=False,
            )

        module.get_adapter_attributes_from_linear = get_adapter_attributes_from_linear
        rebind(
            original.__name__,
            original,
            get_adapter_attributes_from_linear,
            tuple(f"megatron.bridge.peft.{name}" for name in ("lora", "canonical_lora", "dora")),
        )


class LocalProvider(MegatronPatch):
    name = "megatron-cpu-local-provider"
    target = "megatron.bridge.models.conversion.auto_bridge:AutoBridge.to_megatron_provider"
    why = "Megatron-Bridge builds models from Transformer Engine's layers; here they come from `spec.decoder_spec`."
    upstream = "megatron-bridge 0.5.1 and 0.6.2 models/conversion/auto_bridge.py"
    remove_when = "AutoBridge takes a layer spec"
    versions = BRIDGE
    fingerprints = ("e97d2ea6ff04", "69ca32cc895c")

    def replace(self, module: Any) -> None:
        from megatron.bridge.models.conversion.param_mapping import AutoMapping

        original = module.AutoBridge.to_megatron_provider

        def to_megatron_provider(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[no-untyped-def]
            from verl_ext.integrations.cpu.megatron.spec import localize

            provider = original(self, *args, **kwargs)
            localize(provider)
            return provider

        module.AutoBridge.to_megatron_provider = to_megatron_provider
        AutoMapping.register_module_type("DuplicatedLinear", "replicated")


class Float32Engine(MegatronPatch):
    name = "megatron-cpu-float32-engine"
    target = "verl.workers.config.engine:McoreEngineConfig.__post_init__"
    why = "verl's Megatron engine config takes bfloat16 and float16 only; exact comparisons on a CPU need float32."
    upstream = "verl 0.9.1 workers/config/engine.py, assert on dtype"
    remove_when = "McoreEngineConfig takes float32 as well"
    versions: ClassVar[dict[str, str]] = {"verl": "==0.9.1"}
    fingerprints = ("18f188102322",)

    def replace(self, module: Any) -> None:
        original = module.McoreEngineConfig.__post_init__

        def __post_init__(self) -> None:  # type: ignore[no-untyped-def]
            dtype = self.dtype
            if dtype != "float32":
                original(self)
                return
            object.__setattr__(self, "dtype", "bfloat16")
            try:
                original(self)
            finally:
                object.__setattr__(self, "dtype", dtype)

        module.McoreEngineConfig.__post_init__ = __post_init__


class Engines(Door):
    name = "verl-cpu-megatron-engines"
    target = "verl.workers.engine.base:EngineRegistry.register"
    why = "verl registers its Megatron engines for the devices cuda and npu only, where it imports them."
    upstream = "verl 0.9.1 workers/engine/base.py, EngineRegistry"
    remove_when = "the Megatron engines are registered for the CPU"
    versions: ClassVar[dict[str, str]] = {"verl": "==0.9.1"}
    fingerprints = ("6fd795c7149c",)
    changes = ("verl.workers.engine.base:EngineRegistry._engines",)

    def apply(self, module: Any) -> None:
        for model_type, name in (
            ("language_model", "MegatronEngineWithLMHead"),
            ("value_model", "MegatronEngineWithValueHead"),
        ):
            engine = on_first_use(module.BaseEngine, "verl.workers.engine.megatron.transformer_impl", name)
            module.EngineRegistry.register(model_type, "megatron", device="cpu")(engine)


def on_first_use(base: type, module: str, name: str) -> type:
    """A class that makes an instance of another one, which is imported only then: importing Megatron takes seconds."""

    class OnFirstUse(base):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return OnFirstUse


def problem() -> str:
    """For `nereus doctor`."""
    missing = [name for name in ("megatron-core", "megatron-bridge") if find_named(name).version is None]
    return f'needs pip install "verl-nereus[megatron]" ({", ".join(missing)})' if missing else ""


FEATURE = Feature(
    name="megatron on cpu",
    summary="Megatron-Core through Megatron-Bridge on a CPU: `make demo ENGINE=megatron`",
    state="works with one process; layouts with more ranks are not proven yet",
    tested="end to end on CPU, 1 worker; one training step against transformers with TP 1 and 2",
    on=lambda run: run.platform == "cpu" and "megatron" in run.engines.values(),
    touches=(
        Engines,
        CudaDevice,
        CudaTensors,
        GlooGroups,
        CpuGenerator,
        RecomputeWithoutEngine,
        SplitSizesOnCpu,
        UnevenGather,
        DuplicatedDownProjection,
        PlainQueryProjection,
        AdaptersWithoutEngine,
        AdaptersWithoutEngine05,
        AdaptersOfLocalLayers,
        LocalProvider,
        Float32Engine,
    ),
    doctor=f"{__name__}:problem",
)
