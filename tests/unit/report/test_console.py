from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.report import read_run
from verl_ext.report.verl_logs import parse_console_line

PREFIX = "230.3 \x1b[36m(TaskRunnerV1 pid=2963)\x1b[0m "
KEYS = st.lists(st.text("abz_@.0", min_size=1, max_size=5), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize("prefix", ["", PREFIX, "(TaskRunner pid=1) ", "2026-12-01 04:10:00 "])
def test_a_line_is_read_with_and_without_rays_prefix(prefix: str) -> None:
    line = prefix + "step:12 - actor/lr:0.003 - rollout_corr/kl:-2.7e-08 - num_turns/min:np.int32(2)"
    parsed = parse_console_line(line)
    assert parsed == (12, {"actor/lr": 0.003, "rollout_corr/kl": -2.7e-08, "num_turns/min": 2}, [])


@settings(max_examples=50, deadline=None)
@given(
    step=st.integers(0, 10**6),
    metrics=st.dictionaries(KEYS, st.floats() | st.integers(-(10**9), 10**9), min_size=1, max_size=6),
    as_numpy=st.booleans(),
)
def test_whatever_verl_prints_is_read_back(step: int, metrics: dict[str, float], as_numpy: bool) -> None:
    values = {key: np.float64(value) if as_numpy else value for key, value in metrics.items()}
    parsed = parse_console_line(PREFIX + " - ".join([f"step:{step}", *(f"{k}:{v!r}" for k, v in values.items())]))
    assert parsed is not None and parsed[0] == step and parsed[2] == []
    for key, value in metrics.items():
        assert parsed[1][key] == value or (math.isnan(value) and math.isnan(parsed[1][key]))


def test_a_name_may_hold_separators_and_colons() -> None:
    parsed = parse_console_line("step:1 - val-core/a - b:c/acc/mean@1:0.5 - z:1")
    assert parsed == (1, {"val-core/a - b:c/acc/mean@1": 0.5, "z": 1}, [])


def test_a_value_that_is_no_number_is_named_and_costs_only_itself() -> None:
    assert parse_console_line("step:1 - a:1 - b:oops - c:2") == (1, {"a": 1, "c": 2}, ["b"])


def test_rays_note_of_repeated_lines_is_no_value() -> None:
    line = "step:1 - a:1 - b:2\x1b[32m [repeated 3x across cluster]\x1b[0m"
    assert parse_console_line(line) == (1, {"a": 1, "b": 2}, [])


@pytest.mark.parametrize(
    "line", ["", "Training Progress: 5%", "global step:1", "step:1", "laststep:1 - a:1", "step:x - a:1"]
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_console_line(line) is None


def test_a_log_with_progress_bars_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(
        b"noise\nTraining:  0%|  |\r"
        + PREFIX.encode()
        + b"step:1 - critic/score/mean:0.5\nTraining: 50%|# |\rstep:2 - critic/score/mean:0.75\nbye\n"
    )
    run = read_run(tmp_path)
    assert run.source == "console" and run.series("reward") == ([1, 2], [0.5, 0.75])
    assert run.warnings == ()


def test_a_log_that_ends_within_a_line_loses_the_value_that_may_be_cut(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step:1 - a:0.5 - b:0.25\nstep:2 - a:0.5 - b:0.2")
    run = read_run(tmp_path)
    assert run.series("a")[0] == [1, 2] and run.series("b") == ([1], [0.25])
    assert "b of that step was left out" in run.warnings[0]


def test_a_validation_of_step_zero_and_metrics_of_two_processes_join(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step:0 - val-core/x:0.1\nstep:1 - a:1\nstep:1 - other/b:2\n")
    run = read_run(tmp_path)
    assert run.steps == [0, 1] and run.records[1]["a"] == 1 and run.records[1]["other/b"] == 2
    assert run.resumed_at == ()


def test_a_step_printed_again_means_a_resumed_run(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step:1 - a:1\nstep:2 - a:2\nstep:3 - a:3\nstep:2 - a:9\n")
    run = read_run(tmp_path)
    assert run.series("a") == ([1, 2], [1.0, 9.0]) and run.resumed_at == (2,)


def test_a_log_of_any_name_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "slurm"
    path.write_text("step:1 - a:1\n")
    assert read_run(path).series("a") == ([1], [1.0])
