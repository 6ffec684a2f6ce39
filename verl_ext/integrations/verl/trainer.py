"""verl's V1 trainers with a roll call before training and a record of every step: one subclass for each of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from verl_ext.integrations.verl import roll_call
from verl_ext.integrations.verl.process import Activation, active
from verl_ext.integrations.verl.record import RunRecord

logger = logging.getLogger(__name__)


class NereusTrainer:
    """Mixed in before a subclass of verl's PPOTrainer. Overrides its hooks only, never its step."""

    _nereus: Activation
    _record: RunRecord

    def __init__(self, config: Any):
        activation = active()
        if activation is None:
            raise RuntimeError("the trainer was extended in a process that is not part of a run")
        self._nereus = activation
        super().__init__(config=config)

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()  # type: ignore[misc]
        interval = self._nereus.options.trainer.poll_interval_s
        if interval is not None:
            buffer.poll_interval = interval
        return buffer

    def on_init_end(self) -> None:
        # Before the first weight sync: a process that is not ours would take weights it cannot vouch for.
        roll_call.take(self)
        super().on_init_end()  # type: ignore[misc]

    def fit(self, agent_loop_manager: Any) -> None:
        self.agent_loop_manager = agent_loop_manager
        reports = roll_call.take(self)
        self._record = RunRecord(self._nereus, self.config, reports)  # type: ignore[attr-defined]
        with self._recorded():
            super().fit(agent_loop_manager)  # type: ignore[misc]

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._record.close()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)  # type: ignore[misc]
        self._record.step(kwargs["global_steps"], metrics)


def extended(trainer: type) -> type:
    """`trainer` with a roll call and a record. The registry keeps its name, so verl's checks by name still hold."""
    if issubclass(trainer, NereusTrainer):
        return trainer
    return type(f"Nereus{trainer.__name__}", (NereusTrainer, trainer), {})
