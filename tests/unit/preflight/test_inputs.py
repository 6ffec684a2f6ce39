"""Files that a run is given: what cannot be read is refused in milliseconds, what can be read is let through."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.config import NereusOptions
from verl_ext.preflight import View
from verl_ext.preflight.inputs import defined_names, readable_data

MODEL, TRAIN, REWARD = "actor_rollout_ref.model.path", "data.train_files", "reward.custom_reward_function"


def only(found: dict, rule: str) -> object:
    """The one finding of this rule, which has to be the only rule with any; all five parts are filled in."""
    assert list(found) == [rule]
    (error,) = found[rule]
    assert all((error.what, error.where, error.expected, error.got, error.change))
    return error


# ---- model


@pytest.mark.parametrize("path", ["/no/such/folder", "./no/such/folder", "no/such/folder"])
def test_a_model_folder_that_is_not_there_is_refused(run, path):
    error = only(run.findings(f"{MODEL}={path}"), "readable_model")
    assert error.got == f"{path} (no such folder)"
    assert error.change == f"{MODEL}=FOLDER"


@pytest.mark.parametrize("path", ["gpt2", "owner/name", "hdfs://cluster/models/name"])
def test_a_model_that_verl_fetches_is_not_looked_for(run, path):
    assert run.findings(f"{MODEL}={path}") == {}


def test_a_folder_without_a_config_is_refused(run, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "no config.json in it" in only(run.findings(f"{MODEL}={tmp_path / 'empty'}"), "readable_model").got


def test_its_config_may_be_elsewhere(run, tmp_path: Path):
    (tmp_path / "weights").mkdir()
    assert (
        run.findings(f"{MODEL}={tmp_path / 'weights'}", f"actor_rollout_ref.model.hf_config_path={tmp_path}/experts")
        == {}
    )


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_config_that_is_no_config_is_refused(run, content):
    assert "not JSON" in only(run.findings(run.model("broken", content)), "readable_model").got


def test_a_file_is_no_model(run, tmp_path: Path):
    (tmp_path / "model.gguf").touch()
    assert "not a folder" in only(run.findings(f"{MODEL}={tmp_path / 'model.gguf'}"), "readable_model").got


def test_a_home_that_nobody_expands_is_refused_with_the_folder_it_means(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(run.folder))
    error = only(run.findings(f"{MODEL}='~/experts'"), "readable_model")
    assert error.change == f"{MODEL}={run.folder}/experts"
    assert run.findings(error.change) == {}


# ---- data


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("data") / "train.parquet"
    pa.parquet.write_table(pa.table({"prompt": ["one", "two"], "data_source": ["x", "x"]}), file)
    return file.read_bytes()


def written(run, content: bytes, name: str = "train.parquet") -> str:
    (run.folder / name).write_bytes(content)
    return f"{TRAIN}={run.folder / name}"


def test_a_parquet_file_is_fine(run, parquet):
    assert run.findings(written(run, parquet)) == {}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory):
    """What preflight says of a train.parquet with these bytes."""
    file = tmp_path_factory.mktemp("judged") / "train.parquet"

    def judge(content: bytes) -> list[str]:
        file.write_bytes(content)
        return [error.got for error in readable_data(View({"data": {"train_files": str(file)}}), NereusOptions())]

    return judge


@given(st.data())
def test_a_parquet_file_that_was_cut_off_is_refused(judged, parquet, data):
    end = data.draw(st.integers(0, len(parquet) - 1))
    assert len(judged(parquet[:end])) == 1
    assert judged(parquet) == []


@given(st.binary() | st.binary().map(lambda content: b"PAR1" + content + b"PAR1"))
def test_a_parquet_file_has_room_for_its_footer(judged, content):
    footer = int.from_bytes(content[-8:-4], "little")
    complete = content[:4] == content[-4:] == b"PAR1" and 0 < footer <= len(content) - 12
    assert len(judged(content)) == (not complete)


def test_json_is_fine_and_nothing_is_not(run):
    assert run.findings(written(run, b'{"prompt": 1}\n', "train.jsonl")) == {}
    assert "empty" in only(run.findings(written(run, b"", "train.jsonl")), "readable_data").got


def test_a_format_that_verl_does_not_read_is_refused(run):
    assert "verl does not read .csv" in only(run.findings(written(run, b"prompt\n", "train.csv")), "readable_data").got


@pytest.mark.parametrize("key", ["data.train_files", "data.val_files"])
def test_one_missing_file_among_several_is_named(run, key):
    there = run.folder / "data.parquet"
    error = only(run.findings(f"{key}=[{there},{run.folder}/gone.parquet]"), "readable_data")
    assert error.where == key
    assert error.got == f"{run.folder}/gone.parquet (no such file)"


def test_a_file_without_permission_is_refused(judged, parquet, monkeypatch: pytest.MonkeyPatch):
    judged(parquet)

    def forbidden(*_: object) -> None:  # a stand-in, because root may read everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: None)
    (got,) = judged(parquet)
    assert "Permission denied" in got


def test_data_on_another_file_system_is_not_looked_for(run):
    assert run.findings(f"{TRAIN}=hdfs://cluster/train.parquet") == {}


def test_a_dataset_of_the_user_s_own_reads_what_it_likes(run):
    assert run.findings(f"{TRAIN}=/no/such.db", "data.custom_cls.path=mine.py", "data.custom_cls.name=Mine") == {}


# ---- reward


def test_no_reward_function_is_verl_s_own(run):
    assert run.findings(f"{REWARD}.path=null") == {}


def test_a_reward_function_is_fine(run):
    (run.folder / "reward.py").write_text("async def score(data_source, solution_str, ground_truth): ...\n")
    for path in (run.folder / "reward.py", f"file://{run.folder}/reward.py"):
        assert run.findings(f"{REWARD}.path={path}", f"{REWARD}.name=score") == {}


def test_a_reward_file_that_is_not_there_is_refused(run):
    error = only(run.findings(f"{REWARD}.path=/no/such/reward.py"), "reward_function")
    assert error.where == f"{REWARD}.path"
    assert error.got == "/no/such/reward.py (no such file)"


def test_a_reward_file_without_the_function_is_refused_with_the_names_it_has(run):
    (run.folder / "reward.py").write_text("def my_score(): ...\n")
    error = only(run.findings(f"{REWARD}.path={run.folder / 'reward.py'}"), "reward_function")
    assert error.where == f"{REWARD}.name"
    assert "has no compute_score" in error.got
    assert error.change == f"{REWARD}.name=my_score"
    assert run.findings(f"{REWARD}.path={run.folder / 'reward.py'}", error.change) == {}


def test_a_reward_file_that_is_not_python_is_refused_with_the_line(run):
    (run.folder / "reward.py").write_text("\ndef compute_score(:\n")
    assert "line 2" in only(run.findings(f"{REWARD}.path={run.folder / 'reward.py'}"), "reward_function").got


def test_a_reward_function_in_a_package_is_left_to_verl(run):
    assert run.findings(f"{REWARD}.path=pkg://some.package") == {}


STATEMENTS = st.sampled_from(
    [
        "def a(): b = 1",
        "async def b(): ...",
        "class c: d = 1",
        "e = f = lambda: 0",
        "g, (h, *i) = 1, (2, 3)",
        "j: int = 1",
        "import os",
        "import os.path",
        "import os as k",
        "from os import path as l, sep",
        "if True:\n    def m(): ...",
        "try:\n    n = 1\nexcept ValueError:\n    pass",
        "for o in range(2):\n    p = o",
        "with open(__import__('os').devnull) as q:\n    pass",
        "r = [s for s in range(3)]",
        "if (t := 1):\n    pass",
    ]
)


@given(st.lists(STATEMENTS))
def test_names_are_those_that_running_the_file_binds(statements):
    source = "\n".join(statements)
    namespace: dict[str, object] = {}
    exec(source, namespace)
    # More may be found than one run binds (the variable of a comprehension), never less.
    assert set(namespace) - {"__builtins__", "__annotations__"} <= defined_names(source.encode()) <= {*namespace, "s"}


@pytest.mark.parametrize("source", [b"from math import *\n", b"def __getattr__(name): ...\n"])
def test_a_module_that_binds_who_knows_what_is_not_judged(source):
    assert defined_names(source) is None


# ---- cost


def test_looking_costs_nothing():
    """No part of preflight imports what takes seconds, or verl itself."""
    code = "import sys, verl_ext.preflight; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "ray", "verl", "vllm", "pyarrow", "pandas", "numpy"} & set(loaded)
    assert "verl_ext" in loaded
