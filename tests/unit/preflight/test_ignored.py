"""What verl would silently not do: each is refused, its harmless neighbours are not, and the advice helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.features import FEATURES
from verl_ext.preflight import RULES, View, check
from verl_ext.preflight.ignored import MOVED
from verl_ext.preflight.replay import expert_count

ALL_RULES = (*RULES, *(rule for feature in FEATURES for rule in feature.rules))

A, R, M, C = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.model",
    "algorithm.rollout_correction",
)
FSDP_R3 = f"+{A}.fsdp_config.router_replay.mode=R3"
MEGATRON_R3 = f"{A}.megatron.router_replay.mode=R3"
RECORDED = f"{R}.enable_rollout_routing_replay=True"
SEPARATE = "trainer.v1.trainer_mode=separate_async"
NCCL = f"{R}.checkpoint_engine.backend=nccl"
CPU = ["trainer.device=cpu", f"{R}.enforce_eager=True", f"{R}.free_cache_engine=False", f"+{R}.enable_sleep_mode=False"]


@dataclass(frozen=True)
class Case:
    """Overrides that exactly one rule has something against."""

    rule: str
    overrides: tuple[str, ...]
    engine: str = "dp"

    def __str__(self) -> str:
        return f"{self.rule}: {' '.join(self.overrides)} ({self.engine})"


def case(rule: str, *overrides: str, engine: str = "dp") -> Case:
    return Case(rule, overrides, engine)


REFUSED = [
    case("legacy_trainer", "trainer.use_v1=False"),
    case("rollout_engine", f"{R}.name=null"),
    case("legacy_reward_keys", "custom_reward_function.path=reward.py"),
    case("legacy_reward_keys", "custom_reward_function.name=score"),
    case("legacy_reward_keys", "reward_model.reward_manager=dapo"),
    case("legacy_reward_keys", "reward_model.enable=True"),
    case("legacy_reward_keys", "reward_model.model.path=some/model"),
    case("legacy_reward_keys", "reward_model.rollout.name=vllm"),
    case("legacy_reward_keys", "sandbox_fusion.url=http://localhost:8080"),
    case("nereus_router_replay", "nereus.routing.mode=R2"),
    case("replay_engine", FSDP_R3),
    case("replay_engine", FSDP_R3.replace("R3", "R2"), f"{A}.strategy=fsdp2"),
    case("replay_engine", RECORDED),
    case("replay_engine", FSDP_R3, RECORDED),
    case("replay_engine", f"+{A}.torchtitan.router_replay.mode=R3", engine="torchtitan"),
    case("replay_rollout", MEGATRON_R3, RECORDED, f"{R}.name=trtllm", engine="megatron"),
    case("replay_switches", MEGATRON_R3, engine="megatron"),
    case("replay_switches", RECORDED, engine="megatron"),
    case("replay_switches", MEGATRON_R3.replace("R3", "R2"), RECORDED, engine="megatron"),
    case("replay_switches", f"{A}.veomni.router_replay.mode=R3", engine="veomni"),
    case("lora_key", f"{M}.lora.rank=8"),
    case("lora_key", f"{M}.lora_adapter_path=adapter"),
    case("lora_key", f"{M}.lora_rank=8", engine="megatron"),
    case("lora_key", f"{M}.lora_adapter_path=adapter", engine="megatron"),
    case("lora_delivery", f"{M}.lora_rank=8", NCCL),
    case("lora_delivery", f"{M}.lora_rank=8", NCCL, SEPARATE),
    case("lora_delivery", f"{M}.lora_rank=8", "trainer.v1.trainer_mode=colocate_async", NCCL),
    case("lora_delivery", f"{M}.lora.rank=8", NCCL, SEPARATE, engine="megatron"),
    case("bypass_drops_correction", f"{C}.bypass_mode=True", f"{C}.rollout_is=token"),
    case("bypass_drops_correction", f"{C}.bypass_mode=True", f"{C}.rollout_rs=seq_mean_k3"),
    case("bypass_drops_correction", f"{C}.bypass_mode=True", f"{C}.loss_type=reinforce"),
    # The loss of bypass mode, but without the settings where the worker looks for them.
    case(
        "bypass_drops_correction",
        f"{C}.bypass_mode=True",
        f"{C}.rollout_is=token",
        f"{A}.policy_loss.loss_mode=bypass_mode",
    ),
    case("correction_needs_log_probs", f"{R}.calculate_log_probs=False", f"{C}.rollout_is=token"),
    case("correction_needs_log_probs", f"{R}.calculate_log_probs=False", f"{C}.rollout_rs=token_k1"),
    case("correction_needs_log_probs", f"{R}.calculate_log_probs=False", f"{C}.bypass_mode=True"),
    case("prefix_grouper", f"{A}.use_prefix_grouper=True"),
    case("fp8_kv_cache", f"+{R}.engine_kwargs.vllm.kv_cache_dtype=fp8"),
    case("fp8_kv_cache", f"+{R}.engine_kwargs.vllm.kv-cache-dtype=fp8_e5m2"),
    case("fp8_kv_cache", f"+{R}.engine_kwargs.sglang.kv_cache_dtype=fp8_e4m3", f"{R}.name=sglang"),
    case("disaggregated_prefill", f"{R}.disaggregation.enabled=True", f"{R}.name=sglang"),
    case("cpu_platform", *CPU[:1], *CPU[2:]),
    case("cpu_platform", *CPU[:2], *CPU[3:]),
    case("cpu_platform", *CPU[:3]),
    case("cpu_platform", *CPU, f"{R}.name=sglang"),
    case("cpu_platform", *CPU, f"{A}.strategy=fsdp_turbo"),
]

ALLOWED = [
    case("the run as it is"),
    case("the run as it is", engine="megatron"),
    case("the run as it is", engine="veomni"),
    case("the run as it is", engine="torchtitan"),
    case("another rollout", f"{R}.name=sglang"),
    case("the new reward keys", "reward.reward_manager.name=dapo", "reward.sandbox_fusion.url=http://localhost:8080"),
    case("R3 where verl has it", MEGATRON_R3, RECORDED, engine="megatron"),
    case("R3 with SGLang", MEGATRON_R3, RECORDED, f"{R}.name=sglang", engine="megatron"),
    case("R3 where verl has it", f"{A}.veomni.router_replay.mode=R3", RECORDED, engine="veomni"),
    case("R2 needs no routes of the rollout", MEGATRON_R3.replace("R3", "R2"), engine="megatron"),
    case("LoRA with the naive backend", f"{M}.lora_rank=8"),
    case("LoRA with the naive backend", f"{M}.lora.rank=8", engine="megatron"),
    case("LoRA that is merged", f"{M}.lora_rank=8", f"{M}.lora.merge=True", NCCL, SEPARATE),
    case("an adapter with its rank", f"{M}.lora_rank=8", f"{M}.lora_adapter_path=adapter"),
    case("another backend without LoRA", NCCL, SEPARATE),
    case("bypass mode without correction", f"{C}.bypass_mode=True"),
    case("correction without bypass mode", f"{C}.rollout_is=token", f"{C}.rollout_rs=token_k1"),
    case(
        "bypass mode with the loss that does it",
        *(f"{C}.bypass_mode=True", f"{C}.rollout_is=token", f"{A}.policy_loss.loss_mode=bypass_mode"),
        f"+{A}.policy_loss.rollout_correction.rollout_is=token",
    ),
    case("no log-probs where nobody needs them", f"{R}.calculate_log_probs=False"),
    case("a KV cache without scales", f"+{R}.engine_kwargs.vllm.kv_cache_dtype=bfloat16"),
    case("a KV cache with a scale for every token", f"+{R}.engine_kwargs.vllm.kv_cache_dtype=fp8_per_token_head"),
    case("settings of an engine that is not used", f"+{R}.engine_kwargs.sglang.kv_cache_dtype=fp8_e4m3"),
    case("FP8 weights", f"{R}.quantization=fp8"),
    case("the cpu platform", *CPU),
    case("the cpu platform with FSDP2", *CPU, f"{A}.strategy=fsdp2"),
    case("the cpu platform with Megatron", *CPU, engine="megatron"),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_verl_would_ignore_is_refused_by_one_rule(run, case: Case):
    found = run.findings(*case.overrides, engine=case.engine)
    assert list(found) == [case.rule]
    for error in found[case.rule]:
        assert all((error.what, error.where, error.expected, error.got, error.change))
        for line in str(error).splitlines():
            assert "None" not in line and "???" not in line


@pytest.mark.parametrize("case", ALLOWED, ids=str)
def test_its_neighbours_are_not(run, case: Case):
    assert run.findings(*case.overrides, engine=case.engine) == {}


OVERRIDE = re.compile(r"(\+?)((?:[a-z_]\w*)(?:\.[\w-]+)*)=(\S+)")


def advised(change: str) -> list[list[str]]:
    """The ways out that a message offers, each as overrides; without those that are no overrides."""
    ways = [re.sub(r"^write | instead$", "", way) for way in change.split(", or ") if "run without" not in way]
    return [[found[0] for found in OVERRIDE.finditer(way)] for way in ways]


def test_every_rule_that_reads_the_config_has_a_case():
    elsewhere = {
        "readable_model",
        "readable_data",
        "reward_function",
        "free_ports",
        "shared_memory",
        "replay_needs_experts",
        "megatron_packages",
        "megatron_switches",
        "megatron_layout",
        "megatron_defects",
        "batch_by_data_parallel",
    }
    assert {rule.__name__ for rule in ALL_RULES} - elsewhere == {case.rule for case in REFUSED}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_the_advice_is_made_of_keys_that_verl_has_and_helps(run, case: Case):
    """Applied in the place of what was refused, each way out silences the rule that offered it."""
    (error,) = run.findings(*case.overrides, engine=case.engine)[case.rule][:1]
    ways = advised(error.change)
    assert ways and all(ways)
    for way in ways:
        engine = next(
            (key.removeprefix("model_engine=") for key in way if key.startswith("model_engine=")), case.engine
        )
        overrides = [override for override in way if not override.startswith("model_engine=")]
        overrides = [override.replace("=RANK", "=8") for override in overrides]
        changed = {OVERRIDE.fullmatch(override)[2] for override in overrides} | {_old_key(case)}
        kept = [override for override in case.overrides if override.lstrip("+").split("=")[0] not in changed]
        # A switch of FSDP that was added with a plus exists for no other engine.
        kept = [override for override in kept if engine == case.engine or "fsdp_config" not in override]
        if engine != case.engine and RECORDED in kept:
            kept.append(MEGATRON_R3)
        # What was added with a plus is not in verl's files, so to take it back is to leave it out.
        added = {override.lstrip("+").split("=")[0] for override in case.overrides if override.startswith("+")}
        overrides = [override if override.split("=")[0] not in added else "+" + override for override in overrides]
        after = run.findings(*kept, *overrides, engine=engine)
        assert case.rule not in after, (way, after)


def _old_key(case: Case) -> str:
    return case.overrides[0].split("=")[0] if case.rule == "legacy_reward_keys" else ""


@pytest.mark.parametrize("old", MOVED)
def test_what_has_moved_was_there_and_is_there(compose, old):
    config = compose()
    missing = object()
    assert OmegaConf.select(config, old, default=missing) is not missing
    assert OmegaConf.select(config, MOVED[old], default=missing) is not missing


def test_a_plus_is_advised_where_verl_s_files_leave_the_key_out(run):
    from verl.workers.config import RolloutConfig

    (error,) = run.findings(*CPU[:3])["cpu_platform"]
    assert error.change == f"+{R}.enable_sleep_mode=False"
    assert RolloutConfig.enable_sleep_mode is True  # what verl takes when nobody says anything


# ---- experts


def test_replay_on_a_dense_model_is_refused(run):
    dense = run.model("dense", {"model_type": "qwen3", "num_hidden_layers": 2})
    found = run.findings(dense, MEGATRON_R3, RECORDED, engine="megatron")
    assert list(found) == ["replay_needs_experts"]
    (error,) = found["replay_needs_experts"]
    assert "qwen3 without experts" in error.got
    assert advised(error.change)[0] == [MEGATRON_R3.replace("R3", "disabled"), RECORDED.replace("True", "False")]


def test_the_replay_of_nereus_on_a_dense_model_is_refused_for_the_model_first(run):
    dense = run.model("dense", {"model_type": "qwen3"})
    with pytest.raises(NereusError, match="the model has no experts"):
        check(
            View(run.config(dense, "nereus.routing.mode=R3")), NereusOptions.from_mapping({"routing": {"mode": "R3"}})
        )


def test_a_dense_model_without_replay_is_fine(run):
    assert run.findings(run.model("dense", {"model_type": "qwen3"})) == {}


def test_a_model_that_is_not_on_this_machine_is_not_judged(run):
    assert run.findings(f"{M}.path=owner/name", MEGATRON_R3, RECORDED, engine="megatron") == {}


WITH_EXPERTS = ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "olmoe", "glm4_moe", "qwen3_vl_moe", "llama4")
WITH_EXPERTS += ("dbrx", "ernie4_5_moe")
DENSE = ("llama", "qwen3", "gemma3", "qwen2_5_vl")


@pytest.mark.parametrize("family", [*WITH_EXPERTS, *DENSE])
def test_experts_are_found_in_the_configs_of_the_families(family):
    config = transformers.AutoConfig.for_model(family).to_dict()
    assert (expert_count(config) > 0) is (family not in DENSE)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_has_a_number_of_experts(value):
    assert expert_count({"num_experts": value, "text_config": value}) >= 0


# ---- looking things up


@given(
    st.lists(st.sampled_from(["actor_rollout_ref", "rollout", "name", "trainer", "n", "x"]), min_size=1).map(".".join)
)
def test_a_path_that_is_not_there_has_the_default(path):
    for config in ({}, {"actor_rollout_ref": None}, {"actor_rollout_ref": {"rollout": "text"}, "trainer": 3}):
        found = View(config)(path, "default")
        assert found in ("default", "text", 3) or isinstance(found, dict)


def test_a_value_that_is_not_yet_given_has_the_default_and_is_no_new_key(compose):
    view = View(compose())
    assert view(f"{R}.name", "default") == "default"
    assert view.override(f"{R}.name", "vllm") == f"{R}.name=vllm"
    assert view.override(f"{R}.unheard_of", 1) == f"+{R}.unheard_of=1"


def test_check_raises_the_first_finding(run):
    with pytest.raises(NereusError, match="legacy trainer"):
        check(View(run.config("trainer.use_v1=False", f"{A}.use_prefix_grouper=True")), NereusOptions())
    assert check(View(run.config()), NereusOptions()) is None


# ---- the page
