from __future__ import annotations

import math
from pathlib import Path

import pytest

from verl_ext.report import RunData, RunInfo, summarise
from verl_ext.report.findings import alike, cards, duration, short, verdict, warnings


def run_of(*metrics: dict[str, float], info: RunInfo | None = None) -> RunData:
    records = tuple(summarise(step, values) for step, values in enumerate(metrics, start=1))
    return RunData(path=Path("x"), source="nereus", files=(), records=records, info=info)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.8561, "0.856"),
        (3e-7, "3e-07"),
        (2.96e-7, "3e-07"),
        (1234.5, "1,234"),
        (math.nan, "nan"),
        (999.9, "1000"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4567, "0.457 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (3599.9, "1 h 00 min")],
)
def test_times_are_as_people_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_two_numbers_get_enough_digits_to_differ() -> None:
    assert alike(0.24, 0.8561) == ("0.24", "0.86")
    assert alike(0.5, 0.5009) == ("0.500", "0.501")
    assert alike(0.0186, 0.0273) == ("0.019", "0.027")
    assert alike(0.5, 0.5) == ("0.50", "0.50")


def test_the_verdict_is_one_line() -> None:
    gap = "training/rollout_probs_diff_max"
    steps = [{"critic/score/mean": 0.24, gap: 1e-7}, {"critic/score/mean": 0.86, gap: 3e-7}]
    assert verdict(run_of(*steps)) == "reward 0.24 \u2192 0.86 over 2 steps; rollout/trainer gap at most 3e-07"


def test_the_verdict_says_what_is_missing() -> None:
    assert verdict(run_of({"a": 1})) == "1 step, no reward logged; rollout/trainer gap not measured"
    partly = run_of({"training/rollout_probs_diff_max": 0.5}, {"training/rollout_probs_diff_max": math.inf})
    assert verdict(partly).endswith("gap at most 0.5, but not finite at 1 step")
    broken = run_of({"training/rollout_probs_diff_max": math.nan})
    assert verdict(broken).endswith("rollout/trainer gap not finite at any step")
    assert verdict(run_of()) == "no step recorded"


def test_a_missing_key_number_says_so() -> None:
    missing = {card.label: card for card in cards(run_of({"critic/score/mean": 0.5}))}
    assert missing["Rollout/trainer gap"].missing and missing["Rollout/trainer gap"].value == "not logged"
    assert not missing["Reward"].missing


def test_non_finite_values_holes_and_overlapping_timers_are_warnings() -> None:
    run = run_of({"a": math.nan}, {"a": 1, "timing_s/gen": 3, "timing_s/step": 2}, {"a": math.inf})
    found = warnings(run)
    assert "a is NaN or infinite at steps 1, 3." in found
    assert any("step 2 add up to more" in warning for warning in found)
    apart = RunData(path=Path("x"), source="", files=(), records=(summarise(1, {}), summarise(4, {})))
    assert "No record of steps 2, 3." in warnings(apart)
