"""A small run as nereus records it, with everything a report can show."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from verl_ext import ending
from verl_ext.errors import NereusError
from verl_ext.report import ProcessReport, RunInfo, RunWriter, build_report, summarise

PROOF = "patch verl-a-patch applied in actor 0"


def metrics_of(step: int, steps: int) -> dict[str, float]:
    """What verl logs at a step of a run that learns."""
    noise = random.Random(step)
    done = step / steps
    metrics = {
        "critic/score/mean": 0.24 + 0.62 * done + noise.gauss(0, 0.01),
        "training/rollout_probs_diff_max": 1e-7 * (1 + noise.random()),
        "training/rollout_probs_diff_mean": 1e-9,
        "actor/ppo_kl": noise.gauss(0, 1e-4),
        "rollout_corr/kl": noise.gauss(0, 1e-8),
        "response_length/mean": 8 - 2 * done,
        "response_length/clip_ratio": 0.9 - 0.5 * done,
        "actor/entropy": 4 - 3 * done,
        "actor/grad_norm": 1.0 + noise.random(),
        "timing_s/gen": 1.0,
        "timing_s/update_actor": 0.5,
        "timing_s/testing": 2.0,
        "timing_s/step": 1.7,
        "perf/throughput": 500.0,
        "nereus/routing/replayed_fraction": 1.0,
    }
    if step % 5 == 0:
        metrics["val-core/sums/acc/mean@1"] = 0.3 + 0.5 * done
    return metrics


def process(name: str, role: str, **changes: object) -> ProcessReport:
    """A process that agrees with every other one of its role, but for the changes."""
    same: ProcessReport = {
        "process": name,
        "role": role,
        "pid": 100,
        "host": "node-0",
        "code": "0.1.0 9f31c0a27be4",
        "applied": ["verl-a-patch"],
    }
    return {**same, **changes}  # type: ignore[typeddict-item]


def info_of(**changes: object) -> RunInfo:
    """A description of a run, with changes to single fields."""
    fields: dict[str, object] = {
        "command": ["python3", "-m", "verl.trainer.main_ppo", "+plugins=nereus", "trainer.project_name=two words"],
        "started_at": "2026-12-01T04:10:00+00:00",
        "title": "Sums <b>& more</b>",
        "versions": {"verl": "0.9.1", "torch": "2.11.0"},
        "features": [
            {
                "name": "routing replay",
                "on": True,
                "detail": "R3",
                "evidence": [PROOF],
            },
            {"name": "expert LoRA", "on": False, "detail": "", "evidence": []},
        ],
        "metrics": [
            {
                "feature": "routing replay",
                "name": "nereus/routing/replayed_fraction",
                "unit": "share",
                "meaning": "routes that were <replayed>",
                "healthy": [1.0, 1.0],
            }
        ],
        "lowered": [{"feature": "routing replay", "key": "a.b", "value": [1], "kept": False}],
        "processes": [process("driver", "driver"), process("actor 0", "trainer"), process("actor 1", "trainer")],
        "notes": ["a note with <script>alert(1)</script>"],
        "baselines": {"best constant <answer>": 0.25},
    }
    return RunInfo(**{**fields, **changes})  # type: ignore[arg-type]


def write(folder: Path, steps: int, info: RunInfo | None = None, **at: dict[str, float]) -> Path:
    """Writes a run; `at` changes single metrics of single steps, as step_3={...}."""
    with RunWriter(folder) as writer:
        if info is not None:
            writer.write_run(info)
        for step in range(1, steps + 1):
            writer.append(summarise(step, metrics_of(step, steps) | at.get(f"step_{step}", {})))
    return folder


@pytest.fixture(scope="session")
def troubled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A resumed run with NaN, a torn last line, events, and an error at its end."""
    folder = tmp_path_factory.mktemp("troubled")
    write(folder, 20, info_of(), step_7={"actor/grad_norm": math.nan})
    with RunWriter(folder) as writer:
        for step in (19, 20):
            writer.append(summarise(step, metrics_of(step, 20)))
        writer.event({"step": 20, "feature": "routing replay", "kind": "failed", "text": "no <routes> arrived"})
    error = NereusError("it <stopped>", where="here", expected="routes", got="none", change="look")
    ending.write(folder, ending.of(error, ending.TRAINING, 20))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "rew')
    return folder


@pytest.fixture(scope="session")
def page(troubled_run: Path) -> str:
    """The report of the troubled run."""
    pytest.importorskip("matplotlib")
    return build_report(troubled_run).read_text(encoding="utf-8")
