"""The run record, written while the run goes on: run.json, command.txt, metrics.jsonl, events.jsonl."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from verl_ext.errors import NereusError
from verl_ext.report.files import write_atomic
from verl_ext.report.model import Event, RunInfo
from verl_ext.report.names import is_validation_only, number
from verl_ext.report.records import RESUMED_AT, merge, to_line

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
COMMAND_FILE = "command.txt"


class RunWriter:
    """Writes the record of one run into a folder; one writer at a time.

    A folder that already has records is that of a resumed run: the first record of a training step, or
    `resumed_at` where it is given, supersedes what was recorded from that step on. Nothing already written is
    changed.

    Args:
        run_dir: the folder; made if it does not exist.
        resumed_at: the first step this process trains, if it is known.

    Raises:
        NereusError: `run_dir` is a file.
        OSError: it cannot be made.
    """

    def __init__(self, run_dir: str | Path, *, resumed_at: int | None = None):
        self.run_dir = Path(run_dir)
        if self.run_dir.exists() and not self.run_dir.is_dir():
            raise NereusError(
                "the folder for the run record is a file",
                where=str(self.run_dir),
                expected="a folder, or a path where one can be made",
                got="a file",
                change="choose another folder",
            )
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._resumed_at = resumed_at
        self._marked = False
        self._file: int | None = None

    def write_run(self, info: RunInfo) -> Path:
        """Writes `run.json` and `command.txt`, each in one go, and returns the path of the first."""
        write_atomic(self.run_dir / COMMAND_FILE, shlex.join(info.command) + "\n")
        payload = json.dumps(info.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
        return write_atomic(self.run_dir / RUN_FILE, payload + "\n")

    def append(self, record: Mapping[str, object]) -> None:
        """Adds one step, as `summarise` returns it, and waits until it is on disk.

        Raises:
            NereusError: the record has no whole `step`, or a value that is neither number, string nor None.
            OSError: the disk refuses.
        """
        line = to_line(record)
        if self._file is None:
            self._file = self._open()
        marker = ""
        if not self._marked and not (self._resumed_at is None and is_validation_only(record)):
            step = number(record["step"]) if self._resumed_at is None else self._resumed_at
            marker = json.dumps({RESUMED_AT: step}) + "\n"
            self._marked = True
        _write_all(self._file, (marker + line + "\n").encode())

    def event(self, event: Event) -> None:
        """Adds a line to `events.jsonl`, and waits until it is on disk."""
        file = os.open(self.run_dir / EVENTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, (json.dumps(event, ensure_ascii=False) + "\n").encode())
        finally:
            os.close(file)

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        path = self.run_dir / METRICS_FILE
        earlier = path.read_bytes() if path.exists() else b""
        merged, _ = merge(earlier.split(b"\n"))
        if not merged.by_step:
            self._marked = True
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        # A kill may have cut the last line; without an end of its own it would swallow the next record.
        if earlier and not earlier.endswith(b"\n"):
            _write_all(file, b"\n")
        return file

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_all(file: int, payload: bytes) -> None:
    while payload:
        payload = payload[os.write(file, payload) :]
    os.fsync(file)
