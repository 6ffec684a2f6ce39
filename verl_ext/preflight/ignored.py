"""Settings that verl 0.9.1 accepts and does not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.view import ACTOR, MODEL, ROLLOUT, View

CORRECTION = "algorithm.rollout_correction"

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


@refuses(
    Refusal(
        "`trainer.use_v1=False`",
        because="runs the legacy trainer, which nereus does not extend: no roll call, no report",
        change="`trainer.use_v1=True`",
        evidence="`trainer/main_ppo.py:183`",
    ),
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


@refuses(
    Refusal(
        "no `rollout.name`",
        because="finds it out only after Ray has started",
        change="`rollout.name=vllm`",
    ),
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


@refuses(
    Refusal(
        "`custom_reward_function.*`, `reward_model.*`, `sandbox_fusion.*` at the top",
        because="ignores them. The keys are still in its files, so Hydra takes them, but what moves them to "
        "where they are read now is only called by `fully_async_main.py:237`. The rewards are verl's "
        "own, chosen by `data_source`",
        change="the same under `reward.`; the message has the new key",
        evidence="`experimental/reward_loop/reward_loop.py:39`",
    ),
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


@refuses(
    Refusal(
        "`model.lora.rank` with FSDP or VeOmni; `model.lora_rank` with Megatron; "
        "`model.lora_adapter_path` without the rank",
        because="each engine reads one of the two keys and trains all weights when it is 0, while the trainer"
        " counts both and takes the reference from the adapter that is not there",
        change="the rank in the key that the engine reads",
        evidence="`workers/engine/fsdp/transformer_impl.py:162`, `workers/config/megatron_peft.py:23`; "
        "`trainer/ppo/v1/trainer_base.py:237`",
    ),
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


@refuses(
    Refusal(
        "LoRA without `model.lora.merge` and `trainer.v1.trainer_mode=separate_async`",
        because="sends the frozen base at every sync and never the adapter; the rollout stays at the initial policy",
        change="`model.lora.merge=True`",
        evidence="`workers/engine_workers.py:758-766`; verl issue 7495",
    ),
    Refusal(
        "LoRA without `model.lora.merge` and `rollout.checkpoint_engine.backend` other than `naive`",
        because="a colocated trainer puts `naive` in its place without a word, so the transfer that was asked"
        " for is not the one that runs",
        change="`rollout.checkpoint_engine.backend=naive`",
        evidence="`trainer/ppo/v1/trainer_base.py:382`",
    ),
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


@refuses(
    Refusal(
        "`correction.bypass_mode=True` with `rollout_is`, `rollout_rs` or `loss_type=reinforce`",
        because="copies the rollout's log-probs and skips the correction; the loss that would do it is never chosen",
        change="`correction.bypass_mode=False`; or `actor.policy_loss.loss_mode=bypass_mode` and the same "
        "settings under `actor.policy_loss.rollout_correction`, which is let through",
        evidence="`trainer/ppo/v1/trainer_base.py:1642`, `:1766`; verl issues 4272, 4912",
    ),
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


@refuses(
    Refusal(
        "`correction.rollout_is`, `rollout_rs` or `bypass_mode` without `rollout.calculate_log_probs`",
        because="skips the correction where the rollout's log-probs are absent",
        change="`rollout.calculate_log_probs=True`",
        evidence="`trainer/ppo/v1/trainer_base.py:1768`",
    ),
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


@refuses(
    Refusal(
        "`actor.use_prefix_grouper=True`",
        because="nothing: `forward_micro_batch_with_prefix_grouper` has no caller",
        change="`actor.use_prefix_grouper=False`",
        evidence="`trainer/ppo/prefix_grouper_utils.py:150`",
    ),
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


@refuses(
    Refusal(
        "`rollout.engine_kwargs.vllm.kv_cache_dtype=fp8` and the like, also of SGLang",
        because="hands it to the engine and never calibrates. vLLM's scales are 1.0, or computed once, in the"
        " first forward pass, which with `load_format=dummy` is one of random weights",
        change="`kv_cache_dtype=auto`. Types with a scale for every token (`fp8_per_token_head`, "
        "`fp8_ds_mla`) are let through",
        evidence="`vllm/v1/worker/gpu_model_runner.py:4297-4300`; `workers/config/rollout.py:249`; verl pull "
        "request 4435",
    ),
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


@refuses(
    Refusal(
        "`rollout.disaggregation.enabled=True`",
        because="runs; it is nereus that cannot ask the processes of such a replica what is active in them",
        change="run without `+plugins=nereus`",
    ),
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
