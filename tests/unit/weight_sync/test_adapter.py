"""Both sides of a weight sync name its socket after this run, and the sender knows the call that receives."""

from __future__ import annotations

import asyncio
import contextvars
import os
from typing import Any

import pytest
import ray

from verl_ext.config import NereusOptions
from verl_ext.integrations import run as runs
from verl_ext.integrations.run import Run
from verl_ext.integrations.verl import weight_sync
from verl_ext.integrations.verl.weight_sync import ServerOfThisRun, WatchedAdapter

RUN = Run(NereusOptions(), "cuda", "vllm")


class Adapter:
    """verl's adapter, as far as it is extended."""

    def __init__(self, job: str):
        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job}-0-1.sock"

    async def _execute_method(self, method: str, non_block: bool = False, **kwargs: Any) -> str:
        return f"future of {method}"


class Server:
    def __init__(self) -> None:
        os.environ["VERL_RAY_JOB_ID"] = "01000000"


class Watched(WatchedAdapter, Adapter):
    pass


class ServerHere(ServerOfThisRun, Server):
    pass


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    context = type("Context", (), {"get_job_id": lambda self: "01000000"})
    monkeypatch.setattr(ray, "get_runtime_context", context)
    monkeypatch.setattr(runs, "_active", RUN)
    monkeypatch.setenv("VERL_RAY_JOB_ID", "unset")


def test_both_sides_have_the_same_name_and_no_other_run_has_it(monkeypatch: pytest.MonkeyPatch):
    sender = Watched("01000000").zmq_handle
    ServerHere()
    job = os.environ["VERL_RAY_JOB_ID"]
    assert sender == Adapter(job).zmq_handle != Adapter("01000000").zmq_handle
    monkeypatch.setattr(runs, "_active", Run(NereusOptions(), "cuda", "vllm"))
    assert Watched("01000000").zmq_handle != sender


@pytest.mark.parametrize(
    ("method", "non_block", "remembered"),
    [
        ("update_weights_from_ipc", True, "future of update_weights_from_ipc"),
        ("update_verl_delta_weights", True, "future of update_verl_delta_weights"),
        ("update_weights_from_ipc", False, None),
        ("sleep", True, None),
    ],
)
def test_the_call_that_receives_the_weights_is_remembered(method, non_block, remembered):
    async def call() -> tuple[str, Any]:
        result = await Watched("01000000")._execute_method(method, non_block=non_block)
        return result, weight_sync._receiver.get()

    result, found = contextvars.copy_context().run(asyncio.run, call())
    assert (result, found) == (f"future of {method}", remembered)


def test_outside_a_run_there_is_no_such_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "_active", None)
    with pytest.raises(RuntimeError, match="not part of a run"):
        weight_sync.socket_job("01000000")
