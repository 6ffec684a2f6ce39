"""Settings that verl 0.9.1 accepts and does not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.preflight.inputs import model_config
from verl_ext.view import ACTOR, MODEL, ROLLOUT, View

CORRECTION = "algorithm.rollout_correction"

# Config keys under which the families name their number of routed experts.
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")

# What verl's main_ppo no longer reads -> what it reads instead. Its files still hold the old keys, so Hydra takes them.
MOVED = {
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model": "reward.reward_model",
}


def legacy_trainer(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if not view("trainer.use_v1", True):
        yield NereusError(
            "nereus extends verl's V1 trainers; the legacy trainer would run without it",
            where="trainer.use_v1",
            expected="True (verl's default)",
            got="False",
            change="trainer.use_v1=True, or run without +plugins=nereus",
        )


def rollout_engine(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if not view(f"{ROLLOUT}.name"):
        yield NereusError(
            "no rollout engine is named",
            where=f"{ROLLOUT}.name",
            expected="vllm or sglang",
            got="nothing",
            change=f"{ROLLOUT}.name=vllm",
        )


def legacy_reward_keys(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    for section in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        for path, value in _leaves(view(section, {}), section):
            new = _moved(path)
            yield NereusError(
                f"verl 0.9.1 no longer reads {path}",
                where=path,
                expected=f"{new}={value}",
                got=f"{path}={value}",
                change=f"write {view.override(new, value)} instead",
            )


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every set value below `node` as (dotted path, value)."""
    if isinstance(node, Mapping):
        for key in node:
            yield from _leaves(node[key], f"{path}.{key}")
    elif node is not None:
        yield path, node


def _moved(path: str) -> str:
    old = next(key for key in MOVED if path == key or path.startswith(key + "."))
    return MOVED[old] + path.removeprefix(old)


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


def lora_key(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    """FSDP and VeOmni read `model.lora_rank`, Megatron `model.lora.rank`; each ignores the other's."""
    strategy = str(view(f"{ACTOR}.strategy", ""))
    megatron = strategy == "megatron"
    read, other = ("lora.rank", "lora_rank") if megatron else ("lora_rank", "lora.rank")
    if int(view(f"{MODEL}.{read}", 0)) > 0:
        return
    given = {key: view(f"{MODEL}.{key}") for key in (other, "lora_adapter_path", "lora.adapter_path")}
    named = [f"{MODEL}.{key}={value}" for key, value in given.items() if value]
    if named:
        rank = int(given[other] or 0) or "RANK"
        yield NereusError(
            f"{strategy} would train without this adapter",
            where=named[0].split("=")[0],
            expected=f"the rank in {MODEL}.{read}, the one key that {strategy} reads",
            got=", ".join(named),
            change=view.override(f"{MODEL}.{read}", rank),
        )


def lora_delivery(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    rank = int(view(f"{MODEL}.lora.rank", 0)) or int(view(f"{MODEL}.lora_rank", 0))
    backend, mode = str(view(f"{ROLLOUT}.checkpoint_engine.backend", "naive")), str(view("trainer.v1.trainer_mode", ""))
    if rank > 0 and not view(f"{MODEL}.lora.merge", False) and (backend != "naive" or mode == "separate_async"):
        merge = view.override(f"{MODEL}.lora.merge", True)
        if mode == "separate_async":  # which cannot do without another backend
            change = merge
        else:
            change = f"{ROLLOUT}.checkpoint_engine.backend=naive, or {merge}"
        yield NereusError(
            "the adapter would never reach the rollout",
            where=f"{ROLLOUT}.checkpoint_engine.backend={backend}, trainer.v1.trainer_mode={mode}",
            expected="merged weights, or a colocated trainer with the naive backend (verl issue 7495)",
            got=f"LoRA rank {rank} with {MODEL}.lora.merge=False",
            change=change,
        )


def bypass_drops_correction(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    named = {key: view(f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs")}
    named = {key: value for key, value in named.items() if value is not None}
    if view(f"{CORRECTION}.loss_type", "ppo_clip") != "ppo_clip":
        named["loss_type"] = view(f"{CORRECTION}.loss_type")
    if not view(f"{CORRECTION}.bypass_mode", False) or not named:
        return
    # The one way to have them: the loss that computes them itself, with a copy of the settings where the worker looks.
    loss = f"{ACTOR}.policy_loss"
    if view(f"{loss}.loss_mode") == "bypass_mode" and all(
        view(f"{loss}.rollout_correction.{key}") == value for key, value in named.items()
    ):
        return
    yield NereusError(
        "bypass mode drops importance sampling and rejection in verl's V1 trainer",
        where=f"{CORRECTION}.bypass_mode",
        expected="bypass_mode=False together with rollout_is or rollout_rs",
        got="bypass_mode=True, " + ", ".join(f"{key}={value}" for key, value in named.items()),
        change=f"{CORRECTION}.bypass_mode=False",
    )


def correction_needs_log_probs(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view(f"{ROLLOUT}.calculate_log_probs", False):
        return
    for key in ("rollout_is", "rollout_rs", "bypass_mode"):
        value = view(f"{CORRECTION}.{key}")
        if value:
            yield NereusError(
                "rollout correction is set and the rollout's log-probs are not calculated",
                where=f"{CORRECTION}.{key}={value}",
                expected=f"{ROLLOUT}.calculate_log_probs=True",
                got="False: verl would skip the correction, and bypass mode would have nothing to copy",
                change=f"{ROLLOUT}.calculate_log_probs=True",
            )


def prefix_grouper(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view(f"{ACTOR}.use_prefix_grouper", False):
        yield NereusError(
            "use_prefix_grouper has no effect in verl 0.9.1: nothing calls it",
            where=f"{ACTOR}.use_prefix_grouper",
            expected="False",
            got="True",
            change=f"{ACTOR}.use_prefix_grouper=False",
        )


def fp8_kv_cache(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    engine = str(view(f"{ROLLOUT}.name", "vllm"))
    for key, value in view(f"{ROLLOUT}.engine_kwargs.{engine}", {}).items():
        # Either becomes an argument of the engine's command line, where a dash is as good as an underscore.
        if str(key).replace("-", "_") == "kv_cache_dtype" and _needs_scales(str(value)):
            yield NereusError(
                "the FP8 KV cache would run with scales of 1.0, or with those of the dummy weights it was started with",
                where=f"{ROLLOUT}.engine_kwargs.{engine}.{key}",
                expected="scales calibrated on the current weights, which neither verl 0.9.1 nor this nereus has",
                got=str(value),
                change=f"{ROLLOUT}.engine_kwargs.{engine}.{key}=auto",
            )


def _needs_scales(kind: str) -> bool:
    # The last two carry the scale of every token, computed as it is written.
    return kind.startswith(("fp8", "fp4", "nvfp4")) and not kind.endswith(("_per_token_head", "_ds_mla"))


def disaggregated_prefill(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view(f"{ROLLOUT}.disaggregation.enabled", False):
        yield NereusError(
            "nereus cannot ask the processes of a prefill/decode replica what is active in them",
            where=f"{ROLLOUT}.disaggregation.enabled",
            expected="False",
            got="True",
            change=f"{ROLLOUT}.disaggregation.enabled=False, or run without +plugins=nereus",
        )
