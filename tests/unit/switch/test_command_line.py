"""The switch on verl's own command line, in processes of their own: what composes, and what ends at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verl_ext import ending

MAIN = ("-m", "verl.trainer.main_ppo")
# Hydra composes the config, prints it and ends: nothing is trained.
SHOW = ("--cfg", "job")
NONE = {"VERL_USE_EXTERNAL_PLUGINS": "none"}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder for the front of the path with a package in it that nereus needs and that cannot be imported."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "wrapt.py").write_text("raise RuntimeError('compiled for another Python')\n")
    return folder


@pytest.fixture
def absent(tmp_path: Path) -> Path:
    """A folder for the front of the path that hides the Hydra plugins of nereus, as where it is not installed."""
    folder = tmp_path / "absent"
    (folder / "hydra_plugins").mkdir(parents=True)
    (folder / "hydra_plugins" / "__init__.py").touch()
    return folder


def test_a_misspelt_option_ends_the_command_with_the_nearest_one():
    # The one test with a real interpreter: the others fork a prepared one.
    ended = subprocess.run(
        [sys.executable, *MAIN, "+plugins=nereus", "nereus.routing.mod=R3", *SHOW],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode != 0
    assert "did you mean nereus.routing.mode?" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_switch_composes_with_its_options(fresh):
    ended = fresh(*MAIN, "+plugins=nereus", "nereus.routing.mode=R3", *SHOW)
    assert ended.exit_code == 0, ended.stderr
    assert "mode: R3" in ended.stdout
    assert "stall_timeout_s: 45.0" in ended.stdout


def test_a_broken_installation_ends_the_command_that_asks_for_nereus(fresh, broken):
    ended = fresh(*MAIN, "+plugins=nereus", *SHOW, path=[broken])
    assert ended.exit_code != 0
    assert "nereus was asked for and cannot be loaded" in ended.stderr
    assert "RuntimeError: compiled for another Python" in ended.stderr
    assert ended.stdout == ""


def test_a_broken_installation_is_nobody_s_business_without_the_switch(fresh, broken):
    ended = fresh(*MAIN, *SHOW, path=[broken])
    assert ended.exit_code == 0, ended.stderr
    assert "model_engine: dp" in ended.stdout
    assert "nereus" not in ended.stdout + ended.stderr


def test_a_broken_installation_ends_a_process_of_a_run(fresh, broken):
    ended = fresh("-m", "verl.utils.config", path=[broken], env={"NEREUS_ACTIVATION": "{}"})
    assert ended.exit_code != 0
    assert "compiled for another Python" in ended.stderr


@pytest.mark.parametrize("policy", ["none", "speco"])
def test_a_policy_that_leaves_nereus_out_is_named(fresh, policy):
    ended = fresh(*MAIN, "+plugins=nereus", *SHOW, env={"VERL_USE_EXTERNAL_PLUGINS": policy})
    assert ended.exit_code != 0
    assert "nereus was asked for and verl has not loaded it" in ended.stderr
    assert f"VERL_USE_EXTERNAL_PLUGINS={policy}" in ended.stderr
    assert ended.stdout == ""


def test_a_policy_without_the_switch_is_nobody_s_business(fresh):
    ended = fresh(*MAIN, *SHOW, env=NONE)
    assert ended.exit_code == 0, ended.stderr
    assert "nereus" not in ended.stdout + ended.stderr


def test_a_plugin_that_fails_before_its_own_guard_is_found_by_the_second_tripwire(fresh, tmp_path: Path):
    # A syntax error, say: verl hides it, and the module had no chance to end the process.
    program = tmp_path / "program.py"
    program.write_text(
        "import runpy, sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'verl_ext.plugin':\n"
        "            raise SyntaxError('invalid syntax')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "runpy.run_module('verl.trainer.main_ppo', run_name='__main__', alter_sys=True)\n"
    )
    ended = fresh(str(program), "+plugins=nereus", *SHOW)
    assert ended.exit_code != 0
    assert "nereus was asked for and verl has not loaded it" in ended.stderr
    assert "the entry point was not found or could not be loaded" in ended.stderr


def test_the_tripwire_leaves_other_programs_alone(fresh, tmp_path: Path):
    # A program with Hydra and a group `plugins` of its own, and no verl.
    program = tmp_path / "program.py"
    program.write_text(
        "import hydra\n@hydra.main(config_path=None, version_base=None)\ndef main(config):\n    print(config)\nmain()\n"
    )
    ended = fresh(str(program), "+plugins=nereus", f"hydra.run.dir={tmp_path}", "hydra.output_subdir=null")
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout == "{'plugins': 'nereus'}\n"


def test_where_nereus_is_not_installed_only_the_strict_spelling_is_refused(fresh, absent):
    # What cannot be caught from inside, and the spelling that Hydra itself then refuses.
    silent = fresh(*MAIN, "+plugins=nereus", *SHOW, env=NONE, path=[absent])
    assert silent.exit_code == 0, silent.stderr
    assert "plugins: nereus" in silent.stdout
    for arguments in (["+plugins@_global_=nereus"], ["+plugins=nereus", "nereus.routing.mode=off"]):
        strict = fresh(*MAIN, *arguments, *SHOW, env=NONE, path=[absent])
        assert strict.exit_code != 0, arguments


def test_the_strict_spelling_switches_nereus_on(fresh):
    ended = fresh(*MAIN, "+plugins@_global_=nereus", *SHOW)
    assert ended.exit_code == 0, ended.stderr
    assert "stall_timeout_s: 45.0" in ended.stdout


@pytest.mark.parametrize("spelling", ["+plugin=nereus", "+plugins@nereus=nereus"])
def test_a_switch_that_switches_nothing_on_is_refused(fresh, spelling):
    ended = fresh(*MAIN, spelling, *SHOW)
    assert ended.exit_code != 0
    assert "this does not switch nereus on" in ended.stderr


def refused(fresh, folder: Path, *arguments: str, module: str = "verl.trainer.main_ppo") -> str:
    """What a command prints that would train, and is refused before anything is started or written."""
    ended = fresh("-m", module, *arguments, "+plugins=nereus", f"hydra.run.dir={folder}", "hydra.output_subdir=null")
    assert ended.exit_code != 0
    assert "nereus refused to start" in ended.stderr
    left = {file.name for file in folder.iterdir() if file.suffix != ".log"}  # Hydra's own
    assert left <= {"end.json", "inputs"}
    return ended.stderr


def test_preflight_ends_the_command(fresh, tmp_path: Path):
    message = refused(
        fresh, tmp_path, "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.use_prefix_grouper=True"
    )
    assert "expected: " in message and "change:   " in message
    ended = ending.read(tmp_path)
    assert ended is not None and str(ended) in message and (ended.phase, ended.step) == (ending.CONFIG, None)


def test_a_config_without_the_options_ends_the_command(fresh, tmp_path: Path):
    # Hydra turns an exception of a callback into a warning, and verl would train without nereus.
    assert "the options of nereus" in refused(fresh, tmp_path, "nereus=null")


def test_an_error_that_nobody_foresaw_ends_the_command(fresh, tmp_path: Path):
    inputs, folder = tmp_path / "inputs", tmp_path / "run"
    inputs.mkdir()
    folder.mkdir()
    (inputs / "config.json").write_text("{}")
    (inputs / "data.parquet").write_bytes(b"PAR1x\x01\x00\x00\x00PAR1")
    message = refused(
        fresh,
        folder,
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.model.path={inputs}",
        f"data.train_files={inputs}/data.parquet",
        f"data.val_files={inputs}/data.parquet",
        "actor_rollout_ref.model.lora_rank=several",
    )
    assert "nereus could not read this config" in message
    assert "got:      ValueError: invalid literal for int()" in message
    assert "Traceback" in message  # where, for whoever reports it


@pytest.mark.parametrize("folder", ["${nowhere.at.all}", "${nereus.report.dir}"])
def test_a_folder_that_cannot_be_told_ends_the_command(fresh, tmp_path: Path, folder: str):
    # Whatever is raised in Hydra's callback is a warning to Hydra, and verl would train without nereus.
    message = refused(fresh, tmp_path, f"nereus.report.dir='{folder}'", "actor_rollout_ref.rollout.name=vllm")
    assert "nereus could not read this config" in message


def test_a_sweep_is_refused(fresh, tmp_path: Path):
    sweep = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    message = refused(fresh, tmp_path, "--multirun", "trainer.total_epochs=1,2", sweep)
    assert "a sweep of Hydra would train without nereus" in message


def test_a_program_of_verl_without_a_roll_call_is_refused(fresh, tmp_path: Path):
    message = refused(fresh, tmp_path, module="verl.trainer.sft_trainer")
    assert "verl/trainer/sft_trainer.py" in message
