"""What a run is to the report: how it was started, what was active where, and its record by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from verl_ext.ending import Ending
from verl_ext.errors import NereusError

SCHEMA = 2

Value = int | float | str | None


class ProcessReport(TypedDict, total=False):
    """What one process said about itself when the run started."""

    process: str
    """Its name to a person, for example `actor 0`."""
    role: str
    """driver, trainer, actor, server, ..."""
    pid: int
    host: str
    code: str
    """Version and digest of the nereus it runs."""
    applied: list[str]
    """Names of the touches that have to be applied in it, and are."""


class FeatureState(TypedDict):
    """What a feature was in a run."""

    name: str
    on: bool
    detail: str
    evidence: list[str]
    """What the answers of the processes prove, one sentence each."""


class DeclaredMetric(TypedDict):
    """A metric that a feature logs in every step."""

    feature: str
    name: str
    unit: str
    meaning: str
    healthy: list[float] | None
    """Lowest and highest value of a feature that works."""


class Lowered(TypedDict):
    """A key of verl's config that a feature has set, or would have set where the user had not."""

    feature: str
    key: str
    value: Any
    kept: bool
    """Whether the user's own value was kept."""


class Event(TypedDict):
    """Something that happened in a run, from `events.jsonl`."""

    step: int
    feature: str
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Everything about a run that does not change from step to step."""

    command: list[str]
    """The command line, one argument an item."""
    started_at: str
    """ISO 8601 time with zone."""
    title: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Package name -> version."""
    features: list[FeatureState] = field(default_factory=list)
    metrics: list[DeclaredMetric] = field(default_factory=list)
    """What the active features said they would log."""
    lowered: list[Lowered] = field(default_factory=list)
    """What features have set in verl's config."""
    processes: list[ProcessReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    """Label -> reward, drawn as a dotted line in the reward figure."""

    def __post_init__(self) -> None:
        for label, reward in self.baselines.items():
            if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
                raise NereusError(
                    "a baseline is not a finite number",
                    where=f"RunInfo.baselines[{label!r}]",
                    expected="the reward at which to draw the line",
                    got=repr(reward),
                    change="give a number, or leave this baseline out",
                )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `run.json`."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: object, where: str) -> RunInfo:
        """Reads the JSON object of `run.json`; fields a later version added are ignored.

        Raises:
            NereusError: a field has the wrong type, or command or started_at is missing.
        """
        if not isinstance(data, Mapping):
            raise _bad(where, "a JSON object", type(data).__name__)
        lists = ("command", "processes", "notes", "features", "metrics", "lowered")
        kinds: dict[str, type] = {"started_at": str, "title": str, **dict.fromkeys(lists, list)}
        known = {f.name for f in fields(cls)}
        for name in ("command", "started_at"):
            if name not in data:
                raise _bad(where, f"the field {name}", f"the fields {', '.join(map(str, data)) or '(none)'}")
        for name in known & set(data):
            kind = kinds.get(name, dict)
            if not isinstance(data[name], kind):
                raise _bad(where, f"{name} to be a {kind.__name__}", type(data[name]).__name__)
        for name in ("processes", "features", "metrics", "lowered"):
            if not all(isinstance(item, Mapping) for item in data.get(name, [])):
                raise _bad(where, f"every entry of {name} to be an object", "something else among them")
        return cls(**{name: data[name] for name in known & set(data)})


def _bad(where: str, expected: str, got: str) -> NereusError:
    return NereusError(
        "the run description cannot be read",
        where=where,
        expected=expected,
        got=got,
        change="write it with RunWriter.write_run, or move it away to report without it",
    )


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A run as read back: one record a step, in order of step."""

    path: Path
    """The folder or file that was asked for."""
    source: str
    """Where the records come from: `nereus`, `verl file logger`, `tensorboard`, `console` or `none`."""
    files: tuple[Path, ...]
    records: tuple[Mapping[str, Value], ...]
    """NaN and the infinities are floats again here."""
    info: RunInfo | None = None
    events: tuple[Event, ...] = ()
    ending: Ending | None = None
    """Why the run stopped, when it stopped with an error."""
    resumed_at: tuple[int, ...] = ()
    """First step of each resumption whose superseded records were dropped."""
    warnings: tuple[str, ...] = ()
    """Everything that was left out, repaired or contradictory, one sentence each."""

    @property
    def keys(self) -> list[str]:
        """Every metric name in any record, in the order first seen."""
        return list(dict.fromkeys(key for record in self.records for key in record))

    @property
    def last_step(self) -> int | None:
        """The last recorded step, None if there is none."""
        return self.steps[-1] if self.records else None

    @property
    def steps(self) -> list[int]:
        """The recorded steps in ascending order."""
        return [step_of(record) for record in self.records]

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric, where it was logged; values may be NaN or infinite."""
        pairs = [(step_of(r), float(v)) for r in self.records if isinstance(v := r.get(key), (int, float))]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def finite(self, key: str) -> tuple[list[int], list[float]]:
        """Like `series`, without NaN and the infinities."""
        pairs = [(s, v) for s, v in zip(*self.series(key), strict=True) if math.isfinite(v)]
        return [step for step, _ in pairs], [value for _, value in pairs]


def step_of(record: Mapping[str, Value]) -> int:
    """The step of a record."""
    step = record["step"]
    assert isinstance(step, int)
    return step
