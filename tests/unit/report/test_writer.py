from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.errors import NereusError
from verl_ext.report import RunInfo, RunWriter, read_run, summarise

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).map(lambda name: f"m/{name}")
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
METRICS = st.dictionaries(NAMES, FLOATS | st.integers(-(2**53), 2**53), max_size=5)
FEW = settings(max_examples=60, deadline=None)


def same(left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    """Equality of records in which NaN equals NaN."""
    return list(left) == list(right) and all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(left.values(), right.values(), strict=True)
    )


def new_folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("run")


@FEW
@given(steps=st.lists(METRICS, min_size=1, max_size=6))
def test_what_was_written_is_read_back_even_nan_and_infinity(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, float]]
) -> None:
    folder = new_folder(tmp_path_factory)
    records = [summarise(index, metrics) for index, metrics in enumerate(steps)]
    with RunWriter(folder) as writer:
        for record in records:
            writer.append(record)
    run = read_run(folder)
    assert run.source == "nereus" and run.warnings == ()
    assert len(run.records) == len(records)
    assert all(same(read, wrote) for read, wrote in zip(run.records, records, strict=True))


@FEW
@given(steps=st.lists(METRICS, min_size=1, max_size=4))
def test_every_line_is_json_for_any_reader_and_names_what_is_not_finite(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, float]]
) -> None:
    folder = new_folder(tmp_path_factory)
    with RunWriter(folder) as writer:
        for index, metrics in enumerate(steps):
            writer.append(summarise(index, metrics))

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    for metrics, line in zip(steps, lines, strict=True):
        data = json.loads(line, parse_constant=refuse)
        bad = {key for key, value in metrics.items() if not math.isfinite(value)}
        assert {mark.rpartition("=")[0] for mark in data.get("non_finite", [])} == bad
        assert all(data[key] is None for key in bad)


@FEW
@given(count=st.integers(2, 6), cut=st.integers(1, 10_000), again=st.booleans())
def test_a_cut_last_line_costs_that_line_only_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int, again: bool
) -> None:
    folder = new_folder(tmp_path_factory)
    path = folder / "metrics.jsonl"
    with RunWriter(folder) as writer:
        for step in range(count):
            writer.append(summarise(step, {"critic/score/mean": 0.5, "a": math.nan}))
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    kept = last + 1 + cut % (len(whole) - last - 3)
    path.write_bytes(whole[:kept])
    expected = list(range(count - 1))
    if again:
        with RunWriter(folder) as writer:
            writer.append(summarise(count - 1, {"critic/score/mean": 0.6}))
        expected.append(count - 1)
    run = read_run(folder)
    assert run.steps == expected
    assert any(f"line {count}" in warning and "cannot be read" in warning for warning in run.warnings)


@FEW
@given(runs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=5))
def test_a_resumed_run_shows_the_last_attempt_at_each_step(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    folder = new_folder(tmp_path_factory)
    expected: dict[int, float] = {}
    for attempt, (first, count) in enumerate(runs):
        expected = {step: value for step, value in expected.items() if step < first}
        with RunWriter(folder) as writer:
            for step in range(first, first + count):
                writer.append(summarise(step, {"critic/score/mean": float(attempt)}))
                expected[step] = float(attempt)
    run = read_run(folder)
    assert dict(zip(*run.series("reward"), strict=True)) == expected


def test_steps_after_the_resumed_one_are_gone_even_before_they_are_trained_again(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for step in range(1, 11):
            writer.append(summarise(step, {"critic/score/mean": 0.1}))
    with RunWriter(tmp_path) as writer:
        writer.append(summarise(6, {"critic/score/mean": 0.2}))
    run = read_run(tmp_path)
    assert run.steps == [1, 2, 3, 4, 5, 6] and run.resumed_at == (6,)
    assert any("resumed at step 6; 5 superseded" in warning for warning in run.warnings)


def test_the_validation_before_a_resumed_training_hides_nothing(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.append(summarise(step, {"critic/score/mean": 0.1 * step}))
    with RunWriter(tmp_path) as writer:
        writer.append(summarise(2, {"val-core/x/acc/mean@1": 0.7}))
        writer.append(summarise(3, {"critic/score/mean": 0.9}))
    run = read_run(tmp_path)
    assert run.series("critic/score/mean") == ([1, 2, 3], [0.1, 0.2, 0.9])
    assert run.series("val-core/x/acc/mean@1") == ([2], [0.7])


def test_the_resumed_step_can_be_given(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.append(summarise(step, {"critic/score/mean": 0.1}))
    with RunWriter(tmp_path, resumed_at=2) as writer:
        writer.append(summarise(1, {"val-core/x/acc/mean@1": 0.7}))
    assert read_run(tmp_path).steps == [1]


def test_a_second_writer_in_one_process_may_close_and_go_on(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.append(summarise(1, {}))
    writer.close()
    writer.append(summarise(2, {}))
    writer.close()
    assert read_run(tmp_path).steps == [1, 2] and read_run(tmp_path).resumed_at == ()


def test_each_record_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "deep" / "er")
    writer.append(summarise(1, {"a": np.float64(2.0)}))
    assert read_run(tmp_path / "deep" / "er").records[0]["a"] == 2.0
    writer.close()


@pytest.mark.parametrize(
    "record",
    [{"reward": 1.0}, {"step": 1.5}, {"step": True}, {"step": 1, "a": [1, 2]}, {"step": 1, "non_finite": "x"}],
)
def test_a_record_that_could_not_be_read_back_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    with pytest.raises(NereusError, match="cannot be written"), RunWriter(tmp_path) as writer:
        writer.append(record)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_run_description_is_read_back_and_the_command_pastes_into_a_shell(tmp_path: Path) -> None:
    info = RunInfo(
        command=["python3", "-m", "main", "a='b c'", "x=$HOME"],
        started_at="2026-12-01T04:10:00+00:00",
        title="\u00fc",
        features=[{"name": "f", "on": True, "detail": "", "evidence": []}],
        processes=[{"process": "actor 0", "pid": 3, "applied": ["a-b"]}],
        baselines={"constant": 0.25},
    )
    RunWriter(tmp_path).write_run(info)
    assert read_run(tmp_path).info == info
    assert shlex.split((tmp_path / "command.txt").read_text()) == info.command


def test_a_baseline_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NereusError, match="baseline"):
        RunInfo(command=[], started_at="", baselines={"x": math.nan})


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NereusError, match="is a file"):
        RunWriter(tmp_path / "file")
