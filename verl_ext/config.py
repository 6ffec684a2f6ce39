"""Every option of nereus, typed, with its meaning and its checks.

The dataclasses below are the only definition: Hydra composes them as the group `plugins/nereus`, so that
`+plugins=nereus nereus.routing.mode=R3` works on verl's own entry points, and the reference in the docs is made from
them. Options reach other processes inside the config (`actor_rollout_ref.nereus` for workers) and, for processes that
verl gives no config, as one JSON string in Ray's runtime environment; both are compared by digest before training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_ext.errors import NereusError

ROUTING_MODES = ("off", "R2", "R3", "PR2")

# Options that earlier versions had, with what to write instead.
REMOVED: dict[str, str] = {}


@dataclass
class RoutingOptions:
    """Router replay on mixture-of-experts models."""

    mode: str = "off"
    """off, R2 (record in the log-prob pass), R3 (record in the rollout) or PR2 (predictive). Only off in this
    version."""


@dataclass
class WeightSyncOptions:
    """The transfer of weights from the trainer to the rollout engine."""

    stall_timeout_s: float = 45.0
    """Seconds without an acknowledgement of one bucket after which the sync, and the job, ends with its cause."""


@dataclass
class TrainerOptions:
    """What the trainer does between steps."""

    poll_interval_s: float | None = None
    """Seconds between two looks at the replay buffer; null keeps verl's 2.0 (0.05 on the cpu platform)."""


@dataclass
class ReportOptions:
    """metrics.jsonl and report.html of the run."""

    dir: str = ""
    """Folder for report.html, metrics.jsonl, run.json and command.txt, on a disk that the trainer's node can write;
    empty: Hydra's output folder of the run."""

    html_every_steps: int = 20
    """Steps between two rebuilds of report.html while the run goes on; it is always built at the end."""

    title: str = ""
    """Heading of the report; empty: the experiment's name."""

    baselines: list[str] = field(default_factory=list)
    """Rewards to draw as dotted lines, each as label=value, e.g. ['best constant answer=0.12']."""


@dataclass
class CompatOptions:
    """Upstream versions."""

    allow_untested_versions: bool = False
    """Run with versions outside the table. Written in every report; patches still verify what they replace."""


@dataclass
class CpuOptions:
    """The cpu platform (`trainer.device=cpu`)."""

    python: str | None = None
    """Executable that stands in for python in every process of the run, as made by the prefork server."""


@dataclass
class NereusOptions:
    """The root of `nereus.*`."""

    routing: RoutingOptions = field(default_factory=RoutingOptions)
    weight_sync: WeightSyncOptions = field(default_factory=WeightSyncOptions)
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    compat: CompatOptions = field(default_factory=CompatOptions)
    cpu: CpuOptions = field(default_factory=CpuOptions)

    def baselines(self) -> dict[str, float]:
        """`report.baselines` as label -> reward.

        Raises:
            NereusError: one is not label=number.
        """
        found: dict[str, float] = {}
        for item in self.report.baselines:
            label, _, number = item.rpartition("=")
            try:
                found[label] = float(number)
            except ValueError:
                label = ""
            if not label:
                raise NereusError(
                    "a baseline is not a label and a reward",
                    where="nereus.report.baselines",
                    expected="label=number",
                    got=repr(item),
                    change="nereus.report.baselines=['best constant answer=0.12']",
                )
        return found

    def digest(self) -> str:
        """First 12 hex digits of the SHA-256 over all options; equal in every process of a run."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> NereusOptions:
        """Build from nested plain values, as in `nereus.*` of a resolved config.

        Raises:
            NereusError: unknown or removed key, wrong type or a value outside its range.
        """
        for key in _flatten(values):
            check_key(key)
        options: NereusOptions = _build(cls, values, "nereus")
        options.check()
        return options

    def check(self) -> None:
        """Raise NereusError for a value outside its range."""
        if self.routing.mode not in ROUTING_MODES:
            raise NereusError(
                f"nereus.routing.mode={self.routing.mode!r} is not a mode",
                where="nereus.routing.mode",
                expected="one of " + ", ".join(ROUTING_MODES),
                got=repr(self.routing.mode),
                change=f"nereus.routing.mode={nearest(self.routing.mode, ROUTING_MODES) or 'off'}",
            )
        self.baselines()
        positive = {
            "nereus.weight_sync.stall_timeout_s": self.weight_sync.stall_timeout_s,
            "nereus.trainer.poll_interval_s": self.trainer.poll_interval_s,
            "nereus.report.html_every_steps": self.report.html_every_steps,
        }
        for name, value in positive.items():
            # Neither nan nor inf: a wait without a limit is what the limit is for.
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise NereusError(
                    f"{name} has to be a number above zero",
                    where=name,
                    expected="a positive, finite number",
                    got=repr(value),
                    change=f"give {name} a positive value",
                )


def keys() -> tuple[str, ...]:
    """Every option as a dotted path under `nereus`, e.g. `routing.mode`, in the order of the dataclasses."""
    return tuple(path for path, _kind in _leaves(NereusOptions))


def check_key(key: str) -> None:
    """Raise NereusError unless `key` (dotted, without the leading `nereus.`) is an option."""
    known = keys()
    if key in known:
        return
    if key in REMOVED:
        raise NereusError(
            f"nereus.{key} was removed",
            where=f"nereus.{key}",
            expected=f"nereus.{REMOVED[key]}",
            got=f"nereus.{key}",
            change=f"write nereus.{REMOVED[key]} instead",
        )
    guess = nearest(key, known)
    raise NereusError(
        f"nereus has no option {key!r}",
        where=f"nereus.{key}",
        expected="one of " + ", ".join(f"nereus.{name}" for name in known),
        got=f"nereus.{key}",
        change=f"did you mean nereus.{guess}?" if guess else "see the options in the reference",
    )


def check_overrides(arguments: list[str]) -> None:
    """Check the `nereus.*` overrides of a Hydra command line, which by itself does not name the nearest key.

    Raises:
        NereusError: at the first key that is no option. Values are left to Hydra, which knows the types.
    """
    sections = {name.split(".")[0] for name in keys()}
    for argument in arguments:
        name = argument.split("=", 1)[0].lstrip("+~")
        if "=" not in argument:
            continue
        if name.startswith("actor_rollout_ref.nereus"):
            raise NereusError(
                "the workers' copy of the options is not set by hand",
                where=argument,
                expected="options under nereus",
                got=name,
                change=argument.lstrip("+~").removeprefix("actor_rollout_ref."),
            )
        if name.startswith("nereus."):
            key = name.removeprefix("nereus.").split("@")[0]
            if key not in sections:
                check_key(key)


def check_switch(arguments: list[str]) -> None:
    """Check a command line for spellings of the switch that Hydra accepts and that switch nothing on.

    Raises:
        NereusError: `+plugins@somewhere=nereus` puts the switch where nobody looks, and `+plugin=nereus` is a plain
            value of no meaning.
    """
    for argument in arguments:
        found = re.fullmatch(r"\+*(\w+)(@[\w.]*)?=\W*nereus(\.yaml)?\W*", argument)
        if found is None:
            continue
        name, package = found[1], found[2]
        misspelt = name != "plugins" and difflib.get_close_matches(name, ["plugins"], cutoff=0.75)
        misplaced = name == "plugins" and package not in (None, "@", "@_global_")
        if misspelt or misplaced:
            raise NereusError(
                "this does not switch nereus on",
                where="the command line",
                expected="+plugins=nereus",
                got=argument,
                change="+plugins=nereus",
            )


def nearest(word: str, choices: tuple[str, ...]) -> str | None:
    """The choice that `word` most likely meant, or None when nothing is close."""
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if not found:
        by_leaf = {choice.rsplit(".", 1)[-1]: choice for choice in choices}
        leaf = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(by_leaf), n=1, cutoff=0.6)
        return by_leaf[leaf[0]] if leaf else None
    return found[0]


def _nested(item: dataclasses.Field[Any]) -> type | None:
    factory = item.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def _leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option below `cls` as (dotted path, type)."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        nested = _nested(item)
        if nested is not None:
            yield from _leaves(nested, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, hints[item.name]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        path = prefix + str(name)
        if isinstance(value, Mapping):
            yield from _flatten(value, path + ".")
        else:
            yield path


def _build(cls: type, values: Mapping[str, Any], path: str) -> Any:
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        if item.name not in values:
            continue
        value, where = values[item.name], f"{path}.{item.name}"
        nested = _nested(item)
        arguments[item.name] = _build(nested, value, where) if nested else _convert(value, hints[item.name], where)
    return cls(**arguments)


def _convert(value: Any, kind: Any, where: str) -> Any:
    alternatives = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for alternative in alternatives:
        if alternative == list[str] and isinstance(value, list):
            return [_convert(item, str, f"{where}[{index}]") for index, item in enumerate(value)]
        if alternative is float and isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return float(value)
        if type(value) is alternative:
            return value
    expected = " or ".join(getattr(alternative, "__name__", str(alternative)) for alternative in alternatives)
    raise NereusError(
        f"{where} has the wrong type",
        where=where,
        expected=expected,
        got=f"{value!r} ({type(value).__name__})",
        change=f"give {where} a value of type {expected}",
    )
