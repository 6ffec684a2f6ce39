"""One process that is missing or gives a wrong answer stops the run, by name, with what to do."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest

from verl_ext.config import NereusOptions, WeightSyncOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Fact, Feature
from verl_ext.integrations import run as runs
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.run import Run
from verl_ext.integrations.verl import roll_call
from verl_ext.integrations.verl.answers import own_answer
from verl_ext.integrations.verl.record import banner, table
from verl_ext.integrations.verl.roll_call import compare, states

NAMES = (
    "driver",
    "trainer",
    "actor 0",
    "actor 1",
    "rollout 0 server",
    "rollout 0 engine core",
    "rollout 0 engine worker 0",
)
RUN = Run(NereusOptions(), "cuda", "vllm")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the processes of a run say, as each of them would."""
    monkeypatch.setattr(runs, "_active", RUN)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    given = [{**own_answer(name, name.split()[0]), "pid": 100 + number} for number, name in enumerate(NAMES)]
    return json.loads(json.dumps(given))  # as they come over the wire


def refusal(answers: list[dict], features=FEATURES) -> NereusError:
    with pytest.raises(NereusError) as raised:
        compare(answers, RUN, features)
    assert all((raised.value.where, raised.value.expected, raised.value.got, raised.value.change))
    return raised.value


def test_a_run_that_is_the_same_everywhere_goes_on(answers):
    assert compare(answers, RUN, FEATURES) is None
    for name in NAMES:
        assert name in table(answers)


@pytest.mark.parametrize("odd", range(len(NAMES)))
def test_a_process_without_nereus_is_named(answers, odd):
    answers[odd].update(active=False, why="it has no nereus")
    error = refusal(answers)
    assert error.what == f"nereus is not active in {NAMES[odd]}"
    assert error.got == "it has no nereus"
    assert "install verl-nereus in the environment of every node" in error.change


def test_an_engine_that_cannot_answer_is_named_with_what_its_server_says(answers):
    # All that the server can say of an engine that has no method to ask.
    answers[5] = {"process": NAMES[5], "active": False, "why": "AttributeError: EngineCore has no nereus_answer"}
    error = refusal(answers)
    assert error.what == "nereus is not active in rollout 0 engine core"
    assert error.got == "AttributeError: EngineCore has no nereus_answer"


def test_a_process_that_knows_of_the_filter_says_so_itself(monkeypatch: pytest.MonkeyPatch, answers):
    monkeypatch.setattr(runs, "_active", None)
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    answers[4] = own_answer(NAMES[4], "server")
    assert "VLLM_PLUGINS=another leaves nereus out" in refusal(answers).got


@pytest.mark.parametrize(
    ("fact", "value", "change"),
    [
        ("code of nereus", "0.0.9 0123456789ab", "same version of verl-nereus"),
        ("options", "0123456789ab", "do not set NEREUS_ACTIVATION by hand"),
        ("manifest", "0123456789ab", "same version of verl-nereus"),
        ("versions", {"verl": "0.9.0"}, "same upstream versions"),
    ],
)
@pytest.mark.parametrize("odd", range(1, len(NAMES)))
def test_a_process_that_differs_is_named_with_both_values(answers, odd, fact, value, change):
    expected = str(answers[0]["facts"][fact])
    answers[odd]["facts"][fact] = value
    error = refusal(answers)
    assert error.what == f"{fact} is not right in {NAMES[odd]}"
    assert re.fullmatch(rf"{NAMES[odd]} on \S+, process {100 + odd}", error.where)
    assert (error.expected, error.got) == (expected, str(value))
    assert change in error.change


def test_a_fact_that_is_missing_is_not_right(answers):
    del answers[3]["facts"]["options"]
    assert refusal(answers).got == "no answer"


def test_a_process_without_something_it_needs_is_named_with_it(answers):
    answers[2]["needed"] = ["verl-bounded-weight-sync-wait"]
    error = refusal(answers)
    assert error.what == "actor 0 runs without something it needs"
    assert "verl-bounded-weight-sync-wait" in error.expected
    answers[2]["applied"] = ["verl-bounded-weight-sync-wait"]
    assert compare(answers, RUN, FEATURES) is None


def test_a_setting_that_only_one_side_has_stops_the_run_at_the_handshake(monkeypatch: pytest.MonkeyPatch):
    """CF-03: what only the driver is told would make the two sides compute differently."""
    sides = []
    for name, seconds in (("driver", 45.0), ("actor 0", 30.0)):
        options = NereusOptions(weight_sync=WeightSyncOptions(stall_timeout_s=seconds))
        monkeypatch.setattr(runs, "_active", Run(options, "cuda", "vllm"))
        sides.append({**own_answer(name, "driver"), "needed": []})
    assert refusal(sides).what == "options is not right in actor 0"


@pytest.mark.parametrize("odd", range(1, len(NAMES)))
def test_who_answers_first_does_not_matter(answers, odd):
    answers[odd]["facts"]["options"] = "0123456789ab"
    driver, *others = answers
    for turn in range(len(others)):
        assert NAMES[odd] in refusal([driver, *others[turn:], *others[:turn]]).what


def test_a_feature_may_know_the_right_answer_itself(answers):
    fact = Fact("colour", "json:dumps", "paint it", right=lambda run: run.platform, roles=frozenset({"actor"}))
    feature = Feature(name="paint", summary="", state="", tested="", on=lambda run: True, facts=(fact,))
    for item in answers:
        if item["role"] == "actor":
            item["facts"]["colour"] = "cuda"
    assert compare(answers, RUN, [*FEATURES, feature]) is None
    answers[3]["facts"]["colour"] = "cpu"
    error = refusal(answers, [*FEATURES, feature])
    assert (error.what, error.expected, error.got) == ("colour is not right in actor 1", "cuda", "cpu")
    assert compare(answers, RUN, [*FEATURES, replace(feature, on=lambda run: False)]) is None


def test_the_state_of_a_feature_is_what_the_answers_prove(answers):
    proven = copy.deepcopy(answers)
    for item in proven:
        if item["role"] == "actor":
            item.update(needed=["verl-bounded-weight-sync-wait"], applied=["verl-bounded-weight-sync-wait"])
    found = {state.name: state for state in states(proven, RUN, FEATURES)}
    assert [*found] == [feature.name for feature in FEATURES]
    sync = found["bounded weight sync"]
    assert (sync.on, sync.detail) == (True, "45 s")
    assert sync.evidence == ("patch verl-bounded-weight-sync-wait applied in actor 0, actor 1",)
    assert not found["cpu platform"].on and not found["cpu platform"].evidence
    line = banner(list(found.values()), RUN, len(proven))
    assert "bounded weight sync (45 s)" in line and "cpu platform" not in line


# ---- who was not asked


def row(name: str, state: str = "ALIVE") -> dict:
    return {"ActorClassName": name, "State": state, "Pid": 7, "Address": {"IPAddress": "10.0.0.2"}}


@pytest.fixture
def table_of_ray(monkeypatch: pytest.MonkeyPatch):
    ray = pytest.importorskip("ray")
    from ray._private import state

    rows: dict[str, dict] = {}
    context = type("Context", (), {"get_job_id": lambda self: "01000000"})
    monkeypatch.setattr(ray, "get_runtime_context", context)
    monkeypatch.setattr(state, "actors", lambda job_id: rows)
    return rows


def test_an_actor_that_nobody_asked_is_found(table_of_ray):
    table_of_ray.update(a=row("WorkerDict"), b=row("Judge"), c=row("Gone", "DEAD"), d=row("SimpleStorageUnit"))
    assert roll_call.unasked({"a"}, []) == ["Judge (process 7 on 10.0.0.2)"]
    assert roll_call.unasked({"a"}, ["Judge"]) == []
    assert roll_call.unasked({"a", "b"}, []) == []


def test_a_table_of_another_shape_is_refused_and_not_taken_for_empty(table_of_ray):
    table_of_ray["a"] = {"class_name": "Judge"}
    with pytest.raises(NereusError, match="the table of Ray's actors cannot be read"):
        roll_call.unasked(set(), [])
