"""Ask every process of a run what is active in it, and refuse to train when one is missing or differs.

Asking is by handle, not by waiting for reports: a process without nereus cannot answer and is named.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import ray

from verl_ext.errors import NereusError
from verl_ext.integrations.verl.process import DRIVER_VARIABLE, report

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 40.0


def _answer(_actor: Any, process: str, role: str) -> dict[str, Any]:
    return report(process, role)


def _handles(trainer: Any) -> list[tuple[str, str, Any]]:
    """(process name, role, actor handle) of every Ray actor that works for this trainer, but the rollout servers."""
    found: list[tuple[str, str, Any]] = []

    def add(label: str, role: str, handles: Any) -> None:
        known = [handle for _, _, handle in found]
        new = [handle for handle in handles or () if handle not in known]
        found.extend((f"{label} {rank}", role, handle) for rank, handle in enumerate(new))

    # An actor that shares its GPUs with the rollout sends the weights itself.
    colocated = getattr(trainer, "_enable_hybrid_replicas", True)
    add("actor", "actor" if colocated else "remote_actor", trainer.actor_rollout_wg.workers)
    for attribute, role in (("ref_policy_wg", "ref"), ("critic_wg", "critic")):
        group = getattr(trainer, attribute, None)
        add(role, role, group.workers if group is not None else ())
    for replica in _replicas(trainer):
        add(f"rollout {replica.replica_rank} weight receiver", "receiver", replica.workers)
    reward = getattr(trainer, "reward_loop_manager", None)
    add("reward", "reward", getattr(reward, "reward_loop_worker_handles", None))
    loop = getattr(trainer, "agent_loop_manager", None)
    add("agent loop", "agent_loop", getattr(loop, "agent_loop_workers", None))
    return found


def _replicas(trainer: Any) -> list[Any]:
    """Rollout replicas on the trainer's GPUs and, with a separate rollout, on their own."""
    return [replica for manager in trainer._rollout_server_managers() for replica in manager.get_replicas()]


def take(trainer: Any) -> list[dict[str, Any]]:
    """Reports of the driver, the trainer, its Ray actors and the rollout engines' processes.

    Raises:
        NereusError: one does not answer in time, is not active, or differs from the driver.
    """
    reports = [json.loads(os.environ[DRIVER_VARIABLE]), report("trainer", "trainer")]
    questions: dict[Any, str] = {}
    for process, role, handle in _handles(trainer):
        questions[handle.__ray_call__.remote(_answer, process, role)] = process
    for replica in _replicas(trainer):
        for index, server in enumerate(replica.servers):
            name = f"rollout {replica.replica_rank}" + (f".{index}" if index else "")
            if hasattr(server, "nereus_reports"):
                questions[server.nereus_reports.remote(name)] = name
            else:
                questions[server.__ray_call__.remote(_answer, name, "server")] = name
    answered, silent = ray.wait(list(questions), num_returns=len(questions), timeout=ANSWER_WITHIN_S)
    for question in answered:
        try:
            answer = ray.get(question)
        except ray.exceptions.RayError as error:
            raise _missing(questions[question], f"{type(error).__name__}: {error}") from error
        reports += answer if isinstance(answer, list) else [answer]
    if silent:
        raise _missing(questions[silent[0]], f"no answer within {ANSWER_WITHIN_S:g} s")
    compare(reports)
    return reports


def compare(reports: list[dict[str, Any]]) -> None:
    """Raise NereusError at the first report that is inactive, incomplete or unlike the driver's (the first one)."""
    reference = reports[0]
    for item in reports:
        if not item["active"]:
            raise _missing(item["process"], item.get("error") or _why_inactive(item))
        for key, change in (
            ("version", "install the same version of verl-nereus on every node"),
            ("options", "let the options travel in the config; do not set NEREUS_ACTIVATION by hand"),
            ("manifest", "install the same version of verl-nereus and of its upstream packages on every node"),
            ("versions", "install the same upstream versions on every node"),
        ):
            if item[key] != reference[key]:
                raise NereusError(
                    f"nereus is not the same in {item['process']} as in {reference['process']}",
                    where=f"{item['process']} on {item['host']}, process {item['pid']}: {key}",
                    expected=str(reference[key]),
                    got=str(item[key]),
                    change=change,
                )
        if item["missing"]:
            raise NereusError(
                f"{item['process']} runs without a patch it needs",
                where=f"{item['process']} on {item['host']}, process {item['pid']}",
                expected="applied: " + ", ".join(item["missing"]),
                got="armed, but its module was never imported",
                change="report this: the patched code path is not the one that runs here",
            )


def _why_inactive(item: dict[str, Any]) -> str:
    if item.get("plugins_filter"):
        return f"VLLM_PLUGINS={item['plugins_filter']} leaves nereus out"
    return "the process started without the options of this run"


def _missing(process: str, got: str) -> NereusError:
    return NereusError(
        f"nereus is not active in {process}",
        where=process,
        expected="every process of the run takes part",
        got=got,
        change="install verl-nereus in the environment of every node and leave VLLM_PLUGINS unset or list nereus in it",
    )
