"""The driver's side: from the composed config to the run's activation, and from there to the other processes."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import hydra_plugins.nereus_tripwire as tripwire
from verl_ext import plugin
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.verl.process import COMMAND_VARIABLE, DRIVER_VARIABLE, RAY_SETUP_HOOK, VARIABLE, Activation
from verl_ext.integrations.verl.switch import CPU_POLL_INTERVAL_S, check_entry_point, lower, prepare
from verl_ext.launch.environment import CPU_ENVIRONMENT

ROLLOUT, ENVIRONMENT = "actor_rollout_ref.rollout", "ray_kwargs.ray_init.runtime_env"
CPU = [
    "trainer.device=cpu",
    f"{ROLLOUT}.enforce_eager=True",
    f"{ROLLOUT}.free_cache_engine=False",
    f"+{ROLLOUT}.enable_sleep_mode=False",
]


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
    found = prepare(config("nereus.report.title='${trainer.experiment_name}'", "trainer.experiment_name=mine"))
    assert (found.platform, found.rollout) == ("cuda", "vllm")
    assert found.options.report.title == "mine"
    assert found.options.report.dir == f"{tmp_path}/run"
    assert found.options.trainer.poll_interval_s is None


def test_the_cpu_looks_at_the_replay_buffer_more_often(config):
    assert prepare(config(*CPU)).options.trainer.poll_interval_s == CPU_POLL_INTERVAL_S
    assert prepare(config(*CPU, "nereus.trainer.poll_interval_s=1")).options.trainer.poll_interval_s == 1.0


def test_preflight_is_asked(config):
    with pytest.raises(NereusError, match="use_prefix_grouper"):
        prepare(config("actor_rollout_ref.actor.use_prefix_grouper=True"))


def test_the_config_is_left_as_it_is(config):
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
    assert prepare(config(allowed)).versions["verl"] == "0.10.0"


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


# ---- lower


def lowered(config, *, platform: str = "cuda", command: tuple[str, ...] = ("python",)) -> dict:
    lower(config, Activation(NereusOptions(), platform, "vllm"), list(command))
    resolved = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(resolved, dict)
    return resolved


def test_the_options_reach_ray_and_the_workers(config):
    composed = config()
    activation = prepare(composed)
    lower(composed, activation, ["python", "-m", "verl.trainer.main_ppo"])
    runtime_env = OmegaConf.to_container(composed.ray_kwargs.ray_init.runtime_env)
    variables = runtime_env["env_vars"]
    assert runtime_env["worker_process_setup_hook"] == RAY_SETUP_HOOK
    assert Activation.from_json(variables[VARIABLE]) == activation
    assert json.loads(variables[COMMAND_VARIABLE]) == ["python", "-m", "verl.trainer.main_ppo"]
    assert json.loads(variables[DRIVER_VARIABLE])["process"] == "driver"
    # Resolved, report.dir included: a worker has another working directory.
    for node in (composed.nereus, composed.actor_rollout_ref.nereus):
        assert NereusOptions.from_mapping(OmegaConf.to_container(node)) == activation.options


def test_variables_of_the_user_are_kept(config):
    init = lowered(config(f"+{ENVIRONMENT}.env_vars.MINE=1", f"{ENVIRONMENT}.py_executable=/my/python"))
    assert init["runtime_env"]["env_vars"]["MINE"] == 1
    assert init["runtime_env"]["py_executable"] == "/my/python"


@settings(max_examples=25)
@given(st.lists(st.text() | st.just("trainer.default_local_dir='x/${trainer.project_name}'") | st.just("a='${.b}'")))
def test_a_command_line_arrives_as_it_was_typed(command):
    """verl resolves its whole config, and a command line may well hold an interpolation."""
    config = OmegaConf.create(
        {"ray_kwargs": {"ray_init": {}}, "actor_rollout_ref": {}, "trainer": {"project_name": "x"}}
    )
    init = lowered(config, command=tuple(command))
    assert json.loads(init["runtime_env"]["env_vars"][COMMAND_VARIABLE]) == command


def test_a_hook_of_the_user_s_is_not_thrown_away(config):
    with pytest.raises(NereusError) as raised:
        lowered(config(f"+{ENVIRONMENT}.worker_process_setup_hook=my.hook"))
    assert raised.value.got == "my.hook"


def test_on_the_cpu_ray_counts_gpus_and_processes_get_their_variables(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in CPU_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    init = lowered(config("trainer.n_gpus_per_node=2"), platform="cpu")
    assert init["num_gpus"] == 2
    assert CPU_ENVIRONMENT.items() <= init["runtime_env"]["env_vars"].items()
    assert (
        lowered(config("trainer.n_gpus_per_node=2", "+ray_kwargs.ray_init.num_gpus=4"), platform="cpu")["num_gpus"] == 4
    )


def test_on_the_cpu_a_variable_of_the_user_wins(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    init = lowered(config(f"+{ENVIRONMENT}.env_vars.VLLM_CPU_KVCACHE_SPACE=9"), platform="cpu")
    assert init["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "7"
    assert init["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == 9


def test_a_cluster_that_runs_already_is_given_no_resources(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "num_gpus" not in lowered(config("+ray_kwargs.ray_init.address=auto"), platform="cpu")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "num_gpus" not in lowered(config(), platform="cpu")


def test_elsewhere_nothing_of_the_cpu_is_added(config):
    init = lowered(config())
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
