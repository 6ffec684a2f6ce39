"""What the Megatron engine needs installed, the switches of it that do nothing, and upstream defects it would meet."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from packaging.version import Version

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.preflight.engines import Engine, engine_model, megatron_engines
from verl_ext.preflight.layout import read_layout, read_shape
from verl_ext.preflight.replay import router_replay, router_replay_key
from verl_ext.view import ACTOR, View

INSTALL = (
    'pip install "verl-nereus[megatron]" && pip install --no-deps megatron-bridge==0.6.2 megatron-energon==7.4.1 '
    "nvidia-modelopt==0.44.0"
)

# Options of Megatron-Core that need a CUDA kernel or stream, or that its modules without Transformer Engine ignore.
CUDA_ONLY = (
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_fusion",
    "moe_shared_expert_overlap",
    "apply_rope_fusion",
    "masked_softmax_fusion",
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "persist_layer_norm",
    "cross_entropy_loss_fusion",
    "tp_comm_overlap",
    "overlap_p2p_comm",
    "batch_p2p_comm",
)


def installed(module: str) -> bool:
    """Whether a module can be found, without importing more than the namespace it is in."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def core_version() -> Version | None:
    try:
        return Version(importlib.metadata.version("megatron-core"))
    except importlib.metadata.PackageNotFoundError:
        return None


@refuses(
    Refusal(
        "`strategy=megatron` without `megatron-core` or `megatron-bridge`",
        because="fails to import in the worker",
        change="the message has the command; FSDP works without them",
    ),
)
def megatron_packages(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    found = megatron_engines(view)
    if not found:
        return
    needed = {"megatron-core": "megatron.core"}
    if not all(view(f"{engine.megatron}.vanilla_mbridge", False) for engine in found):
        needed["megatron-bridge"] = "megatron.bridge"
    missing = [name for name, module in needed.items() if not installed(module)]
    if missing:
        yield NereusError(
            f"training with Megatron needs {' and '.join(missing)}",
            where=f"{found[0].path}.strategy=megatron",
            expected="installed: " + ", ".join(needed),
            got="not installed: " + ", ".join(missing),
            change=f"{INSTALL}, or train with FSDP: model_engine=dp",
        )


@refuses(
    Refusal(
        "`megatron.use_mbridge=False`",
        because="stops in the worker",
        change="`megatron.use_mbridge=True`",
        evidence="`workers/engine/megatron/transformer_impl.py:191`",
    ),
    Refusal(
        "`megatron.use_remove_padding=False`",
        because="ignored: the model's key is written over it",
        change="`model.use_remove_padding=False`",
        evidence="`workers/engine_workers.py:114`",
    ),
    Refusal(
        "`override_transformer_config.calculate_per_token_loss=True` on padded batches",
        because="raises in the first update",
        change="`model.use_remove_padding=True`",
        evidence="`workers/engine/megatron/transformer_impl.py:1473`",
    ),
    Refusal(
        "`trainer.device=cpu` with `megatron.vanilla_mbridge=True`",
        because="it is Megatron-Bridge that nereus brings to the CPU",
        change="`megatron.vanilla_mbridge=False`",
    ),
    Refusal(
        "`trainer.device=cpu` with an option of `override_transformer_config` that needs CUDA: "
        "grouped GEMM, the fusions, the overlaps of communication, `persist_layer_norm`, "
        "`batch_p2p_comm`",
        because="fails on a kernel, or is ignored without Transformer Engine",
        change="without it",
    ),
)
def megatron_switches(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    for engine in megatron_engines(view):
        yield from _bridges(view, engine)
        yield from _padding(view, engine)
        if view("trainer.device") == "cpu":
            yield from _cuda_only(view, engine)


def _bridges(view: View, engine: Engine) -> Iterator[NereusError]:
    key = f"{engine.megatron}.use_mbridge"
    if not view(key, True):
        yield NereusError(
            "verl 0.9.1's Megatron engine has no way to load a model but through a bridge: it would stop in the worker",
            where=key,
            expected="True",
            got="False",
            change=view.override(key, True),
        )
    key = f"{engine.megatron}.vanilla_mbridge"
    if view("trainer.device") == "cpu" and view(key, False):
        yield NereusError(
            "the cpu platform trains through Megatron-Bridge, not through the older mbridge",
            where=key,
            expected="False",
            got="True",
            change=view.override(key, False),
        )


def _padding(view: View, engine: Engine) -> Iterator[NereusError]:
    """Both models of an engine have the switch; the model's is written over the engine's (engine_workers.py:114)."""
    ignored, read = f"{engine.megatron}.use_remove_padding", f"{engine.model}.use_remove_padding"
    if view(read, True) and not view(ignored, True):
        yield NereusError(
            f"verl 0.9.1 does not read {ignored}: it would remove the padding nevertheless",
            where=ignored,
            expected=f"False in {read}, the key that is read",
            got=f"{ignored}=False, {read}=True",
            change=f"{view.override(read, False)}, or {view.override(ignored, True)}",
        )
    key = f"{engine.megatron}.override_transformer_config.calculate_per_token_loss"
    if engine.trains and view(key, False) and not view(read, True):
        yield NereusError(
            "verl 0.9.1 has no loss per token on padded batches: it would raise in the first update",
            where=key,
            expected="False, or no padding",
            got=f"True, {read}=False",
            change=f"{view.override(read, True)}, or {view.override(key, False)}",
        )


def _cuda_only(view: View, engine: Engine) -> Iterator[NereusError]:
    for option in CUDA_ONLY:
        key = f"{engine.megatron}.override_transformer_config.{option}"
        if view(key, False):
            yield NereusError(
                f"the cpu platform has no {option}: it needs CUDA, or Megatron would ignore it",
                where=key,
                expected="False",
                got=str(view(key)),
                change=view.override(key, False),
            )


@refuses(
    Refusal(
        "`actor.megatron.router_replay.mode` with `model.use_remove_padding=False`",
        because="routes are aligned to packed sequences only: R2 replays those of other tokens, R3 raises late",
        change="`model.use_remove_padding=True`",
    ),
    Refusal(
        "Megatron-Core before 0.19, experts, TP of 2 or more, EP 1, expert TP 1",
        because="gradients of the experts are not summed over the tensor-parallel ranks",
        change="expert TP null, or Megatron-Core 0.19.2",
    ),
    Refusal(
        "a router that keeps some groups of experts, where `num_experts_per_tok // topk_group` is not"
        " what the model scores a group by: 2 (DeepSeek-V3), 1 (`group_limited_greedy`, DeepSeek-V2)",
        because="routes to other experts",
        change="`model_engine=dp`, or another model",
        evidence="`megatron/core/transformer/moe/moe_utils.py:656`",
    ),
)
def megatron_defects(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    found = megatron_engines(view)
    if Engine(ACTOR) in found:
        yield from _padded_replay(view, Engine(ACTOR))
    for engine in found:
        if engine.trains:
            yield from _unreduced_experts(view, engine)
            yield from _other_groups(view, engine)


def _padded_replay(view: View, engine: Engine) -> Iterator[NereusError]:
    mode, key = router_replay(view)[0], f"{engine.model}.use_remove_padding"
    if mode != "disabled" and not view(key, True):
        late = "R3 fails in the first forward pass" if mode == "R3" else "R2 would replay routes of other tokens"
        yield NereusError(
            f"verl 0.9.1 aligns recorded routes to packed sequences only; on padded batches {late}",
            where=key,
            expected=f"True with {router_replay_key(view)}={mode}",
            got="False",
            change=f"{view.override(key, True)}, or {router_replay_key(view)}=disabled",
        )


def _unreduced_experts(view: View, engine: Engine) -> Iterator[NereusError]:
    layout, version, model = read_layout(view, engine), core_version(), engine_model(view, engine)
    if layout.tp == 1 or layout.ep > 1 or layout.experts_tp > 1 or not model or not read_shape(model).experts:
        return
    if version is not None and version < Version("0.19"):
        key = f"{engine.megatron}.expert_tensor_parallel_size"
        yield NereusError(
            f"megatron-core {version} does not reduce the gradients of experts over the {layout.tp} tensor-parallel "
            "ranks that hold the same ones (fixed in 0.19.2)",
            where=key,
            expected=f"{layout.tp} (null), several expert-parallel ranks, or megatron-core 0.19.2",
            got="1",
            change=f"{view.override(key, 'null')}, or pip install megatron-core==0.19.2",
        )


def _other_groups(view: View, engine: Engine) -> Iterator[NereusError]:
    """Megatron scores a group by its best topk // group_topk experts (moe_utils.py:656); models have other rules."""
    model = engine_model(view, engine) or {}
    groups, kept, topk = (model.get(key) or 0 for key in ("n_group", "topk_group", "num_experts_per_tok"))
    if not kept or groups <= kept or not topk:  # every group is kept, so that no score of one matters
        return
    method = str(model.get("topk_method") or "noaux_tc")
    right = {"greedy": "all experts", "group_limited_greedy": "1"}.get(method, "2")
    if str(topk // kept) != right:
        yield NereusError(
            "Megatron-Core would route to other experts than the model was trained with: "
            f"it sums the best {topk // kept} scores of a group (num_experts_per_tok={topk} // topk_group={kept})",
            where=f"{engine.model}.path={view(f'{engine.model}.path')}",
            expected=f"the best {right} of each group (topk_method {method}, n_group={groups})",
            got=f"the best {topk // kept}",
            change="model_engine=dp, which trains with transformers' router",
        )
