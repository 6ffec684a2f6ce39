from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from verl_ext.errors import NereusError
from verl_ext.report.names import is_validation_only, number, phases, summarise


def test_summary_comes_first_and_verls_metrics_keep_their_names() -> None:
    record = summarise(3, {"critic/score/mean": 0.5, "timing_s/step": 2.0, "response_length/mean": 8.0, "my/own": 1})
    assert list(record) == [
        "step",
        "reward",
        "response_length",
        "rollout_gap_max",
        "seconds",
        "critic/score/mean",
        "timing_s/step",
        "response_length/mean",
        "my/own",
    ]
    assert (record["step"], record["reward"], record["seconds"], record["my/own"]) == (3, 0.5, 2.0, 1)


def test_a_gap_that_was_not_measured_is_none_and_never_zero() -> None:
    assert summarise(1, {})["rollout_gap_max"] is None
    assert summarise(1, {"training/rollout_probs_diff_max": 0.0})["rollout_gap_max"] == 0.0


def test_reward_falls_back_to_the_reward_after_the_penalty() -> None:
    assert summarise(1, {"critic/rewards/mean": 0.1})["reward"] == 0.1
    assert summarise(1, {"critic/rewards/mean": 0.1, "critic/score/mean": 0.2})["reward"] == 0.2


def test_numpy_numbers_become_plain_and_what_is_no_number_is_left_out() -> None:
    logged = {"a": np.float64(0.5), "b": np.int32(2), "c": "text", "d": np.zeros(3), "e": None, "f": np.array(1.5)}
    record = summarise(1, logged)
    assert {key: record[key] for key in "abf"} == {"a": 0.5, "b": 2, "f": 1.5}
    assert type(record["a"]) is float and type(record["b"]) is int
    assert not {"c", "d", "e"} & set(record)


@pytest.mark.parametrize(("value", "plain"), [(True, 1), (Fraction(1, 2), 0.5), (np.float32(0.25), 0.25)])
def test_number_takes_anything_that_is_one(value: object, plain: float) -> None:
    assert number(value) == plain


def test_number_keeps_nan() -> None:
    assert math.isnan(number(float("nan")))  # type: ignore[arg-type]


def test_a_metric_named_like_a_summary_key_is_refused() -> None:
    with pytest.raises(NereusError, match="summary key") as caught:
        summarise(4, {"reward": 1.0})
    assert "reward" in caught.value.got and caught.value.change


def test_a_validation_is_told_from_a_training_step() -> None:
    assert is_validation_only(summarise(0, {"val-core/x/acc/mean@1": 0.1, "val-aux/num_turns/min": 2}))
    assert not is_validation_only(summarise(1, {"val-core/x/acc/mean@1": 0.1, "actor/lr": 0.1}))
    assert not is_validation_only(summarise(1, {}))


def test_phases_are_those_within_a_step_in_its_order() -> None:
    timers = ["step", "testing", "update_actor", "gen", "zeta", "agent_loop/tool_calls/mean", "adv"]
    keys = [f"timing_s/{name}" for name in timers]
    assert phases([*keys, "actor/lr"]) == ["timing_s/gen", "timing_s/adv", "timing_s/update_actor", "timing_s/zeta"]
