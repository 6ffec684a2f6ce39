"""The driver's side: from the composed config to the run's activation, and from there to the other processes."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
from hydra.conf import ConfigSourceInfo
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf, open_dict

import hydra_plugins.nereus_tripwire as tripwire
from verl_ext import plugin
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Feature
from verl_ext.integrations.run import VARIABLE, Run
from verl_ext.integrations.verl.join import RAY_SETUP_HOOK
from verl_ext.integrations.verl.lowering import lower_features
from verl_ext.integrations.verl.record import COMMAND_VARIABLE, LOWERED_VARIABLE
from verl_ext.integrations.verl.roll_call import DRIVER_VARIABLE
from verl_ext.integrations.verl.switch import check_entry_point, hand_over, prepare
from verl_ext.launch.environment import CPU_ENVIRONMENT

ROLLOUT, ENVIRONMENT = "actor_rollout_ref.rollout", "ray_kwargs.ray_init.runtime_env"
CPU = ["trainer.device=cpu"]


@pytest.fixture
def config(compose, tmp_path: Path):
    """A run that can start."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe", "num_experts": 8}')
    (tmp_path / "data.parquet").write_bytes(b"PAR1x\x01\x00\x00\x00PAR1")
    given_ = [
        f"actor_rollout_ref.model.path={tmp_path}",
        f"data.train_files={tmp_path}/data.parquet",
        f"data.val_files={tmp_path}/data.parquet",
        f"{ROLLOUT}.name=vllm",
        f"hydra.run.dir={tmp_path}/run",
    ]
    return lambda *overrides: compose(*given_, *overrides)


# ---- prepare


def test_a_run_is_what_its_config_says(config, tmp_path: Path):
    found, lowered = prepare(config("nereus.report.title='${trainer.experiment_name}'", "trainer.experiment_name=mine"))
    assert (found.platform, found.rollout, found.engines, found.mode) == (
        "cuda",
        "vllm",
        {"actor": "fsdp", "critic": "fsdp"},
        "sync",
    )
    assert found.options.report.title == "mine"
    assert found.options.report.dir == f"{tmp_path}/run"
    assert found.options.trainer.poll_interval_s is None
    assert lowered == []


# ---- lowering


def test_the_cpu_needs_no_list_of_options(config):
    composed = config(*CPU)
    run, lowered = prepare(composed)
    assert run.options.trainer.poll_interval_s == 0.05
    assert composed.actor_rollout_ref.rollout.enable_sleep_mode is False
    assert composed.actor_rollout_ref.actor.strategy == run.engines["actor"] == "fsdp2"
    assert {item["feature"] for item in lowered} == {"cpu platform"} and not any(item["kept"] for item in lowered)
    assert {item["key"]: item["value"] for item in lowered}["trainer.logger"] == ["console"]


def test_what_the_user_says_stays(config):
    composed = config(*CPU, "nereus.trainer.poll_interval_s=1", "trainer.n_gpus_per_node=4")
    run, lowered = prepare(composed)
    assert run.options.trainer.poll_interval_s == 1.0 and composed.trainer.n_gpus_per_node == 4
    kept = {item["key"] for item in lowered if item["kept"]}
    assert kept == {"nereus.trainer.poll_interval_s", "trainer.n_gpus_per_node"}


def test_what_the_user_says_and_cannot_be_is_refused_and_not_overruled(config):
    with pytest.raises(NereusError, match="no CUDA graphs and no sleep mode"):
        prepare(config(*CPU, f"{ROLLOUT}.enforce_eager=False"))


def test_a_file_of_the_user_s_own_counts_as_said(config, tmp_path: Path):
    composed = config(*CPU)
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer]\nreward:\n  num_workers: 3\n")
    with open_dict(composed):
        composed.hydra.job.config_name = "mine"
        composed.hydra.runtime.config_sources = [ConfigSourceInfo(str(tmp_path), "file", "main")]
        composed.reward.num_workers = 3
    _run, lowered = prepare(composed)
    assert composed.reward.num_workers == 3
    assert [item["key"] for item in lowered if item["kept"]] == ["reward.num_workers"]


def test_two_features_that_want_different_values_are_refused(config):
    features = [
        Feature(name=name, summary="", state="", tested="", on=lambda run: True, lower=lambda *_, it=value: {"a.b": it})
        for name, value in (("one", 1), ("two", 2), ("three", 2))
    ]
    composed = config()
    run, _ = prepare(composed)
    with pytest.raises(NereusError, match="one and two set one key to different values"):
        lower_features(composed, run, features)
    lower_features(composed, run, features[1:])
    assert composed.a.b == 2


def test_preflight_is_asked(config):
    with pytest.raises(NereusError, match="use_prefix_grouper"):
        prepare(config("actor_rollout_ref.actor.use_prefix_grouper=True"))


def test_without_a_feature_that_lowers_the_config_is_left_as_it_is(config):
    composed = config()
    before = OmegaConf.to_container(composed, resolve=False)
    prepare(composed)
    assert OmegaConf.to_container(composed, resolve=False) == before


def test_another_verl_is_refused_unless_it_is_allowed(config, monkeypatch: pytest.MonkeyPatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.0" if name == "verl" else real(name))
    with pytest.raises(NereusError, match=r"verl 0\.10\.0 is outside the versions") as raised:
        prepare(config())
    allowed = raised.value.change.split(", or ")[1]
    assert prepare(config(allowed))[0].versions["verl"] == "0.10.0"


@pytest.mark.parametrize("overrides", [["nereus=null"], ["actor_rollout_ref.rollout=null"], ["actor_rollout_ref=null"]])
def test_a_config_that_lacks_what_is_needed_is_refused(config, overrides):
    with pytest.raises(NereusError, match="not in this config"):
        prepare(config(*overrides))


# ---- where it may run


def test_only_main_ppo_and_programs_of_others_may_run():
    import verl

    package = Path(verl.__file__).parent
    for main in (str(package / "trainer" / "main_ppo.py"), "/home/me/train.py", None):
        check_entry_point(main)
    for name in (
        "trainer/sft_trainer.py",
        "experimental/fully_async_policy/fully_async_main.py",
        "trainer/main_eval.py",
    ):
        assert (package / name).is_file()
        with pytest.raises(NereusError) as raised:
            check_entry_point(str(package / name))
        assert raised.value.got == f"verl/{name}"


# ---- handing over


def handed(config, command: tuple[str, ...] = ("python",)) -> dict:
    """`ray_init` as the other processes get it."""
    run, lowered = prepare(config)
    hand_over(config, run, lowered, list(command))
    resolved = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(resolved, dict)
    return resolved


def test_the_options_reach_every_process_of_ray(config):
    composed = config()
    run, lowered = prepare(composed)
    hand_over(composed, run, lowered, ["python", "-m", "verl.trainer.main_ppo"])
    runtime_env = OmegaConf.to_container(composed.ray_kwargs.ray_init.runtime_env)
    variables = runtime_env["env_vars"]
    assert runtime_env["worker_process_setup_hook"] == RAY_SETUP_HOOK
    assert Run.from_json(variables[VARIABLE]) == run
    assert json.loads(variables[COMMAND_VARIABLE]) == ["python", "-m", "verl.trainer.main_ppo"]
    assert json.loads(variables[LOWERED_VARIABLE]) == []
    assert json.loads(variables[DRIVER_VARIABLE])["process"] == "driver"
    # Resolved, report.dir included: a worker has another working directory.
    assert NereusOptions.from_mapping(OmegaConf.to_container(composed.nereus)) == run.options


def test_variables_of_the_user_are_kept(config):
    init = handed(config(f"+{ENVIRONMENT}.env_vars.MINE=1", f"{ENVIRONMENT}.py_executable=/my/python"))
    assert init["runtime_env"]["env_vars"]["MINE"] == 1
    assert init["runtime_env"]["py_executable"] == "/my/python"


@settings(max_examples=25)
@given(st.lists(st.text() | st.just("trainer.default_local_dir='x/${trainer.project_name}'") | st.just("a='${.b}'")))
def test_a_command_line_arrives_as_it_was_typed(command):
    """verl resolves its whole config, and a command line may well hold an interpolation."""
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {}}, "nereus": {}, "trainer": {"project_name": "x"}})
    hand_over(config, Run(NereusOptions(), "cuda", "vllm"), [], command)
    init = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert json.loads(init["runtime_env"]["env_vars"][COMMAND_VARIABLE]) == command


def test_a_hook_of_the_user_s_is_not_thrown_away(config):
    with pytest.raises(NereusError) as raised:
        handed(config(f"+{ENVIRONMENT}.worker_process_setup_hook=my.hook"))
    assert raised.value.got == "my.hook"


def test_on_the_cpu_ray_counts_gpus_and_processes_get_their_variables(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in CPU_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    init = handed(config(*CPU, "trainer.n_gpus_per_node=2"))
    assert init["num_gpus"] == 2
    assert CPU_ENVIRONMENT.items() <= init["runtime_env"]["env_vars"].items()
    assert handed(config(*CPU, "trainer.n_gpus_per_node=2", "+ray_kwargs.ray_init.num_gpus=4"))["num_gpus"] == 4


def test_on_the_cpu_a_variable_of_the_user_wins(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    init = handed(config(*CPU, f"+{ENVIRONMENT}.env_vars.VLLM_CPU_KVCACHE_SPACE=9"))
    assert init["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "7"
    assert init["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == 9


def test_a_cluster_that_runs_already_is_given_no_resources(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    init = handed(config(*CPU, "+ray_kwargs.ray_init.address=auto"))
    assert not {"num_gpus", "object_store_memory"} & init.keys() and init["num_cpus"] is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "num_gpus" not in handed(config(*CPU))


def test_elsewhere_nothing_of_the_cpu_is_added(config):
    init = handed(config())
    assert "num_gpus" not in init
    assert not CPU_ENVIRONMENT.keys() & init["runtime_env"]["env_vars"].keys()


# ---- the two tripwires see the same switch

ASKED = ["+plugins=nereus", "plugins=nereus", "+plugins=[nereus]", "+plugins=[speco,nereus]", "+plugins='nereus'"]
ASKED += [
    "+plugins@_global_=nereus",
    "++plugins=nereus",
    '+plugins="nereus"',
    "+plugins=nereus.yaml",
    "+plugins=[nereus,speco]",
]
OTHER = ["+plugins=speco", "+plugins=nereus_two", "+plugins=my_nereus", "+plugins=nereus-two", "plugins=", "x=nereus"]
OTHER += ["nereus.report.title=nereus", "+my.plugins=nereus", "--plugins=nereus", "+plugins.nereus=1"]


@pytest.mark.parametrize("argument", ASKED)
def test_spellings_of_the_switch(argument):
    assert plugin.requested(["--cfg", "job", argument])


@pytest.mark.parametrize("argument", OTHER)
def test_what_is_no_switch(argument):
    assert not plugin.requested(["--cfg", "job", argument])


def test_both_tripwires_look_for_the_same():
    assert plugin.SWITCH == tripwire.SWITCH == re.compile(plugin.SWITCH.pattern)


def test_hydra_finds_the_second_tripwire():
    found = Plugins.instance().discover(SearchPathPlugin)
    assert [plugin_class.__name__ for plugin_class in found].count("NereusTripwire") == 1


def test_hydra_plugins_stays_a_namespace_that_others_share():
    assert not (Path(tripwire.__file__).parent / "__init__.py").exists()
