"""Three features of another package, in one file: the first has one of everything, the second wants the same upstream
class and is composed with it, the third cannot be.

It is not imported by the tests: it is installed beside nereus, as a package of somebody else's would be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import typer

from verl_ext.compat.extension import Extension
from verl_ext.compat.touch import Door, Patch, rebind
from verl_ext.errors import NereusError
from verl_ext.feature import Fact, Feature, Metric
from verl_ext.integrations.run import current
from verl_ext.integrations.slots import VERL, FsdpEngineSlot, TrainerSlot
from verl_ext.options import Section, one_of

METRICS = "verl.trainer.ppo.metric_utils"


@dataclass
class ToyOptions(Section):
    """A toy."""

    greeting: str = "off"
    """off, hello or forbidden."""

    selfish: bool = False
    """Switch on the feature that cannot be composed."""

    judge: bool = False
    """Start an actor that nobody asks."""

    deaf_from_step: int = 0
    """Step from which on the feature no longer works; 0 for never."""

    def check(self, path: str) -> None:
        one_of(f"{path}.greeting", self.greeting, ("off", "hello", "forbidden"))


def forbidden(_view: Any, options: Any) -> Iterator[NereusError]:
    if options.toy.greeting == "forbidden":
        yield NereusError(
            "this greeting is forbidden",
            where="nereus.toy.greeting",
            expected="hello",
            got="forbidden",
            change="nereus.toy.greeting=hello",
        )


class Judge:
    """A Ray actor that no trainer knows of."""


class ToyTrainer:
    """Counts the steps that it has seen, and starts a judge when it is asked to."""

    toy_order: tuple[str, ...] = ()
    toy_steps = 0

    def init(self) -> None:
        if current().options.toy.judge:  # type: ignore[attr-defined]
            import ray

            self.toy_judge = ray.remote(Judge).options(num_cpus=0).remote()
        super().init()  # type: ignore[misc]

    def on_step_end(self) -> None:
        super().on_step_end()  # type: ignore[misc]
        self.toy_steps += 1
        self.toy_order = ("one", *self.toy_order)


class SecondTrainer:
    def on_step_end(self) -> None:
        super().on_step_end()  # type: ignore[misc]
        self.toy_order = ("two",)


class SelfishTrainer:
    def on_step_end(self) -> None:
        raise AssertionError("never reached")


class ToyEngine:
    """In the MRO of verl's FSDP engine."""


class Counted(Patch):
    name = "verl-toy-patch"
    target = f"{METRICS}:compute_data_metrics"
    why = "To see a patch in a run."
    upstream = "verl 0.9.1 trainer/ppo/metric_utils.py; no report needed"
    remove_when = "the tests need no toy"
    versions = VERL
    fingerprints = ("081d0a19a827",)
    roles = frozenset({"trainer"})

    def replace(self, module: ModuleType) -> None:
        original = module.compute_data_metrics

        def compute_data_metrics(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**original(*args, **kwargs), "toy/patched": 1.0}

        module.compute_data_metrics = compute_data_metrics
        rebind("compute_data_metrics", original, compute_data_metrics, ("verl.trainer.ppo.v1.trainer_base",))


class Greeting(Door):
    name = "verl-toy-door"
    target = "verl.workers.engine_workers:ActorRolloutRefWorker"
    why = "To see a door in a run."
    upstream = "verl 0.9.1 workers/engine_workers.py; no report needed"
    remove_when = "the tests need no toy"
    versions = VERL
    changes = ("verl.workers.engine_workers:ActorRolloutRefWorker.toy_greeting",)
    roles = frozenset({"actor"})

    def apply(self, module: ModuleType) -> None:
        module.ActorRolloutRefWorker.toy_greeting = current().options.toy.greeting  # type: ignore[attr-defined]


class _Toy(Extension):
    why = "To see an extension in a run."
    upstream = "verl 0.9.1; no report needed"
    remove_when = "the tests need no toy"
    versions = VERL


class Trainer(_Toy):
    name, slot, mixin, roles = "verl-toy-trainer", TrainerSlot, f"{__name__}:ToyTrainer", frozenset({"trainer"})


class Engine(_Toy):
    name, slot, mixin, roles = "verl-toy-engine", FsdpEngineSlot, f"{__name__}:ToyEngine", frozenset({"actor"})


class Second(_Toy):
    name, slot, mixin, roles = "verl-toy-second", TrainerSlot, f"{__name__}:SecondTrainer", frozenset({"trainer"})


class Selfish(_Toy):
    name, slot, mixin, roles = "verl-toy-selfish", TrainerSlot, f"{__name__}:SelfishTrainer", frozenset({"trainer"})


def greeting_and_engine() -> list[str]:
    """What an actor answers at the roll call."""
    workers = sys.modules["verl.workers.engine_workers"]
    engines = sys.modules["verl.workers.engine.fsdp.transformer_impl"]
    return [workers.ActorRolloutRefWorker.toy_greeting, engines.FSDPEngineWithLMHead.__mro__[1].__name__]


def measure(trainer: Any, metrics: dict[str, Any]) -> dict[str, float]:
    deaf = current().options.toy.deaf_from_step  # type: ignore[attr-defined]
    assert trainer.toy_order == ("one", "two")
    return {"nereus/toy/steps": 0.0 if deaf and trainer.toy_steps >= deaf else float(trainer.toy_steps)}


def section(page: Any) -> str:
    from verl_ext.report import sections

    return sections.section("toy", "The toy", f"<p>{len(page.run.records)} greetings</p>")


app = typer.Typer()


@app.command()
def greet() -> None:
    """Say hello."""
    typer.echo("hello from the toy")


def problem() -> str:
    return "needs a child"


FEATURE = Feature(
    name="toy",
    summary="greets",
    state="works in the tests",
    tested="end to end on CPU",
    on=lambda run: run.options.toy.greeting == "hello",
    detail=lambda run: run.options.toy.greeting,
    rules=(forbidden,),
    lower=lambda run, view: {"data.seed": 77, "trainer.experiment_name": "lowered"},
    touches=(Counted, Greeting, Trainer, Engine),
    facts=(
        Fact(
            "toy greeting",
            f"{__name__}:greeting_and_engine",
            "greet everywhere",
            right=lambda run: [run.options.toy.greeting, "ToyEngine"],
            roles=frozenset({"actor"}),
        ),
    ),
    measure=f"{__name__}:measure",
    metrics=(Metric("nereus/toy/steps", "steps", "steps that the toy has seen", healthy=(1, 1e9)),),
    sections=(f"{__name__}:section",),
    commands={"toy": f"{__name__}:app"},
    section=("toy", ToyOptions),
    doctor=f"{__name__}:problem",
)

SECOND = Feature(
    name="second toy",
    summary="wants the same class",
    state="works in the tests",
    tested="end to end on CPU",
    on=FEATURE.on,
    touches=(Second,),
)

SELFISH = Feature(
    name="selfish toy",
    summary="cannot be composed",
    state="refused",
    tested="end to end on CPU",
    on=lambda run: run.options.toy.selfish,
    touches=(Selfish,),
)
