"""A feature is one entry: whatever a toy of another package puts into it is found in every place, in a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_ext import ending
from verl_ext.demo import stack
from verl_ext.launch.environment import cpu_environment
from verl_ext.launch.prefork.start import Prefork

pytestmark = pytest.mark.e2e

HELLO = "nereus.toy.greeting=hello"


@pytest.fixture(scope="module")
def toy_prefork(toy_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefork]:
    environment = {**cpu_environment(), "PYTHONPATH": str(toy_package)}
    with Prefork(tmp_path_factory.mktemp("prefork") / "prefork.log", stack.PRELOAD, env=environment) as server:
        yield server


@pytest.fixture
def train_toy(trainer_of, toy_prefork, toy_package, assets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(toy_package))
    return trainer_of(toy_prefork, assets, tmp_path)


def test_a_toy_is_found_in_every_place(train_toy, tmp_path: Path):
    run = train_toy(HELLO, "data.seed=5").succeeded()

    # Banner and record.
    assert "toy (hello)" in run.log and "second toy" in run.log
    states = {state["name"]: state for state in run.info["features"]}
    toy = states["toy"]
    assert (toy["on"], toy["detail"], states["second toy"]["on"]) == (True, "hello", True)
    assert not states["selfish toy"]["on"]
    # Patch, door and extensions, each where it has to be; fact and right answer.
    assert set(toy["evidence"]) == {
        "patch verl-toy-patch applied in trainer",
        "door verl-toy-door applied in actor 0",
        "extension verl-toy-trainer applied in trainer",
        "extension verl-toy-engine applied in actor 0",
        "toy greeting right in 1 processes",
    }
    assert all(record["toy/patched"] == 1.0 for record in run.records)
    # Metric, through verl's own logger as well.
    assert [record["nereus/toy/steps"] for record in run.records] == [1.0, 2.0]
    assert "nereus/toy/steps:2.0" in run.log
    # The example of CONTRIBUTING, beside it: 8 prompts a step.
    assert states["prompt count"]["on"]
    assert [record["nereus/prompt_count/prompts"] for record in run.records] == [8, 8]
    # Lowered keys: what the user says stays.
    lowered: dict[str, Any] = {item["key"]: item for item in run.info["lowered"]}
    assert lowered["data.seed"] == {"feature": "toy", "key": "data.seed", "value": 5, "kept": True}
    assert run.info["title"] == lowered["trainer.experiment_name"]["value"] == "lowered"
    # The page: a section of its own, and a generic panel for the metric.
    page = (tmp_path / "report.html").read_text()
    assert "<p>2 greetings</p>" in page and 'id="figure-feature-toy"' in page
    assert "steps that the toy has seen" in page


def test_a_toy_that_stops_working_ends_the_run_by_its_name(train_toy, tmp_path: Path):
    run = train_toy(HELLO, "nereus.toy.deaf_from_step=2", steps=4)
    assert run.result.exit_code != 0
    found = ending.read(tmp_path)
    assert found is not None and (found.phase, found.step) == ("training", 2)
    assert found.what.startswith("toy is on and does not work: nereus/toy/steps")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert ("toy", "failed", 2) in [(event["feature"], event["kind"], event["step"]) for event in events]
    # The page is there, and says how it ended.
    assert "toy is on and does not work" in (tmp_path / "report.html").read_text()


def test_a_third_that_cannot_be_composed_is_refused(train_toy):
    message = train_toy(HELLO, "nereus.toy.selfish=true").refused()
    assert message.startswith("verl-toy-selfish and verl-toy-trainer cannot both extend")
    assert "verl-toy-selfish takes on_step_end for itself" in message


def test_a_process_kind_that_nobody_asked_ends_the_run(train_toy):
    message = train_toy(HELLO, "nereus.toy.judge=true").refused()
    assert message.startswith("the run has a process that nereus does not know")
    assert "Judge: nobody asked" in message and "nereus.roll_call.not_asked=[Judge]" in message


def test_rules_and_ranges_of_a_toy_are_asked(train_toy):
    assert train_toy("nereus.toy.greeting=forbidden").refused().startswith("this greeting is forbidden")
    assert "nereus.toy.greeting='helo' is not one of its values" in train_toy("nereus.toy.greeting=helo").refused()


def nereus(toy_package: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(toy_package)}
    command = [sys.executable, "-m", "verl_ext.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    return done.stdout + done.stderr


def test_the_command_line_and_the_doctor_know_the_toy(toy_package):
    assert "hello from the toy" in nereus(toy_package, "toy")
    assert "toy" in nereus(toy_package, "--help")
    lines = nereus(toy_package, "doctor").splitlines()
    assert "  no   toy (needs a child)" in lines
    for touch in ("verl-toy-patch", "verl-toy-door", "verl-toy-trainer", "verl-toy-engine"):
        assert f"  {touch}" in lines
