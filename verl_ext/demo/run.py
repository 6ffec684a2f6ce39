"""`nereus demo`: a real GRPO run on this machine, with a line a step and a report at the end."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from verl_ext import __version__, ending
from verl_ext.demo import stack
from verl_ext.demo.assets import DemoAssets, build_assets
from verl_ext.demo.recipe import demo_overrides, quoted
from verl_ext.errors import NereusError
from verl_ext.launch.environment import cpu_environment
from verl_ext.launch.prefork.start import Prefork
from verl_ext.launch.supervise import LOG_FILE, JobResult, last_words, run_job
from verl_ext.report.findings import ends

STEPS, OWN_STEPS = 60, 10
INTERRUPTED = 130


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None: the demo's own."""

    model: Path | None
    data: Path | None
    reward: Path | None
    steps: int | None
    workers: int
    dtype: str
    engine: str
    runs: Path
    overrides: tuple[str, ...]

    def check(self) -> None:
        """Raise NereusError for something that cannot be run, before anything is started."""
        if self.engine not in stack.ENGINES:
            raise NereusError(
                "the demo does not have that training engine",
                where="--engine (make demo ENGINE=...)",
                expected=" or ".join(stack.ENGINES),
                got=self.engine,
                change="leave it out for fsdp2",
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise NereusError(
                "the demo trains in one of two types",
                where="--dtype",
                expected="float32 or bfloat16",
                got=self.dtype,
                change="--dtype float32",
            )
        for name, path, is_right, wanted in (
            ("--model (make demo MODEL=...)", self.model, Path.is_dir, "a Hugging Face folder with config.json"),
            ("--data (make demo DATA=...)", self.data, Path.is_file, "a parquet file"),
            ("--reward (make demo REWARD=...)", self.reward, Path.is_file, "a Python file with compute_score"),
        ):
            if path is not None and not is_right(path):
                raise NereusError(
                    f"{path} is not there", where=name, expected=wanted, got=str(path), change="give an existing path"
                )

    @property
    def own(self) -> bool:
        return any(item is not None for item in (self.model, self.data, self.reward))


def run(request: Request) -> int:
    """Run the demo; returns the exit code of the process."""
    request.check()
    console = Console(highlight=False)
    run_dir = request.runs.resolve() / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    run_dir.mkdir(parents=True)
    started = time.monotonic()
    with Prefork(run_dir / "prefork.log", stack.PRELOAD, env=cpu_environment()) as prefork:
        # Beside the imports of the prefork server: two cores, two jobs.
        assets = _assets(request.runs.resolve() / "assets", console)
        progress = _Progress(console, run_dir, started)
        before_s = time.monotonic() - started
        result = run_job(
            lambda python, temp: stack.command(sys.executable, _overrides(request, assets, run_dir, python, temp)),
            run_dir,
            prefork=prefork,
            on_step=progress.step,
            on_wait=progress.wait,
        )
    progress.done()
    _point_latest(request.runs.resolve() / "latest", run_dir)
    return _conclude(console, run_dir, result, progress, before_s)


def _assets(folder: Path, console: Console) -> DemoAssets:
    start = time.monotonic()
    assets = build_assets(folder)
    if not assets.cached:
        console.print(f"built the tiny model, its tokenizer and task in {time.monotonic() - start:.0f} s: {folder}")
    return assets


def _overrides(request: Request, assets: DemoAssets, run_dir: Path, python: str, temp: Path) -> list[str]:
    steps = request.steps or (OWN_STEPS if request.own else STEPS)
    recipe = demo_overrides(assets, steps=steps, workers=request.workers)
    # vLLM wants room for one token more than verl ever asks for.
    length = stack.lengths(request.model, request.data).total + 1
    baselines = {} if request.own else assets.baselines
    labels = ",".join(f"'{label}={value:.4f}'" for label, value in baselines.items())
    return [
        *recipe,
        *stack.cpu_overrides(
            workers=request.workers,
            engine=request.engine,
            dtype=request.dtype,
            max_model_len=length,
            temp_dir=temp,
        ),
        stack.bucket_override(request.model or assets.model),
        *stack.own_overrides(request.model, request.data, request.reward),
        f"hydra.run.dir={quoted(run_dir)}",
        "hydra.output_subdir=null",
        f"trainer.default_local_dir={quoted(run_dir / 'checkpoints')}",
        f"nereus.report.dir={quoted(run_dir)}",
        "nereus.report.title='nereus demo'",
        f"nereus.report.baselines=[{labels}]",
        f"nereus.cpu.python={python}",
        *request.overrides,
    ]


class _Progress:
    """One tidy line a step, and before the first step what the run is doing."""

    def __init__(self, console: Console, run_dir: Path, started: float):
        self._console = console
        self._run_dir = run_dir
        self._started = started
        self._status = console.status("") if console.is_terminal else None
        self._phase = ""
        self.records: list[dict[str, Any]] = []

    def wait(self, phase: str) -> None:
        seconds = time.monotonic() - self._started
        if self._status is not None:
            self._status.update(f"{phase} ({seconds:.0f} s)")
            self._status.start()
        elif phase != self._phase:
            self._console.print(f"{seconds:5.0f} s  {phase}")
        self._phase = phase

    def step(self, record: dict[str, Any]) -> None:
        self.done()
        if not self.records:
            self._console.print(_active(self._run_dir), markup=False, soft_wrap=True)
            self._console.print(f"{'step':>5}  {'reward':>6}  {'length':>6}  {'gap':>8}  {'seconds':>7}")
        self.records.append(record)
        self._console.print(
            f"{record['step']:5d}  {_number(record, 'reward', '6.3f')}  {_number(record, 'response_length', '6.1f')}  "
            f"{_number(record, 'rollout_gap_max', '8.1e')}  {_number(record, 'seconds', '7.2f')}"
        )

    def done(self) -> None:
        if self._status is not None:
            self._status.stop()


def _active(run_dir: Path) -> str:
    info = json.loads((run_dir / "run.json").read_text())
    on = [state["name"] for state in info["features"] if state["on"]]
    return f"nereus {__version__} active in all {len(info['processes'])} processes: {', '.join(on)}"


def _number(record: dict[str, Any], key: str, form: str) -> str:
    value = record.get(key)
    width = int(form.split(".")[0])
    return "-".rjust(width) if value is None else format(value, form)


def _point_latest(link: Path, run_dir: Path) -> None:
    """Make runs/latest mean this run, in one rename, so that it never means nothing."""
    temporary = link.with_name(f".latest-{os.getpid()}")
    temporary.symlink_to(run_dir.name)
    if link.is_dir() and not link.is_symlink():
        raise NereusError(
            "runs/latest is a folder, not the link that points to the last run",
            where=str(link),
            expected="a symbolic link, or nothing",
            got="a folder",
            change=f"move {link} away",
        )
    temporary.replace(link)


def _conclude(console: Console, run_dir: Path, result: JobResult, progress: _Progress, before_s: float) -> int:
    log = run_dir / LOG_FILE
    if result.interrupted:
        console.print(f"\ninterrupted after {len(progress.records)} steps; log: {log}")
        return INTERRUPTED
    if result.exit_code != 0:
        console.print(f"\nthe run ended with an error (exit code {result.exit_code}):")
        ended = ending.read(run_dir)
        console.print(str(ended) if ended else last_words(log), markup=False)
        console.print(f"full log: {log}")
        return 1
    report = run_dir / "report.html"
    _write_timing(run_dir, result, before_s)
    rewards = [record["reward"] for record in progress.records if record.get("reward") is not None]
    if rewards:
        first, last, _few = ends(rewards)
        console.print(f"\nreward {first:.2f} -> {last:.2f} over {len(rewards)} steps")
    if result.first_step_s is not None:
        console.print(
            f"first step after {before_s + result.first_step_s:.0f} s, all of it {before_s + result.seconds:.0f} s"
        )
    console.print(f"report: {report}")
    return 0


def _write_timing(run_dir: Path, result: JobResult, before_s: float) -> None:
    """timing.json: seconds from the start of the command, `assets_s` of which went into the model and the task."""
    first = None if result.first_step_s is None else before_s + result.first_step_s
    timing = {"assets_s": before_s, "first_step_s": first, "total_s": before_s + result.seconds}
    temporary = run_dir / ".timing.json"
    temporary.write_text(json.dumps(timing) + "\n")
    temporary.replace(run_dir / "timing.json")
