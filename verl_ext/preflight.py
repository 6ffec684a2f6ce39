"""Refuse what verl 0.9.1 would accept and silently not do.

Every check is a pure function of the composed config (and of the model's config.json where one is on disk): it returns
findings, it changes nothing. `check` raises the first one. Facts and line numbers are in `docs/refusals.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError

# Config keys under which the families name their number of routed experts.
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def check(config: Any, options: NereusOptions) -> None:
    """Raise NereusError at the first combination that verl would silently ignore, or an input that cannot be used.

    Args:
        config: verl's composed config, as nested mappings with attribute access or plain dicts.
        options: nereus's own, checked.
    """
    view = View(config)
    for rule in RULES:
        for finding in rule(view, options):
            raise finding


class View:
    """Read-only look-up by dotted path in a config that may lack any of it."""

    def __init__(self, config: Any):
        self._config = config

    def __call__(self, path: str, default: Any = None) -> Any:
        node = self._config
        for part in path.split("."):
            if node is None or not isinstance(node, Mapping) and not hasattr(node, "get"):
                return default
            node = node.get(part)
        return default if node is None else node


Rule = Callable[[View, NereusOptions], Iterator[NereusError]]

ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"


def router_replay_mode(view: View) -> str:
    """verl's own router replay mode for the chosen engine: disabled, R2 or R3."""
    strategy = view(f"{ACTOR}.strategy", "")
    section = "fsdp_config" if strategy.startswith("fsdp") else strategy
    return str(view(f"{ACTOR}.{section}.router_replay.mode", "disabled"))


def local_model_config(view: View) -> dict[str, Any] | None:
    """The model's config.json when the model is a local folder, else None."""
    file = Path(str(view(f"{MODEL}.path", ""))).expanduser() / "config.json"
    if not file.is_file():
        return None
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def expert_count(model: Mapping[str, Any]) -> int:
    """Number of routed experts a layer; 0 for a dense model. Looks into the text part of multimodal configs."""
    for part in (model, model.get("text_config") or {}):
        for key in EXPERT_KEYS:
            if part.get(key):
                return int(part[key])
    return 0


def nereus_router_replay(_view: View, options: NereusOptions) -> Iterator[NereusError]:
    if options.routing.mode != "off":
        yield NereusError(
            "nereus's router replay is not in this version",
            where="nereus.routing.mode",
            expected="off",
            got=options.routing.mode,
            change="nereus.routing.mode=off; with Megatron verl's own R3 is "
            "actor_rollout_ref.actor.megatron.router_replay.mode=R3 "
            "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
        )


def replay_needs_experts(view: View, options: NereusOptions) -> Iterator[NereusError]:
    wanted = options.routing.mode != "off" or router_replay_mode(view) != "disabled"
    wanted = wanted or bool(view(f"{ROLLOUT}.enable_rollout_routing_replay", False))
    model = local_model_config(view) if wanted else None
    if model is not None and expert_count(model) == 0:
        yield NereusError(
            "router replay is on and the model has no experts",
            where=f"{MODEL}.path={view(f'{MODEL}.path')}",
            expected="a mixture-of-experts model (" + ", ".join(EXPERT_KEYS) + " in config.json)",
            got=f"{model.get('model_type', 'unknown type')} without experts",
            change="switch router replay off, or give the path of a mixture-of-experts model",
        )


def replay_engine(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    strategy, mode = view(f"{ACTOR}.strategy", ""), router_replay_mode(view)
    captured = bool(view(f"{ROLLOUT}.enable_rollout_routing_replay", False))
    if strategy in ("megatron", "veomni"):
        return
    if mode != "disabled" or captured:
        yield NereusError(
            f"verl has no router replay on {strategy}: it would ignore this",
            where=f"{ACTOR}.strategy={strategy}",
            expected="megatron or veomni with verl's router replay",
            got=f"router_replay.mode={mode}, enable_rollout_routing_replay={captured}",
            change="switch both off, or train with model_engine=megatron",
        )


def replay_switches(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    mode, captured = router_replay_mode(view), bool(view(f"{ROLLOUT}.enable_rollout_routing_replay", False))
    if (mode == "R3") != captured and view(f"{ACTOR}.strategy") in ("megatron", "veomni"):
        yield NereusError(
            "the two switches of R3 disagree",
            where=f"{ACTOR}.{view(f'{ACTOR}.strategy')}.router_replay.mode and {ROLLOUT}.enable_rollout_routing_replay",
            expected="R3 and True, or neither",
            got=f"{mode} and {captured}",
            change=f"{ROLLOUT}.enable_rollout_routing_replay={mode == 'R3'}",
        )


def lora_delivery(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    rank = int(view(f"{MODEL}.lora.rank", 0) or view(f"{MODEL}.lora_rank", 0) or 0)
    backend = str(view(f"{ROLLOUT}.checkpoint_engine.backend", "naive"))
    separate = view("trainer.v1.trainer_mode") == "separate_async"
    if rank > 0 and not view(f"{MODEL}.lora.merge", False) and (backend != "naive" or separate):
        yield NereusError(
            "the adapter would never reach the rollout",
            where=f"{ROLLOUT}.checkpoint_engine.backend={backend}, trainer.v1.trainer_mode="
            f"{view('trainer.v1.trainer_mode')}",
            expected="merged weights, or a colocated trainer with the naive backend (verl issue 7495)",
            got=f"LoRA rank {rank} with {MODEL}.lora.merge=False",
            change=f"{MODEL}.lora.merge=True, or trainer.v1.trainer_mode=sync with {ROLLOUT}.checkpoint_engine"
            ".backend=naive",
        )


def bypass_drops_correction(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    settings = {key: view(f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs")}
    named = {key: value for key, value in settings.items() if value not in (None, "null")}
    if view("trainer.use_v1", True) and view(f"{CORRECTION}.bypass_mode", False) and named:
        yield NereusError(
            "bypass mode drops importance sampling and rejection in verl's V1 trainer",
            where=f"{CORRECTION}.bypass_mode",
            expected="bypass_mode=False together with rollout_is or rollout_rs",
            got="bypass_mode=True, " + ", ".join(f"{key}={value}" for key, value in named.items()),
            change=f"{CORRECTION}.bypass_mode=False",
        )


def correction_needs_log_probs(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    for key in ("rollout_is", "rollout_rs"):
        value = view(f"{CORRECTION}.{key}")
        if value not in (None, "null") and not view(f"{ROLLOUT}.calculate_log_probs", False):
            yield NereusError(
                "importance correction is set and the rollout's log-probs are not calculated",
                where=f"{CORRECTION}.{key}={value}",
                expected=f"{ROLLOUT}.calculate_log_probs=True",
                got="False: verl would skip the correction",
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
    kwargs = view(f"{ROLLOUT}.engine_kwargs.{engine}", {}) or {}
    kind = str(kwargs.get("kv_cache_dtype") or "auto")
    if kind.startswith("fp8"):
        yield NereusError(
            "the FP8 KV cache would run with scales of 1.0, or with scales of the dummy weights it was started with",
            where=f"{ROLLOUT}.engine_kwargs.{engine}.kv_cache_dtype",
            expected="scales calibrated on the current weights; verl 0.9.1 has none and this version of nereus neither",
            got=kind,
            change=f"{ROLLOUT}.engine_kwargs.{engine}.kv_cache_dtype=auto",
        )


def disaggregated_prefill(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view(f"{ROLLOUT}.disaggregation.enabled", False):
        yield NereusError(
            "nereus cannot ask the processes of a prefill/decode replica what is active in them",
            where=f"{ROLLOUT}.disaggregation.enabled",
            expected="False",
            got="True",
            change=f"{ROLLOUT}.disaggregation.enabled=False, or run without +plugins=nereus",
        )


def legacy_trainer(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if not view("trainer.use_v1", True):
        yield NereusError(
            "nereus extends verl's V1 trainers; the legacy trainer would run without it",
            where="trainer.use_v1",
            expected="True (verl's default)",
            got="False",
            change="trainer.use_v1=True, or run without +plugins=nereus",
        )


def readable_inputs(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    model = str(view(f"{MODEL}.path", ""))
    if _looks_local(model) and not (Path(model).expanduser() / "config.json").is_file():
        yield NereusError(
            "the model cannot be read",
            where=f"{MODEL}.path",
            expected="a folder with config.json, or the name of a model on a hub",
            got=f"{model} ({'no config.json in it' if Path(model).expanduser().is_dir() else 'no such folder'})",
            change=f"{MODEL}.path=FOLDER",
        )
    for key in ("data.train_files", "data.val_files"):
        files = view(key, [])
        for name in [files] if isinstance(files, str) else list(files):
            yield from _readable(key, str(name))


def _looks_local(path: str) -> bool:
    return path.startswith(("/", ".", "~"))


def _readable(key: str, name: str) -> Iterator[NereusError]:
    file = Path(name).expanduser()
    if "://" in name:
        return
    problem = None
    if not file.exists():
        problem = "no such file"
    elif file.is_file():
        try:
            with file.open("rb") as opened:
                magic = opened.read(4)
        except OSError as error:
            problem = str(error)
        else:
            if file.suffix == ".parquet" and magic != b"PAR1":
                problem = "not a parquet file"
    if problem:
        yield NereusError(
            "a data file cannot be read",
            where=key,
            expected="a readable parquet or json file",
            got=f"{name} ({problem})",
            change=f"{key}=FILE",
        )


def cpu_platform(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view("trainer.device") != "cpu":
        return
    wanted: dict[str, Any] = {
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.free_cache_engine": False,
        f"{ROLLOUT}.enable_sleep_mode": False,
    }
    for key, value in wanted.items():
        if view(key, True if "sleep" in key else None) != value:
            yield NereusError(
                "vLLM's CPU build has no CUDA graphs and no sleep mode",
                where=key,
                expected=str(value),
                got=str(view(key)),
                change=f"{key}={value}",
            )


RULES: tuple[Rule, ...] = (
    legacy_trainer,
    readable_inputs,
    replay_needs_experts,
    nereus_router_replay,
    replay_engine,
    replay_switches,
    lora_delivery,
    bypass_drops_correction,
    correction_needs_log_probs,
    prefix_grouper,
    fp8_kv_cache,
    disaggregated_prefill,
    cpu_platform,
)
