"""verl's V1 trainers as nereus observes them: the roll call before training, every step's metrics, and how it ended.

Overrides verl's hooks only, never its step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from verl_ext import ending
from verl_ext.feature import Feature, active, load, unhealthy
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.run import Run, current
from verl_ext.integrations.verl import roll_call
from verl_ext.integrations.verl.answers import actor_answer
from verl_ext.integrations.verl.record import RunRecord


class ObservedTrainer:
    """Mixed in before a subclass of verl's PPOTrainer.

    Attributes:
        nereus_record: the record of the run, once training has started; features write their events there.
    """

    config: Any
    global_steps: int
    nereus_record: RunRecord
    _nereus_run: Run
    _nereus_features: list[Feature]
    _nereus_phase: str
    _nereus_steps: int

    def __init__(self, *args: Any, **kwargs: Any):
        self._nereus_run = current()
        self._nereus_features = active(FEATURES, self._nereus_run)
        self._nereus_phase, self._nereus_steps = ending.START, 0
        with self._nereus_ending():
            super().__init__(*args, **kwargs)

    def init(self) -> None:
        with self._nereus_ending():
            super().init()  # type: ignore[misc]

    def on_init_end(self) -> None:
        # Before the first weight sync: a process that is not ours would take weights it cannot vouch for.
        self.nereus_roll_call()
        super().on_init_end()  # type: ignore[misc]

    def fit(self, agent_loop_manager: Any) -> None:
        with self._nereus_ending():
            self.agent_loop_manager = agent_loop_manager
            answers = self.nereus_roll_call()
            states = roll_call.states(answers, self._nereus_run, FEATURES)
            title = str(self.config.trainer.experiment_name)
            self.nereus_record = RunRecord(self._nereus_run, title, self._nereus_features, states, answers)
            self._nereus_phase = ending.TRAINING
        # The page is built after the ending is written, so that it can show it.
        try:
            with self._nereus_ending():
                self.nereus_record.event("roll call", "passed", f"{len(answers)} processes answered rightly")
                super().fit(agent_loop_manager)  # type: ignore[misc]
        finally:
            self.nereus_record.close()

    def nereus_roll_call(self) -> list[dict[str, Any]]:
        """Ask every process again; to be called when processes have joined or left.

        Raises:
            NereusError: see `roll_call.take`.
        """
        before, self._nereus_phase = self._nereus_phase, ending.ROLL_CALL
        answers = roll_call.take(self, self._nereus_run, FEATURES, actor_answer)
        self._nereus_phase = before
        return answers

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)  # type: ignore[misc]
        for feature in self._nereus_features:
            if feature.measure:
                metrics.update(load(feature.measure)(self, metrics))
        self._nereus_steps += 1
        self.nereus_record.step(kwargs["global_steps"], metrics)
        self._nereus_check(metrics)

    def _nereus_check(self, metrics: dict[str, Any]) -> None:
        for feature in self._nereus_features:
            problem = unhealthy(feature, self._nereus_steps, metrics)
            if problem is not None:
                self.nereus_record.event(feature.name, "failed", problem.what, self.global_steps)
                raise problem

    @contextlib.contextmanager
    def _nereus_ending(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            step = getattr(self, "global_steps", None) if self._nereus_phase == ending.TRAINING else None
            ending.write(self._nereus_run.options.report.dir, ending.of(error, self._nereus_phase, step))
            raise
