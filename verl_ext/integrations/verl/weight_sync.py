"""A weight sync that fails ends the job with its cause.

As released, the trainer sends a bucket of weights and waits for the acknowledgement in a bare `socket.recv()`. When the
receiver raises, it never acknowledges: its exception sits in a future that nobody looks at, and the job hangs for ever.

Here the wait looks at three things: the acknowledgement, the receiver's future, and the clock.
"""

from __future__ import annotations

import contextvars
from typing import Any

import ray
import zmq
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_ext.errors import NereusError
from verl_ext.integrations.verl.process import active

_RECEIVING_METHODS = {"update_weights_from_ipc", "update_verl_delta_weights"}
_LOOK_EVERY_MS = 200

_receiver: contextvars.ContextVar[ray.ObjectRef | None] = contextvars.ContextVar("receiver", default=None)


def socket_job(job: str) -> str:
    """The Ray job id as it appears in the names of this run's weight sync sockets, on both sides."""
    activation = active()
    if activation is None:
        raise RuntimeError("weight sync is set up in a process that is not part of a run")
    return f"{job}-{activation.run}"


class WatchedServerAdapter(ServerAdapter):  # type: ignore[misc]
    """verl's vLLM adapter in the trainer's worker.

    It remembers the future of the call that receives the weights, and gives the socket a name of this run alone: verl
    names it after the Ray job, and the first job of every local cluster has the same number.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        job = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(job, socket_job(job), 1)

    async def _execute_method(self, method: str, non_block: bool = False, **kwargs: Any) -> Any:
        result = await super()._execute_method(method, non_block=non_block, **kwargs)
        if non_block and method in _RECEIVING_METHODS:
            _receiver.set(result)
        return result


class WatchedSocket:
    """A ZMQ socket whose `recv()` ends when the receiver has failed or nothing arrived for `stall_timeout_s`."""

    def __init__(self, socket: Any, stall_timeout_s: float):
        self._socket = socket
        self._stall_timeout_s = stall_timeout_s

    def recv(self) -> bytes:
        """Wait for one acknowledgement.

        Raises:
            NereusError: nothing arrived in time, or the receiver ended without acknowledging.
            Exception: whatever the receiver raised.
        """
        waited_ms = 0
        while not self._socket.poll(_LOOK_EVERY_MS):
            waited_ms += _LOOK_EVERY_MS
            self._check_receiver()
            if waited_ms >= self._stall_timeout_s * 1000:
                raise self._stalled("no acknowledgement and no error from it")
        return self._socket.recv()  # type: ignore[no-any-return]

    def _check_receiver(self) -> None:
        future = _receiver.get()
        if future is None:  # another rank holds the future; this one ends with the job or with the clock
            return
        done, _ = ray.wait([future], timeout=0)
        if done:
            ray.get(done[0])
            if not self._socket.poll(_LOOK_EVERY_MS):
                raise self._stalled("it returned without acknowledging the last bucket")

    def _stalled(self, got: str) -> NereusError:
        return NereusError(
            "the rollout engine stopped taking weights",
            where="weight sync, trainer to rollout",
            expected=f"an acknowledgement of each bucket within {self._stall_timeout_s:g} s",
            got=got,
            change="look for the engine's error above; if loading one bucket is really that slow, "
            "raise nereus.weight_sync.stall_timeout_s or lower "
            "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def watch(sender: Any) -> None:
    """Replace the sender's socket by a watched one. Its close() no longer waits for messages nobody will take."""
    activation = active()
    if activation is None:
        raise RuntimeError("weight sync is watched in a process that is not part of a run")
    sender.socket.setsockopt(zmq.LINGER, 0)
    sender.socket = WatchedSocket(sender.socket, activation.options.weight_sync.stall_timeout_s)
