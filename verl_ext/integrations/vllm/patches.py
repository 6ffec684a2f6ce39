"""Runtime patches that a rollout with vLLM needs on every platform."""

from __future__ import annotations

from types import ModuleType

from verl_ext.compat.patch import Patch

VERL_0_9_1 = {"verl": "==0.9.1"}


class BoundedWeightSyncWait(Patch):
    name = "verl-bounded-weight-sync-wait"
    target = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender._init_socket"
    why = "The sender waits for acknowledgements without a limit; a receiver that raises leaves the job hanging."
    upstream = "verl 0.9.1 bucketed_weight_transfer.py, BucketedWeightSender; no report found"
    remove_when = "verl's sender ends when the receiving call has failed"
    versions = VERL_0_9_1
    fingerprints = ("acd9dd63022e",)
    roles = frozenset({"actor", "receiver"})

    def replace(self, module: ModuleType) -> None:
        sender = module.BucketedWeightSender
        original = sender._init_socket

        def _init_socket(self) -> None:  # type: ignore[no-untyped-def]
            from verl_ext.integrations.verl.weight_sync import watch

            original(self)
            watch(self)

        sender._init_socket = _init_socket


VLLM_PATCHES: tuple[type[Patch], ...] = (BoundedWeightSyncWait,)
