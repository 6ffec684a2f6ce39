"""The record of a run as the trainer writes it: one line a step, and the report."""

from __future__ import annotations

import datetime
import json
import logging
import os
from pathlib import Path
from typing import Any

from verl_ext import __version__
from verl_ext.compat.versions import untested
from verl_ext.integrations.verl.process import (
    BOUNDED_SYNC,
    COMMAND_VARIABLE,
    CPU_PLATFORM,
    PREFORK,
    ROLL_CALL,
    Activation,
)
from verl_ext.report.model import ProcessReport, RunInfo
from verl_ext.report.names import summarise
from verl_ext.report.writer import RunWriter

logger = logging.getLogger(__name__)


class RunRecord:
    """Opens the run folder when training starts, so that a run that is refused leaves no half of a report."""

    def __init__(self, activation: Activation, config: Any, reports: list[dict[str, Any]]):
        options = activation.options.report
        self._every = options.html_every_steps
        self._writer = RunWriter(options.dir)
        command = json.loads(os.environ.get(COMMAND_VARIABLE, "[]"))
        info = RunInfo(
            command=command,
            started_at=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            title=options.title or str(config.trainer.experiment_name),
            versions={"verl-nereus": __version__, **activation.versions},
            features=features(activation, config),
            processes=[_row(item) for item in reports],
            baselines=activation.options.baselines(),
            notes=_notes(activation),
        )
        self._writer.write_run(info)
        logger.info("%s\n%s", banner(info, activation), table(reports))
        self._steps = 0

    def step(self, global_step: int, metrics: dict[str, Any]) -> None:
        self._writer.append(summarise(global_step, metrics))
        self._steps += 1
        if self._steps % self._every == 0:
            self._build()

    def close(self) -> None:
        self._writer.close()
        if self._steps:
            self._build()
            logger.info("report: %s", Path(self._writer.run_dir) / "report.html")

    def _build(self) -> None:
        # Imported late: matplotlib costs a second, and a run that is refused never needs it.
        from verl_ext.report.html import build_report

        build_report(self._writer.run_dir)


def features(activation: Activation, config: Any) -> dict[str, str]:
    """What is on in this run, in the words of the report's table."""
    rollout = config.actor_rollout_ref.rollout
    stall = activation.options.weight_sync.stall_timeout_s
    return {
        ROLL_CALL: "on",
        BOUNDED_SYNC: f"on, {stall:g} s" if rollout.name == "vllm" else "off",
        CPU_PLATFORM: "on" if activation.platform == "cpu" else "off",
        PREFORK: "on" if activation.options.cpu.python else "off",
        "router replay": activation.options.routing.mode,
    }


def banner(info: RunInfo, activation: Activation) -> str:
    """One line: the sign that nereus is on, and with what."""
    active = ", ".join(f"{name} {state}" for name, state in info.features.items())
    return (
        f"{__version__} active in all {len(info.processes)} processes, options {activation.options.digest()}: " + active
    )


def table(reports: list[dict[str, Any]]) -> str:
    """One line a process: what is active in it."""
    width = max(len(item["process"]) for item in reports)
    rows = []
    for item in reports:
        patches = ", ".join(item["patches"]) or "none"
        rows.append(f"  {item['process']:{width}}  {item['host']}:{item['pid']}  patches: {patches}")
    return "\n".join(rows)


def _row(item: dict[str, Any]) -> ProcessReport:
    return ProcessReport(
        process=item["process"],
        role=item["role"],
        pid=item["pid"],
        host=item["host"],
        version=item["version"],
        manifest_digest=item["manifest"],
        patches=item["patches"],
        features=item["features"],
    )


def _notes(activation: Activation) -> list[str]:
    notes = untested(activation.versions)
    if activation.options.compat.allow_untested_versions:
        notes.append("nereus.compat.allow_untested_versions=true: versions outside the table are allowed")
    return notes
