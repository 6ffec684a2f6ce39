"""The entry of a feature: what is active, what excludes what, and when a feature that is on does not work."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from verl_ext.errors import NereusError
from verl_ext.feature import Feature, Metric, active, unhealthy
from verl_ext.integrations.features import FEATURES, OWN

HEAVY = ("torch", "verl", "vllm", "ray", "matplotlib", "transformers", "megatron", "numpy", "pandas")
ALIVE = Metric("nereus/echo/heard", "share", "requests that came back", healthy=(0.5, 1.0), from_step=2)


def feature(name: str, on: bool = True, **fields: object) -> Feature:
    return Feature(name=name, summary="", state="", tested="", on=lambda run: on, **fields)  # type: ignore[arg-type]


def test_the_features_cost_nothing_to_import():
    code = f"import sys, verl_ext.integrations.features; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_every_feature_of_ours_says_all_there_is_to_say():
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    for each in OWN:
        assert each.summary and each.state and each.section is None
        assert all(other in {known.name for known in OWN} for other in each.excludes)
        for metric in each.metrics:
            assert metric.name.startswith("nereus/") and each.measure


def test_those_that_are_on_keep_their_order():
    features = [feature("a"), feature("b", on=False), feature("c")]
    assert [each.name for each in active(features, None)] == ["a", "c"]  # type: ignore[arg-type]


def test_two_that_exclude_each_other_are_refused_with_the_reason():
    one, other = feature("a", excludes={"b": "both own the cache"}), feature("b")
    with pytest.raises(NereusError, match="a and b cannot both be on: both own the cache"):
        active([one, other], None)  # type: ignore[arg-type]
    assert active([one, replace(other, on=lambda run: False)], None) == [one]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.5, 0.75, 1, 1.0])
def test_a_feature_in_its_healthy_range_is_left_alone(value):
    assert unhealthy(feature("echo", metrics=(ALIVE,)), 2, {ALIVE.name: value}) is None


@pytest.mark.parametrize("value", [0.49, 1.01, 0, -1.0, math.nan, math.inf])
def test_a_feature_outside_of_it_is_named(value):
    error = unhealthy(feature("echo", metrics=(ALIVE,)), 2, {ALIVE.name: value})
    assert error is not None and error.what.startswith("echo is on and does not work: nereus/echo/heard")
    assert error.expected == "0.5 to 1 share" and error.got == f"{value:g}"


def test_a_feature_that_says_nothing_is_named():
    error = unhealthy(feature("echo", metrics=(ALIVE,)), 3, {"critic/score/mean": 1.0})
    assert error is not None and error.got == "nothing was logged"


def test_before_its_first_step_and_without_a_range_nothing_is_asked():
    assert unhealthy(feature("echo", metrics=(ALIVE,)), 1, {}) is None
    assert unhealthy(feature("echo", metrics=(replace(ALIVE, healthy=None),)), 9, {}) is None
