"""The root of the options of nereus, and what a command line may say of them.

The dataclasses are the only definition: Hydra composes them as the group `plugins/nereus`, so that
`+plugins=nereus nereus.weight_sync.stall_timeout_s=120` works on verl's own entry points, and the reference in the docs
is made from them. A feature with a folder has its section there; the others stand here. The options reach other
processes as one JSON string in Ray's runtime environment, and are compared by digest before training.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_ext.errors import NereusError
from verl_ext.options import Section, build, flatten, leaves, nearest, positive, sections
from verl_ext.routing.options import RoutingOptions

# Options that earlier versions had, with what to write instead.
REMOVED: dict[str, str] = {}


@dataclass
class RollCallOptions(Section):
    """The question to every process of the run before it trains."""

    not_asked: list[str] = field(default_factory=list)
    """Classes of Ray actors of your own that take no part in training, e.g. [Judge]. Without being named here, an actor
    that nobody asks ends the run."""


@dataclass
class WeightSyncOptions(Section):
    """The transfer of weights from the trainer to the rollout engine."""

    stall_timeout_s: float = 45.0
    """Seconds without an acknowledgement of one bucket after which the sync, and the job, ends with its cause."""

    def check(self, path: str) -> None:
        positive(f"{path}.stall_timeout_s", self.stall_timeout_s)


@dataclass
class TrainerOptions(Section):
    """What the trainer does between steps."""

    poll_interval_s: float | None = None
    """Seconds between two looks at the replay buffer; null keeps verl's 2.0 (0.05 on the cpu platform)."""

    def check(self, path: str) -> None:
        positive(f"{path}.poll_interval_s", self.poll_interval_s)


@dataclass
class ReportOptions(Section):
    """metrics.jsonl and report.html of the run."""

    dir: str = ""
    """Folder for report.html, metrics.jsonl, events.jsonl, run.json and command.txt, on a disk that the trainer's node
    can write; empty: Hydra's output folder of the run."""

    html_every_steps: int = 20
    """Steps between two rebuilds of report.html while the run goes on; it is always built at the end."""

    title: str = ""
    """Heading of the report; empty: the experiment's name."""

    baselines: list[str] = field(default_factory=list)
    """Rewards to draw as dotted lines, each as label=value, e.g. ['best constant answer=0.12']."""

    def check(self, path: str) -> None:
        positive(f"{path}.html_every_steps", self.html_every_steps)
        self.levels(path)

    def levels(self, path: str = "nereus.report") -> dict[str, float]:
        """`baselines` as label -> reward.

        Raises:
            NereusError: one is not label=number.
        """
        found: dict[str, float] = {}
        for item in self.baselines:
            label, _, number = item.rpartition("=")
            try:
                found[label] = float(number)
            except ValueError:
                label = ""
            if not label:
                raise NereusError(
                    "a baseline is not a label and a reward",
                    where=f"{path}.baselines",
                    expected="label=number",
                    got=repr(item),
                    change=f"{path}.baselines=['best constant answer=0.12']",
                )
        return found


@dataclass
class CompatOptions(Section):
    """Upstream versions."""

    allow_untested_versions: bool = False
    """Run with versions outside the table. Written in every report; patches still verify what they replace."""


@dataclass
class CpuOptions(Section):
    """The cpu platform (`trainer.device=cpu`)."""

    python: str | None = None
    """Executable that stands in for python in every process of the run, as made by the prefork server."""


@dataclass
class NereusOptions:
    """The root of `nereus.*`."""

    roll_call: RollCallOptions = field(default_factory=RollCallOptions)
    routing: RoutingOptions = field(default_factory=RoutingOptions)
    weight_sync: WeightSyncOptions = field(default_factory=WeightSyncOptions)
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    compat: CompatOptions = field(default_factory=CompatOptions)
    cpu: CpuOptions = field(default_factory=CpuOptions)

    def digest(self) -> str:
        """First 12 hex digits of the SHA-256 over all options; equal in every process of a run."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> NereusOptions:
        """Build from nested plain values, as in `nereus.*` of a resolved config.

        Raises:
            NereusError: unknown or removed key, wrong type or a value outside its range.
        """
        for key in flatten(values):
            check_key(key)
        options = build(root(), values, "nereus")
        for name in sections(root()):
            getattr(options, name).check(f"nereus.{name}")
        return options


_root: type[NereusOptions] = NereusOptions


def root() -> type[NereusOptions]:
    """The dataclass of all options: that of nereus, with the sections of features of other packages."""
    return _root


def add_section(name: str, section: type[Section]) -> None:
    """Give a feature of another package a section. Doing it again with the same one does nothing.

    Raises:
        NereusError: there is another one of that name.
    """
    global _root
    known = sections(_root)
    if known.get(name, section) is not section:
        raise NereusError(
            f"two features have options under nereus.{name}",
            where=f"{section.__module__}.{section.__qualname__}",
            expected="a section of its own for each feature",
            got=f"{known[name].__module__}.{known[name].__qualname__} is there",
            change="uninstall one of the two packages",
        )
    if name not in known:
        item = (name, section, field(default_factory=section))
        _root = dataclasses.make_dataclass(
            "NereusOptions", [item], bases=(_root,), namespace={"__doc__": _root.__doc__}
        )


def keys() -> tuple[str, ...]:
    """Every option as a dotted path under `nereus`, e.g. `routing.mode`, in the order of the dataclasses."""
    return tuple(path for path, _kind in leaves(root()))


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
                "nothing reads options of nereus there",
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
