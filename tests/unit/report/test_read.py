from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from verl_ext.errors import NereusError
from verl_ext.report import RunInfo, RunWriter, read_run, summarise


def file_logger(path: Path, *entries: tuple[int, dict[str, float | None]]) -> Path:
    """A file as verl's `file` logger writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in entries))
    return path


def test_verls_file_logger_is_read_below_the_folder(tmp_path: Path) -> None:
    path = file_logger(tmp_path / "project" / "experiment.jsonl", (1, {"critic/score/mean": 0.5}), (2, {"a": 1}))
    run = read_run(tmp_path)
    assert run.source == "verl file logger" and run.files == (path,)
    assert run.steps == [1, 2] and run.records[0]["reward"] == 0.5


def test_a_null_of_the_file_logger_is_nan_with_a_warning(tmp_path: Path) -> None:
    run = read_run(file_logger(tmp_path / "x.jsonl", (1, {"actor/grad_norm": None})))
    value = run.records[0]["actor/grad_norm"]
    assert isinstance(value, float) and math.isnan(value)
    assert any("actor/grad_norm" in warning and "null" in warning for warning in run.warnings)


def test_a_torn_line_of_the_file_logger_is_reported(tmp_path: Path) -> None:
    path = file_logger(tmp_path / "x.jsonl", (1, {"a": 1}))
    path.write_text(path.read_text() + '{"step": 2, "da')
    run = read_run(path)
    assert run.steps == [1] and "line 2 cannot be read" in run.warnings[0]


def test_rollout_dumps_are_not_taken_for_the_file_logger(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"input": "a", "output": "b", "step": 1}\n')
    with pytest.raises(NereusError, match="no record"):
        read_run(tmp_path)


def test_tensorboard_events_are_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    folder = tmp_path / "tensorboard_log" / "project" / "experiment"
    for step, value in ((1, 0.25), (2, 0.5)):
        # verl opens one writer a process; a resumed run leaves a second file.
        writer = tensorboard.SummaryWriter(str(folder), filename_suffix=f".{step}")
        writer.add_scalar("critic/score/mean", value, step)
        writer.add_scalar("timing_s/step", 2.0, step)
        writer.close()
    run = read_run(tmp_path)
    assert run.source == "tensorboard" and len(run.files) == 2
    assert run.series("reward") == ([1, 2], [0.25, 0.5]) and run.series("seconds")[1] == [2.0, 2.0]


def test_without_the_tensorboard_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(NereusError) as caught:
        read_run(tmp_path)
    assert "pip install tensorboard" in caught.value.change


def test_the_best_source_counts(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step:1 - a:1\n")
    assert read_run(tmp_path).source == "console"
    file_logger(tmp_path / "x.jsonl", (1, {"a": 2}))
    assert read_run(tmp_path).source == "verl file logger"
    with RunWriter(tmp_path) as writer:
        writer.append(summarise(1, {"a": 3}))
    assert read_run(tmp_path).source == "nereus"
    assert read_run(tmp_path).records[0]["a"] == 3


def test_a_run_that_stopped_before_its_first_step_can_be_reported(tmp_path: Path) -> None:
    RunWriter(tmp_path).write_run(RunInfo(command=["x"], started_at="now"))
    run = read_run(tmp_path)
    assert run.records == () and run.info is not None and run.source == "none"
    assert "No step was recorded" in run.warnings[0]


def test_nereus_record_is_found_one_folder_down_and_by_its_file(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "nereus") as writer:
        writer.write_run(RunInfo(command=["x"], started_at="now"))
        writer.append(summarise(1, {"a": 1}))
    for path in (
        tmp_path,
        tmp_path / "nereus",
        tmp_path / "nereus" / "run.json",
        tmp_path / "nereus" / "metrics.jsonl",
    ):
        run = read_run(path)
        assert run.source == "nereus" and run.info is not None and run.steps == [1]


def test_a_folder_of_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        file_logger(tmp_path / f"{name}.jsonl", (1, {"a": 1}))
    with pytest.raises(NereusError, match="several runs") as caught:
        read_run(tmp_path)
    assert "one.jsonl, two.jsonl" in caught.value.got


def test_several_console_logs_are_one_run_and_said_to_be(tmp_path: Path) -> None:
    for index, name in enumerate(("b.log", "a.log")):
        (tmp_path / name).write_text(f"step:{index + 1} - a:{index}\n")
        os.utime(tmp_path / name, (index, index))
    run = read_run(tmp_path)
    assert run.steps == [1, 2] and "oldest first: b.log, a.log" in run.warnings[-1]


@pytest.mark.parametrize("content", [None, "", "nothing here\n"])
def test_nothing_found_says_what_was_looked_for(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "train.log").write_text(content)
    with pytest.raises(NereusError, match="no record of a run") as caught:
        read_run(tmp_path)
    assert "metrics.jsonl" in caught.value.expected and "TensorBoard" in caught.value.expected


def test_a_missing_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(NereusError, match="no record"):
        read_run(tmp_path / "nowhere")


def test_a_record_of_nothing_but_torn_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a')
    with pytest.raises(NereusError, match="no record") as caught:
        read_run(tmp_path)
    assert "line 1 cannot be read" in caught.value.got


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "run.json that nereus wrote"),
        ("[]", "a JSON object"),
        ("{}", "the field command"),
        ('{"command": "x", "started_at": "now"}', "command to be a list"),
        ('{"command": [], "started_at": "now", "processes": [1]}', "every entry of processes"),
    ],
)
def test_a_run_description_that_cannot_be_read_says_why(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(NereusError) as caught:
        read_run(tmp_path)
    assert expected in caught.value.expected


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 9, "command": [], "started_at": "now", "later": 1}')
    assert read_run(tmp_path).info == RunInfo(command=[], started_at="now")
