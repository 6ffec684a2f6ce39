"""The lines of `metrics.jsonl`: how a record becomes a line, and how lines become one record a step.

A line is one JSON object with `step`. JSON has no NaN, so a value that is not finite is written as null and
named in `non_finite` as `name=nan`, `name=inf` or `name=-inf`. A line with `resumed_at` instead of `step`
says that the run went back to that step: earlier records from it on are superseded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_ext.errors import NereusError
from verl_ext.report.model import Value, step_of
from verl_ext.report.names import number

NON_FINITE = "non_finite"
RESUMED_AT = "resumed_at"


def to_line(record: Mapping[str, object]) -> str:
    """One record as one line of JSON, without the line end.

    Raises:
        NereusError: `step` is missing or no whole number, a reserved name is used, or a value is neither a
            number, a string nor None.
    """
    step = record.get("step")
    if isinstance(step, bool) or not isinstance(number(step), int):
        raise _bad("step to be a whole number", repr(step))
    line: dict[str, object] = {}
    non_finite: list[str] = []
    for key, value in record.items():
        if not isinstance(key, str) or key in (NON_FINITE, RESUMED_AT):
            raise _bad(f"metric names that are strings other than {NON_FINITE} and {RESUMED_AT}", repr(key))
        if value is None or isinstance(value, str):
            line[key] = value
            continue
        plain = number(value)
        if plain is None:
            raise _bad("every value to be a number, a string or None", f"{key}: {type(value).__name__}")
        if math.isfinite(plain):
            line[key] = plain
        else:
            line[key] = None
            non_finite.append(f"{key}={plain}")
    if non_finite:
        line[NON_FINITE] = non_finite
    return json.dumps(line, allow_nan=False)


def _bad(expected: str, got: str) -> NereusError:
    return NereusError(
        "a record cannot be written to the run record",
        where="RunWriter.append",
        expected=expected,
        got=got,
        change="pass the record that summarise(step, metrics) returns",
    )


@dataclass
class Merged:
    """What remains of a file of records after resumptions: one record a step."""

    by_step: dict[int, dict[str, Value]] = field(default_factory=dict)
    resumed_at: list[int] = field(default_factory=list)
    superseded: int = 0
    """Number of steps dropped because the run went back behind them."""

    def records(self) -> tuple[dict[str, Value], ...]:
        """One record a step, ascending."""
        return tuple(self.by_step[step] for step in sorted(self.by_step))

    def resume(self, step: int) -> None:
        """Drops every record from `step` on: the run went back to it."""
        stale = [known for known in self.by_step if known >= step]
        for known in stale:
            del self.by_step[known]
        self.superseded += len(stale)
        self.resumed_at = [*(known for known in self.resumed_at if known < step), step]

    def add(self, record: Mapping[str, Value]) -> None:
        """Takes a record; of two for the same step the later value of each metric counts.

        Metric by metric, because verl logs the validation before training under the step it resumes from, and
        that must not hide what was recorded when that step was trained.
        """
        known = self.by_step.setdefault(step_of(record), {})
        known.update({key: value for key, value in record.items() if value is not None or key not in known})


def parse(line: bytes) -> dict[str, Value]:
    """One line of `metrics.jsonl` with NaN and the infinities restored.

    Raises:
        ValueError: the line is not a record: cut short, not JSON, no step.
    """
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    marks = data.pop(NON_FINITE, [])
    for mark in marks if isinstance(marks, list) else []:
        key, _, kind = str(mark).rpartition("=")
        data[key] = float(kind)
    which = data.get(RESUMED_AT, data.get("step"))
    if isinstance(which, bool) or not isinstance(which, int):
        raise ValueError("no step")
    return {key: value for key, value in data.items() if value is None or isinstance(value, (int, float, str))}


def merge(lines: Iterable[bytes]) -> tuple[Merged, list[int]]:
    """Reads the lines of a `metrics.jsonl` in order.

    Returns:
        What remains of them, and the numbers (from 1) of the lines that are neither records nor blank.
    """
    merged, unreadable = Merged(), []
    for index, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse(line)
        except ValueError:
            unreadable.append(index)
            continue
        if RESUMED_AT in record:
            at = record[RESUMED_AT]
            assert isinstance(at, int)
            merged.resume(at)
        else:
            merged.add(record)
    return merged, unreadable
