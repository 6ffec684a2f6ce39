"""What a stock verl run leaves behind: console logs, the `file` logger's jsonl and TensorBoard event files.

Each reader returns the same thing, so that a report of a run without nereus looks like one with it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.errors import NereusError
from verl_ext.report.model import Value
from verl_ext.report.names import SUMMARY_KEYS, is_validation_only, number, summarise
from verl_ext.report.records import Merged

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Ray appends this to a line it has seen from several processes.
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_STEP = re.compile(r"(?:^|[\s)])step:(\d+) - ")
_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf)"
_VALUE = re.compile(rf"(?:np\.\w+\(({_NUMBER})\)|({_NUMBER})|(True|False)|np\.(?:bool_?|False_|True_)\S*)")


@dataclass
class Found:
    """The records of one source, with what could not be read of it."""

    files: list[Path]
    merged: Merged = field(default_factory=Merged)
    warnings: list[str] = field(default_factory=list)

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes what verl logged at a step; a metric logged twice for a step means the run went back to it.

        Metrics that are new for the step join those it has: verl's asynchronous trainers log from several
        processes, and every trainer logs a validation on its own before the first step.
        """
        record: dict[str, Value] = {**summarise(step, metrics)}
        known = self.merged.by_step.get(step, {})
        again = any(known.get(key) is not None for key in record if key not in SUMMARY_KEYS)
        if again and not is_validation_only(record):
            self.merged.resume(step)
        self.merged.add(record)


def read_console(files: Iterable[Path]) -> Found | None:
    """Reads the `step:N - key:value - ...` lines of console logs, oldest file first; None if there are none.

    Ray's coloured prefixes, timestamps and NumPy's way to print numbers are understood. A value that is not,
    and the last value of a file that ends within a line, are left out and named in the warnings.
    """
    found = Found([])
    for path in sorted(files, key=lambda file: (file.stat().st_mtime, file.name)):
        odd: set[str] = set()
        for line, complete in _lines(path):
            parsed = parse_console_line(line)
            if parsed is None:
                continue
            step, metrics, unknown = parsed
            if not complete and metrics:
                key = next(reversed(metrics))
                del metrics[key]
                found.warnings.append(
                    f"{path.name} ends within the line of step {step}; {key} of that step was left out, it may be cut."
                )
            odd.update(unknown)
            if path not in found.files:
                found.files.append(path)
            found.add(step, metrics)
        if odd:
            shown = ", ".join(sorted(odd)[:5]) + (", ..." if len(odd) > 5 else "")
            found.warnings.append(f"{path.name} holds values that are no numbers and were left out: {shown}.")
    return found if found.merged.by_step else None


def parse_console_line(line: str) -> tuple[int, dict[str, float], list[str]] | None:
    """Reads one line of verl's console logger.

    Returns:
        The step, its metrics and the names of values that are no numbers; None for any other line.
    """
    plain = _REPEATED.sub("", _ESCAPES.sub("", line).rstrip())
    match = _STEP.search(plain)
    if match is None:
        return None
    metrics: dict[str, float] = {}
    unknown: list[str] = []
    held = ""
    for piece in plain[match.end() :].split(" - "):
        held = f"{held} - {piece}" if held else piece
        if ":" not in piece:
            # A name may hold " - ", as a data source can be called anything: the value follows.
            continue
        key, _, text = held.rpartition(":")
        value = _value(text.strip())
        if value is None:
            unknown.append(key)
        else:
            metrics[key] = value
        held = ""
    if held:
        unknown.append(held[:80])
    if not metrics and not unknown:
        return None
    return int(match.group(1)), metrics, unknown


def _value(text: str) -> float | None:
    match = _VALUE.fullmatch(text)
    if match is None:
        return None
    if text in ("True", "False"):
        return int(text == "True")
    digits = match.group(1) or match.group(2)
    if digits is None:
        return int("True" in text)
    return int(digits) if re.fullmatch(r"[+-]?\d+", digits) else float(digits)


def _lines(path: Path) -> Iterator[tuple[str, bool]]:
    """Lines of a log and whether each has an end; progress bars rewrite theirs with a carriage return."""
    with path.open("rb") as file:
        for raw in file:
            complete = raw.endswith(b"\n")
            parts = raw.decode("utf-8", errors="replace").rstrip("\n").split("\r")
            for index, part in enumerate(parts):
                yield part, complete or index < len(parts) - 1


def is_file_logger(path: Path) -> bool:
    """Whether the first line of a file is one of verl's `file` logger: `{"step": N, "data": {...}}`."""
    with path.open("rb") as file:
        first = file.readline(1 << 24)
    try:
        data = json.loads(first)
    except ValueError:
        return False
    return isinstance(data, dict) and isinstance(data.get("data"), dict) and "step" in data


def read_file_logger(path: Path) -> Found | None:
    """Reads the jsonl of verl's `file` logger; None if it holds no step.

    That logger writes NaN and the infinities alike as null; both come back as NaN here, with a warning.
    """
    found = Found([path])
    bad: list[int] = []
    nulls: set[str] = set()
    with path.open("rb") as file:
        for index, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                step, data = int(entry["step"]), dict(entry["data"])
            except (ValueError, KeyError, TypeError):
                bad.append(index)
                continue
            nulls.update(key for key, value in data.items() if value is None)
            found.add(step, {key: math.nan if value is None else value for key, value in data.items()})
    if bad:
        found.warnings.append(unreadable_lines(path, bad))
    if nulls:
        found.warnings.append(
            "verl's file logger writes NaN and infinity alike as null; shown as NaN here: "
            + ", ".join(sorted(nulls)[:8])
            + (", ..." if len(nulls) > 8 else "")
            + "."
        )
    return found if found.merged.by_step else None


def unreadable_lines(path: Path, numbers: list[int]) -> str:
    """The warning about lines that were left out because they are no records."""
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    what = "line" if len(numbers) == 1 else "lines"
    return f"{path.name}: {what} {shown} cannot be read (cut by a kill, or not a record) and left out."


def read_tensorboard(folder: Path) -> Found | None:
    """Reads the scalars of a folder of TensorBoard event files; None if there are none.

    Raises:
        NereusError: the tensorboard package is missing.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise NereusError(
            "the only record of this run is in TensorBoard event files, and tensorboard is not installed",
            where=str(folder),
            expected="the tensorboard package, to read them",
            got=str(error),
            change="pip install tensorboard",
        ) from error
    events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    by_step: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            value = number(event.value)
            if value is not None:
                by_step.setdefault(event.step, {})[tag] = value
    found = Found(sorted(folder.glob("events.out.tfevents.*")))
    for step in sorted(by_step):
        found.add(step, by_step[step])
    return found if by_step else None
