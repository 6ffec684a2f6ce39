"""verl's own router replay where it would be ignored, and what tells whether there is anything to replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.preflight.inputs import model_config
from verl_ext.view import ACTOR, MODEL, ROLLOUT, View

# Config keys under which the families name their number of routed experts.
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def router_replay_key(view: View) -> str:
    """The key of verl's own router replay mode for the chosen training engine."""
    strategy = str(view(f"{ACTOR}.strategy", ""))
    section = "fsdp_config" if strategy.startswith("fsdp") else strategy
    return f"{ACTOR}.{section}.router_replay.mode"


def router_replay(view: View) -> tuple[str, bool]:
    """verl's two switches: the trainer's mode (disabled, R2 or R3), and whether the rollout records routes."""
    mode = str(view(router_replay_key(view), "disabled"))
    return mode, bool(view(f"{ROLLOUT}.enable_rollout_routing_replay", False))


def expert_count(model: Mapping[str, Any]) -> int:
    """Number of routed experts a layer; 0 for a dense model. Looks into the text part of multimodal configs."""
    for key in EXPERT_KEYS:
        value = model.get(key)
        counts = value if isinstance(value, list) else [value]
        if any(isinstance(count, int) and count > 0 for count in counts):
            return max(count for count in counts if isinstance(count, int))
    parts = [value for key, value in model.items() if isinstance(value, dict) and "vision" not in key]
    return max((expert_count(part) for part in parts), default=0)


@refuses(
    Refusal(
        "any of these, or `nereus.routing.mode`, on a dense model",
        because="there is nothing to replay",
        change="switch it off, or another model",
    ),
)
def replay_needs_experts(view: View, options: NereusOptions) -> Iterator[NereusError]:
    mode, recorded = router_replay(view)
    wanted = options.routing.mode != "off" or mode != "disabled" or recorded
    model = model_config(view) if wanted else None
    if model is not None and expert_count(model) == 0:
        asked = {
            "nereus.routing.mode=off": options.routing.mode != "off",
            f"{router_replay_key(view)}=disabled": mode != "disabled",
            f"{ROLLOUT}.enable_rollout_routing_replay=False": recorded,
        }
        yield NereusError(
            "router replay is on and the model has no experts",
            where=f"{MODEL}.path={view(f'{MODEL}.path')}",
            expected="a mixture-of-experts model (" + ", ".join(EXPERT_KEYS) + " in config.json)",
            got=f"{model.get('model_type', 'unknown type')} without experts",
            change=" ".join(key for key, on in asked.items() if on)
            + f", or give the path of a mixture-of-experts model with {MODEL}.path=FOLDER",
        )


@refuses(
    Refusal(
        "`actor.fsdp_config.router_replay.mode`, or `rollout.enable_rollout_routing_replay`, on an "
        "engine other than Megatron and VeOmni",
        because="takes every other strategy as `disabled`; the field exists on all engines because they share"
        " a dataclass",
        change="switch it off, or `model_engine=megatron`",
        evidence="`workers/engine_workers.py:499-505`",
    ),
)
def replay_engine(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    strategy, (mode, recorded) = str(view(f"{ACTOR}.strategy", "")), router_replay(view)
    if strategy not in ("megatron", "veomni") and (mode != "disabled" or recorded):
        off = [f"{router_replay_key(view)}=disabled"] if mode != "disabled" else []
        off += [f"{ROLLOUT}.enable_rollout_routing_replay=False"] if recorded else []
        yield NereusError(
            f"verl has no router replay on {strategy}: it would ignore this",
            where=f"{ACTOR}.strategy={strategy}",
            expected="megatron or veomni with verl's router replay",
            got=f"router_replay.mode={mode}, enable_rollout_routing_replay={recorded}",
            change=f"{' '.join(off)}, or train with model_engine=megatron",
        )


@refuses(
    Refusal(
        "`rollout.enable_rollout_routing_replay` with a rollout other than vLLM and SGLang",
        because="nothing reads it there (`workers/rollout/trtllm_rollout/` has no code for it)",
        change="`rollout.name=vllm`",
    ),
)
def replay_rollout(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    engine, (_mode, recorded) = str(view(f"{ROLLOUT}.name", "")), router_replay(view)
    if recorded and engine not in ("vllm", "sglang"):
        yield NereusError(
            f"verl cannot get routes from {engine}: it would ignore this",
            where=f"{ROLLOUT}.enable_rollout_routing_replay",
            expected="vllm or sglang as the rollout engine of R3",
            got=f"{ROLLOUT}.name={engine}",
            change=f"{ROLLOUT}.name=vllm, or {ROLLOUT}.enable_rollout_routing_replay=False",
        )


@refuses(
    Refusal(
        "`actor.megatron.router_replay.mode=R3` without `rollout.enable_rollout_routing_replay`",
        because="generates a whole batch, then fails in the first forward pass",
        change="`rollout.enable_rollout_routing_replay=True`",
        evidence="`workers/engine/megatron/transformer_impl.py:1312`",
    ),
    Refusal(
        "the other way round",
        because="records and ships the routes of every token, and drops them",
        change="`rollout.enable_rollout_routing_replay=False`",
    ),
)
def replay_switches(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    mode, recorded = router_replay(view)
    if (mode == "R3") != recorded and view(f"{ACTOR}.strategy") in ("megatron", "veomni"):
        yield NereusError(
            "the two switches of R3 disagree",
            where=f"{router_replay_key(view)} and {ROLLOUT}.enable_rollout_routing_replay",
            expected="R3 and True, or neither",
            got=f"{mode} and {recorded}",
            change=f"{ROLLOUT}.enable_rollout_routing_replay={mode == 'R3'}",
        )
