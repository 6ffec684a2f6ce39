"""Run one verl job on this machine: start it fast, show a line a step, leave nothing behind.

    prefork server ─┐
    verl's driver  ─┴─ both children of this process, which is also the parent of every orphan below it

Whatever ends the job (its own end, an error, Ctrl-C, a kill of the driver), every process that descends from this one
is gone when `run_job` returns, and so are the sockets and shared memory it made.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl_ext.errors import NereusError
from verl_ext.launch import leftovers
from verl_ext.launch.environment import cpu_environment
from verl_ext.launch.prefork.start import Prefork

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 8.0
_LOOK_EVERY_S = 0.2
LOG_FILE = "run.log"
# Sockets are made below it, and a socket's path may hold 107 bytes.
SHORT = "/tmp"


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: of verl's driver; negative when a signal ended it, as in subprocess.
        interrupted: a person ended it with Ctrl-C.
        seconds: from the start of the driver to its end.
        first_step_s: from the start of everything to the end of the first step, None without one.
    """

    exit_code: int
    interrupted: bool
    seconds: float
    first_step_s: float | None


def run_job(
    command: Callable[[str, Path], Sequence[str]],
    run_dir: Path,
    *,
    prefork: Prefork | None = None,
    on_step: Callable[[dict[str, Any]], None] = lambda record: None,
    on_wait: Callable[[str], None] = lambda phase: None,
) -> JobResult:
    """Run a verl job to its end.

    Args:
        command: makes the driver's command line from the executable to give as `nereus.cpu.python` and a folder with a
            short path for Ray.
        run_dir: where the job writes metrics.jsonl; its log goes to `run.log` there.
        prefork: the server whose forks the processes are; None: each is a process of its own, and `command` gets this
            interpreter.
        on_step: called with every record of metrics.jsonl as it appears.
        on_wait: called now and then before the first step, with what the job is doing.
    """
    _adopt_orphans()
    run_dir.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    first_step: float | None = None
    interrupted = False
    with contextlib.ExitStack() as stack:
        python = str(prefork.python) if prefork is not None else sys.executable
        temp_dir = Path(tempfile.mkdtemp(prefix="nr-", dir=SHORT))
        stack.callback(shutil.rmtree, temp_dir, ignore_errors=True)
        log_path = run_dir / LOG_FILE
        with log_path.open("wb") as log:
            driver = subprocess.Popen(
                list(command(python, temp_dir)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Engines leave their sockets in the folder for temporary files when they are killed.
                env={**cpu_environment(), "TMPDIR": str(temp_dir)},
                start_new_session=True,
            )
        stack.callback(leftovers.remove, time.time())
        stack.callback(_end_descendants, keep=prefork.pid if prefork else None)
        records = follow(run_dir / "metrics.jsonl")
        try:
            while driver.poll() is None:
                time.sleep(_LOOK_EVERY_S)
                for record in next(records):
                    if first_step is None:
                        first_step = time.monotonic() - started
                    on_step(record)
                if first_step is None:
                    on_wait(phase(log_path))
        except KeyboardInterrupt:
            interrupted = True
            _stop(driver)
        for record in next(records):
            on_step(record)
        return JobResult(driver.wait(), interrupted, time.monotonic() - started, first_step)


def follow(path: Path) -> Iterator[list[dict[str, Any]]]:
    """At each `next`, the records that were added to a metrics.jsonl since the last one. Half a line waits."""
    offset = 0
    while True:
        records: list[dict[str, Any]] = []
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            offset += len(whole)
            records = [item for item in map(json.loads, whole.splitlines()) if "step" in item]
        yield records


# What the log says when a stage begins, in the order in which a run passes them.
_PHASES = (
    ("ray init kwargs", "starting Ray"),
    ("Started a local Ray instance", "starting the trainer"),
    ("create worker group", "loading the model into the trainer"),
    ("reward loop manager initialized", "starting the rollout engine"),
    ("init engine", "asking every process what is active in it"),
    ("Training Progress", "first step"),
)


def phase(log: Path) -> str:
    """What a run is doing before its first step, by its log."""
    text = log.read_bytes().decode(errors="replace") if log.exists() else ""
    reached = [words for mark, words in _PHASES if mark in text]
    return reached[-1] if reached else "importing"


def last_words(log: Path) -> str:
    """The last lines of a log, for a run that left no `end.json`: its processes were killed, or never were in a run."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if line.strip()][-12:]) or "the log is empty"


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise NereusError(
            "this process cannot adopt the processes its job leaves behind",
            where="prctl(PR_SET_CHILD_SUBREAPER)",
            expected="0",
            got=os.strerror(ctypes.get_errno()),
            change="run on Linux 3.4 or later",
        )


def _stop(driver: subprocess.Popen[bytes]) -> None:
    """End the driver as Ctrl-C would, so that Ray shuts down by itself; kill it when it takes too long."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGINT)
    try:
        driver.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        driver.kill()


def _end_descendants(keep: int | None) -> None:
    """Kill every process below this one but `keep`. What they fork meanwhile is found in the next round."""
    me = psutil.Process()
    for _round in range(20):
        alive = [child for child in me.children(recursive=True) if child.pid != keep and child.status() != "zombie"]
        if not alive:
            break
        for child in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(alive, timeout=1.0)
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
