"""One process that is missing or differs stops the run, by name, with what to do."""

from __future__ import annotations

import re

import pytest

from verl_ext.config import NereusOptions, WeightSyncOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.verl import process
from verl_ext.integrations.verl.process import Activation, report
from verl_ext.integrations.verl.record import table
from verl_ext.integrations.verl.roll_call import compare

NAMES = (
    "driver",
    "trainer",
    "actor 0",
    "actor 1",
    "rollout 0 server",
    "rollout 0 engine core",
    "rollout 0 engine worker 0",
)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the processes of a run say, as each of them would."""
    monkeypatch.setattr(process, "_active", Activation(NereusOptions(), "cuda", "vllm"))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return [{**report(name, name.split()[0]), "pid": 100 + number} for number, name in enumerate(NAMES)]


def refusal(reports: list[dict]) -> NereusError:
    with pytest.raises(NereusError) as raised:
        compare(reports)
    assert all((raised.value.where, raised.value.expected, raised.value.got, raised.value.change))
    return raised.value


def test_a_run_that_is_the_same_everywhere_goes_on(reports):
    assert compare(reports) is None
    for name in NAMES:
        assert name in table(reports)


@pytest.mark.parametrize("odd", range(len(NAMES)))
def test_a_process_without_nereus_is_named(reports, odd):
    reports[odd]["active"] = False
    error = refusal(reports)
    assert error.what == f"nereus is not active in {NAMES[odd]}"
    assert "install verl-nereus in the environment of every node" in error.change


def test_an_engine_that_cannot_answer_is_named_with_what_its_server_says(reports):
    # All that the server can say of an engine that has no method to ask.
    reports[5] = {"process": NAMES[5], "active": False, "error": "AttributeError: EngineCore has no nereus_report"}
    error = refusal(reports)
    assert error.what == "nereus is not active in rollout 0 engine core"
    assert error.got == "AttributeError: EngineCore has no nereus_report"


def test_a_process_that_knows_of_the_filter_says_so_itself(monkeypatch: pytest.MonkeyPatch, reports):
    monkeypatch.setattr(process, "_active", None)
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    reports[4] = report(NAMES[4], "server")
    assert "VLLM_PLUGINS=another leaves nereus out" in refusal(reports).got


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("version", "0.0.9", "same version of verl-nereus"),
        ("options", "0123456789ab", "do not set NEREUS_ACTIVATION by hand"),
        ("manifest", "0123456789ab", "same version of verl-nereus"),
        ("versions", {"verl": "0.9.0"}, "same upstream versions"),
    ],
)
@pytest.mark.parametrize("odd", range(1, len(NAMES)))
def test_a_process_that_differs_is_named_with_both_values(reports, odd, key, value, change):
    expected = str(reports[0][key])
    reports[odd][key] = value
    error = refusal(reports)
    assert error.what == f"nereus is not the same in {NAMES[odd]} as in driver"
    assert re.fullmatch(rf"{NAMES[odd]} on \S+, process {100 + odd}: {key}", error.where)
    assert (error.expected, error.got) == (expected, str(value))
    assert change in error.change


def test_a_process_without_a_patch_it_needs_is_named_with_the_patch(reports):
    reports[2]["missing"] = ["verl-bounded-weight-sync-wait"]
    error = refusal(reports)
    assert error.what == "actor 0 runs without a patch it needs"
    assert "verl-bounded-weight-sync-wait" in error.expected


def test_a_setting_that_only_one_side_has_stops_the_run_at_the_handshake(monkeypatch: pytest.MonkeyPatch):
    """CF-03: what only the driver is told would make the two sides compute differently."""
    sides = []
    for name, seconds in (("driver", 45.0), ("actor 0", 30.0)):
        options = NereusOptions(weight_sync=WeightSyncOptions(stall_timeout_s=seconds))
        monkeypatch.setattr(process, "_active", Activation(options, "cuda", "vllm"))
        sides.append(report(name, name.split()[0]))
    assert refusal(sides).where.endswith(": options")


@pytest.mark.parametrize("odd", range(1, len(NAMES)))
def test_who_answers_first_does_not_matter(reports, odd):
    reports[odd]["options"] = "0123456789ab"
    driver, *others = reports
    for turn in range(len(others)):
        assert NAMES[odd] in refusal([driver, *others[turn:], *others[:turn]]).what
