"""What a feature of nereus is: one value, and everything that has to know of it finds it there.

A feature is a pure folder (options, rules, numerics), one glue module in `integrations/` that ends with a `Feature`,
and a line each in the options root and in `integrations/features.py`. Preflight, joining a run, the roll call, the
trainer, the report, `nereus doctor`, the command line and the documents loop over the entries; none of them names one.

Whatever is heavy or rarely needed is given by its dotted name, `module:attribute`, and imported when it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from verl_ext.errors import NereusError

if TYPE_CHECKING:
    from verl_ext.compat.touch import Touch


class Run(Protocol):
    """What a feature may ask of the run it is part of. See `integrations/run.py`."""

    @property
    def options(self) -> Any:
        """All options, `NereusOptions`."""

    @property
    def platform(self) -> str:
        """verl's `trainer.device`, e.g. `cuda` or `cpu`."""

    @property
    def rollout(self) -> str:
        """verl's `rollout.name`, e.g. `vllm`."""

    @property
    def engines(self) -> Mapping[str, str]:
        """Training role -> verl's strategy for it, e.g. `actor` -> `megatron`."""

    @property
    def mode(self) -> str:
        """verl's `trainer.v1.trainer_mode`, e.g. `sync`."""


@dataclass(frozen=True)
class Refusal:
    """A row of docs/refusals.md. In the texts, keys are in backquotes.

    Attributes:
        setting: what is refused.
        change: what to do instead.
        because: what would happen without the refusal; empty where the setting says it (a file that is not there).
        evidence: file and line of upstream, or the report of it; empty where there is nothing to look up.
    """

    setting: str
    change: str
    because: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Metric:
    """A number that a feature logs in every step, under `nereus/`.

    Attributes:
        name: as in verl's logger, beginning with `nereus/`.
        unit: for example `s`, `tokens` or `share`; empty for a plain number.
        meaning: a phrase.
        healthy: the lowest and the highest value of a feature that works. Outside of it, not finite or missing ends the
            run by the feature's name. None: any value will do.
        from_step: first step of the process at which it has to be there, counted from 1.
    """

    name: str
    unit: str
    meaning: str
    healthy: tuple[float, float] | None = None
    from_step: int = 1


@dataclass(frozen=True)
class Fact:
    """A question of the roll call, and the right answer.

    Attributes:
        name: in the message, e.g. `options`.
        ask: dotted name of a function `() -> plain value`, called in every process of `roles`.
        change: what to do where the answer is another one.
        right: makes the right answer from the run; None: the one that the driver gave.
        roles: processes that have to answer; None for all.
    """

    name: str
    ask: str
    change: str
    right: Callable[[Run], Any] | None = None
    roles: frozenset[str] | None = None


Check = Callable[[Any, Any], Iterator[NereusError]]


class Rule:
    """What cannot be right in a config, and how the documents say it.

    Called with a `view.View` of verl's config and all options of nereus. Yields what it finds, and changes nothing.
    """

    def __init__(self, check: Check, refusals: tuple[Refusal, ...]):
        self._check = check
        self.refusals = refusals
        self.__name__ = check.__name__
        self.__doc__ = check.__doc__
        self.module = check.__module__

    def __call__(self, view: Any, options: Any) -> Iterator[NereusError]:
        return self._check(view, options)


def refuses(*refusals: Refusal) -> Callable[[Check], Rule]:
    """Make a rule of a generator function: what it refuses stands above it."""
    return lambda check: Rule(check, refusals)


def _never(_run: Run, _view: Any) -> dict[str, Any]:
    return {}


def _silent(_run: Run) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Attributes:
        name: in the banner, the report, `nereus doctor` and the README.
        summary: what it does, in a phrase.
        state: how far it is, for the README.
        tested: what that is known from, for the README.
        on: whether it is active in a run.
        detail: what there is to say of it in a run where it is on, e.g. `45 s`.
        rules: what it refuses. Asked in every run with nereus, on or not: a rule may be about a feature that cannot be
            switched on.
        excludes: name of another feature -> why both cannot be on.
        lower: `(run, view) -> {key: value}`: keys of the config that it sets where the user has not; see `view.View`.
        touches: classes of what it changes in upstream, see `compat.touch`.
        facts: what its processes answer at the roll call.
        measure: dotted name of `(trainer, metrics) -> {name: value}`, called before verl logs a step.
        metrics: what `measure` gives.
        plots: dotted names of `report.plots.Plot` values.
        sections: dotted names of functions `Page -> HTML`.
        commands: subcommand -> dotted name of a typer app.
        section: name and dataclass of its options, for a feature of another package; those of nereus stand in
            `config.py`.
        doctor: dotted name of `() -> problem or ""`: what keeps it from working in this environment.
    """

    name: str
    summary: str
    state: str
    tested: str
    on: Callable[[Run], bool]
    detail: Callable[[Run], str] = _silent
    rules: tuple[Rule, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    lower: Callable[[Run, Any], Mapping[str, Any]] = _never
    touches: tuple[type[Touch], ...] = ()
    facts: tuple[Fact, ...] = ()
    measure: str = ""
    metrics: tuple[Metric, ...] = ()
    plots: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    section: tuple[str, type] | None = None
    doctor: str = ""


@dataclass(frozen=True)
class FeatureState:
    """What a feature was in a run. Plain values: this goes into run.json.

    Attributes:
        on: whether it was active.
        detail: what there is to say of it.
        evidence: what the answers of the processes prove, one sentence each.
    """

    name: str
    on: bool
    detail: str = ""
    evidence: tuple[str, ...] = ()


def load(name: str) -> Any:
    """The object of a dotted name, `module:attribute`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def active(features: Sequence[Feature], run: Run) -> list[Feature]:
    """Those that are on in this run, in their order.

    Raises:
        NereusError: two of them exclude each other.
    """
    found = [feature for feature in features if feature.on(run)]
    names = {feature.name for feature in found}
    for feature in found:
        for other, reason in feature.excludes.items():
            if other in names:
                raise NereusError(
                    f"{feature.name} and {other} cannot both be on: {reason}",
                    where=f"{feature.name}, {other}",
                    expected="one of them",
                    got="both",
                    change="switch one of them off",
                )
    return found


def unhealthy(feature: Feature, step: int, values: Mapping[str, Any]) -> NereusError | None:
    """Why a feature cannot be trusted after this step, by its metrics; None when there is nothing to say.

    Args:
        step: steps of this process so far, from 1.
        values: what was logged in this step.
    """
    for metric in feature.metrics:
        if metric.healthy is None or step < metric.from_step:
            continue
        low, high = metric.healthy
        value = values.get(metric.name)
        if value is None or not low <= value <= high:  # a NaN is in no range
            return NereusError(
                f"{feature.name} is on and does not work: {metric.name} ({metric.meaning})",
                where=f"step {step} of this run, {metric.name}",
                expected=f"{low:g} to {high:g} {metric.unit}".rstrip(),
                got="nothing was logged" if value is None else f"{value:g}",
                change=f"see the log for {feature.name}; switch it off to train without it",
            )
    return None
