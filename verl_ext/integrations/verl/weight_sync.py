"""Bounded weight sync: one that fails ends the job with its cause.

As released, the trainer sends a bucket of weights and waits for the acknowledgement in a bare `socket.recv()`. When the
receiver raises, it never acknowledges: its exception sits in a future that nobody looks at, and the job hangs for ever.

Here the wait looks at three things: the acknowledgement, the receiver's future, and the clock.
"""

from __future__ import annotations

import contextvars
import os
from types import ModuleType
from typing import Any

from verl_ext.compat.extension import Extension
from verl_ext.compat.touch import Patch
from verl_ext.compat.versions import find_named
from verl_ext.errors import NereusError
from verl_ext.feature import Feature
from verl_ext.integrations.run import current
from verl_ext.integrations.slots import VERL, VllmAdapterSlot, VllmServerSlot

_RECEIVING_METHODS = {"update_weights_from_ipc", "update_verl_delta_weights"}
_LOOK_EVERY_MS = 200
_ROLLOUT = "verl.workers.rollout.vllm_rollout"

# The future of the call that receives the weights, a ray.ObjectRef.
_receiver: contextvars.ContextVar[Any] = contextvars.ContextVar("receiver", default=None)


def socket_job(job: str) -> str:
    """The Ray job id as it appears in the names of this run's weight sync sockets, on both sides.

    verl names a socket after the Ray job, and the first job of every local cluster has the same number.
    """
    return f"{job}-{current().id}"


class WatchedAdapter:
    """Remembers the future of the call that receives the weights, and gives the socket a name of this run alone."""

    def __init__(self, *args: Any, **kwargs: Any):
        import ray

        super().__init__(*args, **kwargs)
        job = ray.get_runtime_context().get_job_id()
        self.zmq_handle: str = self.zmq_handle.replace(job, socket_job(job), 1)

    async def _execute_method(self, method: str, non_block: bool = False, **kwargs: Any) -> Any:
        result = await super()._execute_method(method, non_block=non_block, **kwargs)  # type: ignore[misc]
        if non_block and method in _RECEIVING_METHODS:
            _receiver.set(result)
        return result


class ServerOfThisRun:
    """The receiving side of the socket's name."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Read in the engine's workers, which are started later.
        os.environ["VERL_RAY_JOB_ID"] = socket_job(os.environ["VERL_RAY_JOB_ID"])


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
        import ray

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
    import zmq

    sender.socket.setsockopt(zmq.LINGER, 0)
    sender.socket = WatchedSocket(sender.socket, current().options.weight_sync.stall_timeout_s)


class BoundedWait(Patch):
    name = "verl-bounded-weight-sync-wait"
    target = f"{_ROLLOUT}.bucketed_weight_transfer:BucketedWeightSender._init_socket"
    why = "The sender waits for acknowledgements without a limit; a receiver that raises leaves the job hanging."
    upstream = "verl 0.9.1 bucketed_weight_transfer.py, BucketedWeightSender; no report found"
    remove_when = "verl's sender ends when the receiving call has failed"
    versions = VERL
    fingerprints = ("acd9dd63022e",)
    roles = frozenset({"actor", "receiver"})

    def replace(self, module: ModuleType) -> None:
        sender = module.BucketedWeightSender
        original = sender._init_socket

        def _init_socket(self: Any) -> None:
            original(self)
            watch(self)

        sender._init_socket = _init_socket


class Adapter(Extension):
    name = "verl-watched-adapter"
    slot = VllmAdapterSlot
    mixin = f"{__name__}:WatchedAdapter"
    why = "Only the adapter knows the call that receives the weights, and the name of the socket they go through."
    upstream = "verl 0.9.1 workers/rollout/vllm_rollout/vllm_rollout.py, ServerAdapter.update_weights"
    remove_when = "verl looks at the receiving call itself, and names the socket after more than the Ray job"
    versions = VERL
    relies_on = (
        (f"{_ROLLOUT}.vllm_rollout:ServerAdapter.__init__", "b0daa53f7524"),
        (f"{_ROLLOUT}.vllm_rollout:ServerAdapter._execute_method", "f58c74367fba"),
    )
    roles = frozenset({"actor", "receiver"})


class Server(Extension):
    name = "verl-socket-of-this-run"
    slot = VllmServerSlot
    mixin = f"{__name__}:ServerOfThisRun"
    why = "The engine's workers take the name of the socket from a variable that their server sets."
    upstream = "verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py, VERL_RAY_JOB_ID"
    remove_when = "verl names the socket after more than the Ray job"
    versions = VERL
    relies_on = ((f"{_ROLLOUT}.vllm_async_server:vLLMHttpServer.__init__", "e2513f96827f"),)
    roles = frozenset({"server"})


def problem() -> str:
    """For `nereus doctor`."""
    vllm = find_named("vllm")
    return "" if vllm.tested else f"needs vllm {vllm.row.versions}"


FEATURE = Feature(
    name="bounded weight sync",
    summary="a weight sync that fails or stalls ends the job with its cause",
    state="works with vLLM",
    tested="end to end on CPU; not run on GPU hardware",
    on=lambda run: run.rollout == "vllm",
    detail=lambda run: f"{run.options.weight_sync.stall_timeout_s:g} s",
    touches=(BoundedWait, Adapter, Server),
    doctor=f"{__name__}:problem",
)
