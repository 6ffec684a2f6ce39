"""How a process learns that it is part of a run. Nothing is patched or registered here: that needs a fresh process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.config import CpuOptions, NereusOptions, ReportOptions, TrainerOptions, WeightSyncOptions
from verl_ext.errors import NereusError
from verl_ext.integrations import run as runs
from verl_ext.integrations.run import VARIABLE, Run, active
from verl_ext.integrations.sglang import plugin as sglang_plugin
from verl_ext.integrations.verl import roll_call
from verl_ext.integrations.verl.answers import own_answer
from verl_ext.integrations.verl.join import join, ray_setup_hook
from verl_ext.integrations.vllm import plugin as vllm_plugin
from verl_ext.routing.options import RoutingOptions

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
options = st.builds(
    NereusOptions,
    routing=st.builds(RoutingOptions, mode=st.sampled_from(["off", "R2", "R3", "PR2"])),
    weight_sync=st.builds(WeightSyncOptions, stall_timeout_s=positive),
    trainer=st.builds(TrainerOptions, poll_interval_s=st.none() | positive),
    report=st.builds(ReportOptions, dir=st.text(), title=st.text(), baselines=st.just(["a=0.5"])),
    cpu=st.builds(CpuOptions, python=st.none() | st.text()),
)
RUN = Run(NereusOptions(), "cuda", "vllm")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_active", None)
    monkeypatch.delenv(VARIABLE, raising=False)


@given(options, st.sampled_from(["cuda", "cpu", "npu"]), st.dictionaries(st.text(), st.text()))
def test_what_the_driver_sends_is_what_a_worker_gets(chosen, platform, versions):
    sent = Run(chosen, platform, "vllm", {"actor": "fsdp2"}, "sync", versions)
    received = Run.from_json(sent.to_json())
    assert received == sent
    assert received.options.digest() == chosen.digest()


def test_two_runs_are_never_the_same():
    assert Run(NereusOptions(), "cuda", "vllm") != Run(NereusOptions(), "cuda", "vllm")


def test_an_option_that_this_version_does_not_have_is_an_error_and_not_ignored():
    sent = json.loads(RUN.to_json())
    sent["options"]["routing"]["of_a_later_version"] = True
    with pytest.raises(NereusError, match=r"routing\.of_a_later_version"):
        Run.from_json(json.dumps(sent))


def test_outside_a_run_the_plugins_do_nothing():
    vllm_plugin.load()
    sglang_plugin.load()
    assert active() is None
    assert own_answer("any", "server")["active"] is False


def test_joining_the_same_run_again_does_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "_active", RUN)
    before = own_answer("actor 0", "actor")
    join(Run.from_json(RUN.to_json()))
    assert own_answer("actor 0", "actor") == before


@pytest.mark.parametrize("other", [Run(NereusOptions(), "cuda", "vllm"), replace(RUN, platform="cpu")])
def test_joining_another_run_is_refused(monkeypatch: pytest.MonkeyPatch, other):
    monkeypatch.setattr(runs, "_active", RUN)
    with pytest.raises(NereusError, match="part of another run already"):
        join(other)
    assert active() is RUN


def test_a_ray_worker_without_the_options_ends(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NereusError) as raised:
        ray_setup_hook()
    assert VARIABLE in raised.value.expected


@pytest.mark.parametrize("plugin", [vllm_plugin.load, ray_setup_hook])
def test_options_that_cannot_be_right_end_a_process_of_a_run(monkeypatch: pytest.MonkeyPatch, plugin):
    monkeypatch.setenv(VARIABLE, RUN.to_json().replace('"stall_timeout_s": 45.0', '"stall_timeout_s": "long"'))
    with pytest.raises(NereusError, match="wrong type"):
        plugin()


@pytest.mark.parametrize("text", ["not json", '{"options": {"zebra": 1}}'])
def test_sglang_which_logs_exceptions_and_goes_on_is_ended(monkeypatch: pytest.MonkeyPatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SystemExit, match="cannot take part in this SGLang process"):
        sglang_plugin.load()


def test_an_answer_names_what_is_needed_in_its_role_and_what_is_applied(monkeypatch: pytest.MonkeyPatch):
    class Armed:
        def needed(self, role: str, _run: Run) -> list[str]:
            return {"actor": ["a-patch"]}.get(role, [])

        def states(self) -> dict[str, str]:
            return {"a-patch": "armed", "another": "applied"}

        def digest(self) -> str:
            return "0123456789ab"

    monkeypatch.setattr(runs, "_active", RUN)
    monkeypatch.setattr(roll_call, "MANIFEST", Armed())
    assert own_answer("actor 0", "actor")["needed"] == ["a-patch"]
    assert own_answer("actor 0", "actor")["applied"] == ["another"]
    assert own_answer("trainer", "trainer")["needed"] == []
