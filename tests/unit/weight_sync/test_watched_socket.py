"""The wait for an acknowledgement ends by the acknowledgement, by the receiver's failure, or by the clock."""

from __future__ import annotations

import pytest
import ray
import zmq

from verl_ext.errors import NereusError
from verl_ext.integrations.cpu import distribution

distribution.install()
weight_sync = pytest.importorskip("verl_ext.integrations.verl.weight_sync")


@pytest.fixture
def pair(tmp_path):
    context = zmq.Context()
    sender, receiver = context.socket(zmq.REQ), context.socket(zmq.REP)
    for socket in (sender, receiver):
        socket.setsockopt(zmq.LINGER, 0)
    sender.bind(f"ipc://{tmp_path}/s")
    receiver.connect(f"ipc://{tmp_path}/s")
    yield sender, receiver
    context.destroy()


@pytest.fixture
def receiver_future(monkeypatch):
    """Stand in for Ray's look at the receiver's future: a callable that raises, or None while it still runs."""
    state = {"outcome": None}
    future = object()
    token = weight_sync._receiver.set(future)
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []) if state["outcome"] else ([], refs))
    monkeypatch.setattr(ray, "get", lambda ref: state["outcome"]())
    yield state
    weight_sync._receiver.reset(token)


def test_an_acknowledgement_is_returned(pair, receiver_future):
    sender, receiver = pair
    watched = weight_sync.WatchedSocket(sender, stall_timeout_s=5.0)
    watched.send_pyobj({"bucket": 1})
    assert receiver.recv_pyobj() == {"bucket": 1}
    receiver.send(b"ok")
    assert watched.recv() == b"ok"


def test_the_receivers_own_exception_comes_out(pair, receiver_future):
    sender, _ = pair
    watched = weight_sync.WatchedSocket(sender, stall_timeout_s=60.0)
    watched.send(b"x")

    def fail():
        raise ValueError("shape mismatch in experts.0.gate_proj")

    receiver_future["outcome"] = fail
    with pytest.raises(ValueError, match=r"experts\.0\.gate_proj"):
        watched.recv()


def test_a_receiver_that_returns_without_acknowledging_is_an_error(pair, receiver_future):
    sender, _ = pair
    watched = weight_sync.WatchedSocket(sender, stall_timeout_s=60.0)
    watched.send(b"x")
    receiver_future["outcome"] = lambda: None
    with pytest.raises(NereusError, match="stopped taking weights"):
        watched.recv()


def test_silence_ends_with_the_clock(pair, receiver_future):
    sender, _ = pair
    watched = weight_sync.WatchedSocket(sender, stall_timeout_s=0.4)
    watched.send(b"x")
    with pytest.raises(NereusError) as caught:
        watched.recv()
    assert "nereus.weight_sync.stall_timeout_s" in caught.value.change
