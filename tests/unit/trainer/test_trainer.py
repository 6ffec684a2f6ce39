"""What nereus adds to verl's trainer, on a trainer that has verl's hooks and trains nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_ext import ending
from verl_ext.config import NereusOptions, ReportOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Feature, Metric
from verl_ext.integrations import run as runs
from verl_ext.integrations.run import Run
from verl_ext.integrations.verl import record, roll_call, trainer
from verl_ext.integrations.verl.trainer import ObservedTrainer

ANSWER = {
    "process": "driver",
    "role": "driver",
    "pid": 1,
    "host": "here",
    "active": True,
    "why": "",
    "applied": [],
    "needed": [],
    "facts": {"code of nereus": "0.1.0 0123456789ab"},
}
HEARD = Metric("nereus/echo/heard", "share", "requests that came back", healthy=(1.0, 1.0))


class Hooks:
    """verl's trainer, as far as it is overridden: the order of its hooks, and a step that logs a reward."""

    fail_in = ""

    def __init__(self, config: Any):
        self.config, self.global_steps, self.logged = config, 0, []
        self.reach("__init__")

    def reach(self, hook: str) -> None:
        if self.fail_in == hook:
            raise ValueError(f"failed in {hook}")

    def init(self) -> None:
        self.reach("init")
        self.on_init_end()

    def on_init_end(self) -> None:
        self.reach("on_init_end")

    def fit(self, agent_loop_manager: Any) -> None:
        for step in range(1, 4):
            self.global_steps = step
            metrics: dict[str, Any] = {}
            self.reach(f"step {step}")
            self._compute_metrics(None, metrics, {}, global_steps=step, epoch=0)
            self.logged.append(metrics)

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: Any, global_steps: int, epoch: int) -> None:
        metrics["critic/score/mean"] = 0.1 * global_steps


class Trainer(ObservedTrainer, Hooks):
    pass


def heard(_trainer: Trainer, metrics: dict[str, Any]) -> dict[str, float]:
    assert "critic/score/mean" in metrics  # what verl logs is there
    return {HEARD.name: 1.0 if metrics["critic/score/mean"] < 0.25 else 0.0}


ECHO = Feature(
    name="echo",
    summary="",
    state="",
    tested="",
    on=lambda run: True,
    measure="echo_of_the_tests:heard",
    metrics=(HEARD,),
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Make a trainer in a process of a run; its roll call is asked of nobody, and its page is not built."""
    import sys
    from types import SimpleNamespace

    monkeypatch.setattr(runs, "_active", Run(NereusOptions(report=ReportOptions(dir=str(tmp_path))), "cuda", "vllm"))
    monkeypatch.setattr(roll_call, "take", lambda *_: [ANSWER])
    monkeypatch.setattr(record.PageBuilder, "close", lambda self: True)
    monkeypatch.setitem(sys.modules, "echo_of_the_tests", SimpleNamespace(heard=heard))

    def make(*features: Feature, fail_in: str = "") -> Trainer:
        monkeypatch.setattr(trainer, "FEATURES", features)
        monkeypatch.setattr(Hooks, "fail_in", fail_in)
        return Trainer(config=OmegaConf.create({"trainer": {"experiment_name": "mine"}}))

    return make


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_step_is_recorded_and_the_answers_with_it(made, tmp_path: Path):
    run = made()
    run.init()
    run.fit("loop")
    assert run.agent_loop_manager == "loop"
    assert [item["step"] for item in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["title"] == "mine" and [item["process"] for item in info["processes"]] == ["driver"]
    assert lines(tmp_path / "events.jsonl")[0]["kind"] == "passed"
    assert ending.read(tmp_path) is None


def test_a_feature_logs_through_verl_before_verl_does(made):
    run = made(ECHO)
    with pytest.raises(NereusError):
        run.fit("loop")
    assert [metrics[HEARD.name] for metrics in run.logged] == [1.0, 1.0]


def test_a_feature_that_stops_working_ends_the_run_by_its_name(made, tmp_path: Path):
    with pytest.raises(NereusError, match="echo is on and does not work"):
        made(ECHO).fit("loop")
    assert [item["step"] for item in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]  # the bad step is on record
    failed = lines(tmp_path / "events.jsonl")[-1]
    assert (failed["feature"], failed["kind"], failed["step"]) == ("echo", "failed", 3)
    found = ending.read(tmp_path)
    assert found is not None and (found.phase, found.step) == ("training", 3)


@pytest.mark.parametrize("hook", ["__init__", "init", "on_init_end"])
def test_an_error_before_training_leaves_its_ending_and_no_report(made, tmp_path: Path, hook):
    with pytest.raises(ValueError, match=f"failed in {hook}"):
        made(fail_in=hook).init()
    assert [file.name for file in tmp_path.iterdir()] == ["end.json"]
    found = ending.read(tmp_path)
    assert found is not None and (found.phase, found.step, found.got) == ("start", None, f"failed in {hook}")


def test_a_refusal_at_the_roll_call_says_so(made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise NereusError("nereus is not active in actor 1", where="actor 1", expected="yes", got="no", change="do")

    monkeypatch.setattr(roll_call, "take", refuse)
    with pytest.raises(NereusError):
        made().init()
    found = ending.read(tmp_path)
    assert found is not None and (found.phase, found.where) == ("roll call", "actor 1")


def test_an_error_in_a_step_is_on_record_with_its_step(made, tmp_path: Path):
    with pytest.raises(ValueError, match="failed in step 2"):
        made(fail_in="step 2").fit("loop")
    found = ending.read(tmp_path)
    assert found is not None and (found.phase, found.step) == ("training", 2)
    assert [item["step"] for item in lines(tmp_path / "metrics.jsonl")] == [1]


def test_outside_a_run_there_is_no_such_trainer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "_active", None)
    with pytest.raises(RuntimeError, match="not part of a run"):
        Trainer(config=None)
