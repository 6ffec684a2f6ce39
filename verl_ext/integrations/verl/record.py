"""The run report: a line a step in metrics.jsonl, a line in events.jsonl for what features say, and report.html."""

from __future__ import annotations

import datetime
import importlib.util
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_ext import __version__
from verl_ext.compat.versions import untested
from verl_ext.feature import Feature, FeatureState
from verl_ext.integrations.run import Run
from verl_ext.report.child import PageBuilder
from verl_ext.report.model import DeclaredMetric, Event, Lowered, ProcessReport, RunInfo
from verl_ext.report.names import summarise
from verl_ext.report.writer import RunWriter

logger = logging.getLogger(__name__)

COMMAND_VARIABLE = "NEREUS_COMMAND"
LOWERED_VARIABLE = "NEREUS_LOWERED"


class RunRecord:
    """Opens the run folder when training starts, so that a run that is refused leaves no half of a report.

    Args:
        run: this run.
        title: heading where the options give none.
        features: those that are on.
        states: of all features, as the roll call found them.
        answers: of the roll call.
    """

    def __init__(
        self,
        run: Run,
        title: str,
        features: Sequence[Feature],
        states: Sequence[FeatureState],
        answers: Sequence[Mapping[str, Any]],
    ):
        options = run.options.report
        self._every = options.html_every_steps
        self._writer = RunWriter(options.dir)
        self._page = PageBuilder(self._writer.run_dir)
        lowered: list[Lowered] = json.loads(os.environ.get(LOWERED_VARIABLE, "[]"))
        info = RunInfo(
            command=json.loads(os.environ.get(COMMAND_VARIABLE, "[]")),
            started_at=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            title=options.title or title,
            versions={"verl-nereus": __version__, **run.versions},
            features=[{**asdict(state), "evidence": list(state.evidence)} for state in states],  # type: ignore[typeddict-item]
            metrics=[metric for feature in features for metric in _declared(feature)],
            lowered=lowered,
            processes=[_process(item) for item in answers],
            baselines=options.levels(),
            notes=_notes(run),
        )
        self._writer.write_run(info)
        logger.info("%s\n%s", banner(states, run, len(answers)), table(answers))
        self._steps = 0

    def event(self, feature: str, kind: str, text: str, step: int = 0) -> None:
        """Write down something that happened.

        Args:
            feature: by its name.
            kind: one word, e.g. `passed`, `failed`, `recalibrated`.
            text: one sentence.
            step: verl's global step; 0 before training.
        """
        self._writer.event(Event(step=step, feature=feature, kind=kind, text=text))

    def step(self, global_step: int, metrics: Mapping[str, Any]) -> None:
        self._writer.append(summarise(global_step, metrics))
        self._steps += 1
        if self._steps % self._every == 0:
            self._page.build()
        else:
            self._page.look()

    def close(self) -> None:
        self._writer.close()
        if self._steps and self._page.close():
            logger.info("report: %s", self._writer.run_dir / "report.html")


def banner(states: Sequence[FeatureState], run: Run, processes: int) -> str:
    """One line: the sign that nereus is on, and with what."""
    on = ", ".join(f"{state.name} ({state.detail})" if state.detail else state.name for state in states if state.on)
    return f"{__version__} active in all {processes} processes, options {run.options.digest()}: {on}"


def table(answers: Sequence[Mapping[str, Any]]) -> str:
    """One line a process: what has to be applied in it, and is."""
    width = max(len(item["process"]) for item in answers)
    rows = []
    for item in answers:
        needed = ", ".join(item["needed"]) or "nothing of its own"
        rows.append(f"  {item['process']:{width}}  {item['host']}:{item['pid']}  {needed}")
    return "\n".join(rows)


def _declared(feature: Feature) -> list[DeclaredMetric]:
    return [
        DeclaredMetric(
            feature=feature.name,
            name=metric.name,
            unit=metric.unit,
            meaning=metric.meaning,
            healthy=list(metric.healthy) if metric.healthy else None,
        )
        for metric in feature.metrics
    ]


def _process(item: Mapping[str, Any]) -> ProcessReport:
    return ProcessReport(
        process=item["process"],
        role=item["role"],
        pid=item["pid"],
        host=item["host"],
        code=item["facts"].get("code of nereus", ""),
        applied=item["needed"],
    )


def _notes(run: Run) -> list[str]:
    notes = untested(run.versions)
    if run.options.compat.allow_untested_versions:
        notes.append("nereus.compat.allow_untested_versions=true: versions outside the table are allowed")
    return notes


def problem() -> str:
    """For `nereus doctor`: the page is written without figures then."""
    return "" if importlib.util.find_spec("matplotlib") else 'without figures: pip install "verl-nereus[plots]"'


FEATURE = Feature(
    name="run report",
    summary="`report.html` of every run, and `nereus report` for the logs of a stock verl run",
    state="works",
    tested="unit tests; end to end on CPU",
    on=lambda run: True,
    detail=lambda run: str(Path(run.options.report.dir)),
    doctor=f"{__name__}:problem",
)
