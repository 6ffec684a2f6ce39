"""What Megatron training needs, switches of it that do nothing, upstream defects: each by name, with the way out."""

from __future__ import annotations

import importlib.util

import pytest
from packaging.version import Version

from verl_ext.errors import NereusError
from verl_ext.preflight import megatron
from verl_ext.preflight.megatron import CUDA_ONLY, installed

ACTOR, MODEL = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
ON_CPU = [
    "trainer.device=cpu",
    f"{ROLLOUT}.enforce_eager=True",
    f"{ROLLOUT}.free_cache_engine=False",
    f"+{ROLLOUT}.enable_sleep_mode=False",
]
PADDED = f"{MODEL}.use_remove_padding=False"
GROUPS = {"model_type": "deepseek_v3", "n_routed_experts": 8, "n_group": 4, "topk_group": 2}


@pytest.fixture
def found(run):
    return lambda *overrides, engine="megatron": run.findings("algorithm.adv_estimator=grpo", *overrides, engine=engine)


def only(found: dict[str, list[NereusError]], rule: str) -> NereusError:
    assert list(found) == [rule]
    (error,) = found[rule]
    assert all((error.what, error.where, error.expected, error.got, error.change))
    assert "None" not in str(error)
    return error


# ---- packages


@pytest.mark.parametrize("missing", [["megatron-core"], ["megatron-bridge"], ["megatron-core", "megatron-bridge"]])
def test_missing_packages_are_named_with_the_command_that_installs_them(found, monkeypatch, missing):
    monkeypatch.setattr(megatron, "installed", lambda module: module.replace(".", "-") not in missing)
    error = only(found(), "megatron_packages")
    assert error.got == f"not installed: {', '.join(missing)}"
    assert 'pip install "verl-nereus[megatron]"' in error.change and "--no-deps megatron-bridge==0.6.2" in error.change
    assert "\n" not in error.what
    assert found(engine="dp") == {}


def test_the_older_bridge_does_not_need_the_newer(found, monkeypatch):
    monkeypatch.setattr(megatron, "installed", lambda module: module != "megatron.bridge")
    assert found(f"{ACTOR}.vanilla_mbridge=True") == {}


def test_a_module_whose_parent_is_missing_is_not_installed():
    assert installed("json.decoder")
    assert not installed("json.no_such_module")
    assert not installed("no_such_package.module")


def test_looking_for_a_package_imports_only_its_namespace(monkeypatch):
    looked_for = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: looked_for.append(name))
    assert not installed("megatron.core")
    assert looked_for == ["megatron.core"]


# ---- switches


def test_a_model_is_loaded_through_a_bridge(found):
    error = only(found(f"{ACTOR}.use_mbridge=False"), "megatron_switches")
    assert error.change == f"{ACTOR}.use_mbridge=True"


def test_the_cpu_platform_trains_through_megatron_bridge(found):
    assert found(*ON_CPU) == {}
    error = only(found(*ON_CPU, f"{ACTOR}.vanilla_mbridge=True"), "megatron_switches")
    assert error.change == f"{ACTOR}.vanilla_mbridge=False"
    assert found(f"{ACTOR}.vanilla_mbridge=True") == {}


@pytest.mark.parametrize("option", CUDA_ONLY)
def test_the_cpu_platform_has_no_fused_kernels(found, option):
    key = f"{ACTOR}.override_transformer_config.{option}"
    error = only(found(*ON_CPU, f"+{key}=True"), "megatron_switches")
    assert option in error.what and error.where == key
    assert error.change == f"{key}=False"
    assert found(*ON_CPU, f"+{key}=False") == {}
    assert found(f"+{key}=True") == {}


def test_the_padding_switch_that_nobody_reads_is_refused(found):
    error = only(found(f"{ACTOR}.use_remove_padding=False"), "megatron_switches")
    assert error.change.startswith(f"{PADDED}, or ")
    assert found(f"{ACTOR}.use_remove_padding=False", PADDED) == {}
    assert found(PADDED) == {}


def test_a_loss_per_token_needs_packed_sequences(found):
    per_token = f"+{ACTOR}.override_transformer_config.calculate_per_token_loss=True"
    assert found(per_token) == {}
    error = only(found(per_token, PADDED), "megatron_switches")
    assert error.change.startswith(f"{MODEL}.use_remove_padding=True, or ")


# ---- defects


@pytest.mark.parametrize(("mode", "recorded"), [("R2", []), ("R3", [f"{ROLLOUT}.enable_rollout_routing_replay=True"])])
def test_replay_on_padded_batches_is_refused(found, mode, recorded):
    replay = [f"{ACTOR}.router_replay.mode={mode}", *recorded]
    assert found(*replay) == {}
    error = only(found(*replay, PADDED), "megatron_defects")
    assert mode in error.what
    assert error.change.startswith(f"{MODEL}.use_remove_padding=True, or ")


TP2_WITHOUT_ETP = [f"{ACTOR}.tensor_model_parallel_size=2", f"{ACTOR}.expert_tensor_parallel_size=1"]


@pytest.mark.parametrize(
    ("version", "more", "refused"),
    [
        ("0.18.2", [], True),
        ("0.19.2", [], False),
        ("0.18.2", [f"{ACTOR}.expert_model_parallel_size=2"], False),
        ("0.18.2", [f"{ACTOR}.expert_tensor_parallel_size=2"], False),
        ("0.18.2", [f"{ACTOR}.expert_tensor_parallel_size=null"], False),
        ("0.18.2", [f"{ACTOR}.tensor_model_parallel_size=1"], False),
    ],
)
def test_experts_whose_gradients_are_not_reduced_are_refused(found, monkeypatch, version, more, refused):
    monkeypatch.setattr(megatron, "core_version", lambda: Version(version))
    findings = found(*TP2_WITHOUT_ETP, *more)
    if refused:
        error = only(findings, "megatron_defects")
        assert "megatron-core 0.18.2" in error.what and "over the 2 tensor" in error.what
        assert error.change.startswith(f"{ACTOR}.expert_tensor_parallel_size=null, or ")
    else:
        assert findings == {}


def test_a_dense_model_has_no_gradients_of_experts(found, run, monkeypatch):
    monkeypatch.setattr(megatron, "core_version", lambda: Version("0.18.2"))
    assert found(*TP2_WITHOUT_ETP, run.model("dense", {"model_type": "qwen3"})) == {}


@pytest.mark.parametrize(
    ("topk", "more", "refused"),
    [
        (4, {}, False),  # DeepSeek-V3: 8 // 4
        (5, {}, False),
        (2, {}, True),
        (6, {}, True),
        (2, {"topk_method": "group_limited_greedy"}, False),  # DeepSeek-V2 takes the best of a group
        (4, {"topk_method": "group_limited_greedy"}, True),
        (4, {"topk_method": "greedy"}, True),
        (2, {"n_group": 2}, False),  # every group is kept
        (2, {"n_group": 1, "topk_group": 1}, False),
        (2, {"n_group": None, "topk_group": None}, False),
    ],
)
def test_groups_that_megatron_scores_otherwise_are_refused(found, run, topk, more, refused):
    findings = found(run.model("groups", GROUPS | {"num_experts_per_tok": topk} | more))
    if refused:
        error = only(findings, "megatron_defects")
        assert f"num_experts_per_tok={topk} // topk_group=2" in error.what
    else:
        assert findings == {}
