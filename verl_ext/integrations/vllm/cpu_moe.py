"""A modular mixture-of-experts layer in torch for vLLM's CPU build.

vLLM's own CPU kernel is monolithic: it routes inside, so the routed-experts hook is never called (the engine returns
correctly shaped zeros), and it repacks the expert weights into a layout that no weight update can reach. This one goes
through vLLM's modular kernel: the engine's router runs, its hook sees the routes, and the weights stay as loaded.

Registered through vLLM's own doors: `CustomOp.register_oot` for the method, `torch.library` for the two top-k kernels
that the CPU build lacks. Sums run in float32 in the order of the experts, like the transformers implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

_LIBRARY: list[torch.library.Library] = []


def _top_k(score: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """A kernel with the signature of vLLM's: chooses by score + bias, weighs by score.

    logits [T, E]; weights [T, K] and ids [T, K] are written; scores are float32.
    """

    def kernel(
        weights: torch.Tensor,
        ids: torch.Tensor,
        _token_expert: torch.Tensor,
        logits: torch.Tensor,
        renormalize: bool,
        bias: torch.Tensor | None,
    ) -> None:
        scores = score(logits.float())
        chosen = torch.topk(scores if bias is None else scores + bias.float(), k=ids.shape[-1], dim=-1).indices
        value = scores.gather(-1, chosen)
        if renormalize:
            value = value / value.sum(dim=-1, keepdim=True)
        weights.copy_(value)
        ids.copy_(chosen)

    return kernel


def register_kernels() -> None:
    """Define `_moe_C::topk_softmax` and `_moe_C::topk_sigmoid` for the CPU where the build has none."""
    kernels = {"topk_softmax": _top_k(lambda x: torch.softmax(x, dim=-1)), "topk_sigmoid": _top_k(torch.sigmoid)}
    missing = {name: kernel for name, kernel in kernels.items() if not hasattr(torch.ops._moe_C, name)}
    if not missing:
        return
    library = torch.library.Library("_moe_C", "FRAGMENT")
    for name, kernel in missing.items():
        library.define(
            f"{name}(Tensor(a!) weights, Tensor(b!) ids, Tensor token_expert, Tensor logits, bool renormalize, "
            "Tensor? bias) -> ()"
        )
        library.impl(name, kernel, "CPU")
    _LIBRARY.append(library)  # the definitions live as long as this object


def experts_forward(
    hidden: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    bias13: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gated-SiLU experts, one after another.

    Args:
        hidden: [T, H].
        w13: [E, 2*I, H], gate above up.
        w2: [E, H, I].
        weights: [T, K] float32, already normalised.
        ids: [T, K], -1 for an expert that lives on another rank.

    Returns:
        [T, H] float32.
    """
    out = torch.zeros(hidden.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        token, slot = (ids == expert).nonzero(as_tuple=True)
        both = F.linear(hidden[token], w13[expert], None if bias13 is None else bias13[expert])
        gate, up = both.chunk(2, dim=-1)
        value = F.linear(F.silu(gate) * up, w2[expert], None if bias2 is None else bias2[expert])
        out.index_add_(0, token, value.float() * weights[token, slot].float()[:, None])
    return out


def make_method(base: type) -> type:
    """The replacement for `UnquantizedFusedMoEMethod`. A function, because its base classes live in vLLM."""
    import vllm.model_executor.layers.fused_moe.modular_kernel as modular
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import make_unquantized_moe_kernel
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
    from vllm.v1.worker.workspace import init_workspace_manager, is_workspace_manager_initialized

    class TorchExperts(modular.FusedMoEExpertsModular):
        @staticmethod
        def activation_format() -> Any:
            return modular.FusedMoEActivationFormat.Standard

        @staticmethod
        def _supports_current_device() -> bool:
            return True

        @staticmethod
        def _supports_no_act_and_mul() -> bool:
            return False

        @staticmethod
        def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
            return weight_key is None and activation_key is None

        @staticmethod
        def _supports_activation(activation: Any) -> bool:
            return bool(activation == MoEActivation.SILU)

        @staticmethod
        def _supports_parallel_config(_config: Any) -> bool:
            return True

        def workspace_shapes(self, M: int, N: int, K: int, *_: Any) -> tuple[tuple[int, ...], ...]:
            return (0,), (0,), (M, K)

        def finalize_weight_and_reduce_impl(self) -> Any:
            return TopKWeightAndReduceNoOP()

        def apply(
            self,
            output: torch.Tensor,
            hidden_states: torch.Tensor,
            w1: torch.Tensor,
            w2: torch.Tensor,
            topk_weights: torch.Tensor,
            topk_ids: torch.Tensor,
            activation: Any,
            global_num_experts: int,
            expert_map: torch.Tensor | None,
            *_: Any,
            apply_router_weight_on_input: bool = False,
            **__: Any,
        ) -> None:
            if activation != MoEActivation.SILU or apply_router_weight_on_input:
                raise NotImplementedError(f"CPU experts: activation {activation}, weight on input")
            ids = topk_ids.long()
            if expert_map is not None:
                ids = expert_map.long()[ids]
            output.copy_(experts_forward(hidden_states, w1, w2, topk_weights, ids, self.w1_bias, self.w2_bias))

    class ModularCPUFusedMoEMethod(base):
        moe_kernel: Any

        def __init__(self, moe: Any):
            super().__init__(moe)
            register_kernels()
            # As the GPU workers do before they load a model; the CPU worker has no need of it without modular kernels.
            if not is_workspace_manager_initialized():
                init_workspace_manager(torch.device("cpu"))
            self.experts_cls = TorchExperts

        @property
        def is_monolithic(self) -> bool:
            return False

        def process_weights_after_loading(self, layer: Any) -> None:
            if self.moe_kernel is not None:
                return
            # Not `_setup_kernel`: it puts new parameters in the place of the loaded ones.
            self.moe_quant_config = self.get_fused_moe_quant_config(layer)
            self.moe_kernel = make_unquantized_moe_kernel(
                quant_config=self.moe_quant_config,
                moe_config=self.moe,
                backend=self.unquantized_backend,
                experts_cls=self.experts_cls,
                routing_tables=layer._expert_routing_tables(),
            )

    return ModularCPUFusedMoEMethod
