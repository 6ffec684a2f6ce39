"""How a process becomes part of a run.

The driver makes an `Activation` from the composed config and puts it into Ray's runtime environment, where every Ray
process of the job finds it before any other code runs (`ray_setup_hook`); processes that vLLM starts inherit it. The
hook is named by path: on a node without nereus Ray cannot import it and the job ends there, with that message.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import multiprocessing
import os
import socket
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from verl_ext import __version__
from verl_ext.compat.patch import APPLIED, MANIFEST
from verl_ext.compat.versions import installed
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.vllm.patches import BoundedWeightSyncWait

VARIABLE = "NEREUS_ACTIVATION"
COMMAND_VARIABLE = "NEREUS_COMMAND"
DRIVER_VARIABLE = "NEREUS_DRIVER"
RAY_SETUP_HOOK = "verl_ext.integrations.verl.process.ray_setup_hook"

# The names of features, as the report shows them.
ROLL_CALL, BOUNDED_SYNC, CPU_PLATFORM, PREFORK = "roll call", "bounded weight sync", "cpu platform", "prefork start"


@dataclass(frozen=True)
class Activation:
    """What a process has to know to take part.

    Attributes:
        options: all options, resolved.
        platform: verl's `trainer.device`, e.g. `cuda` or `cpu`.
        rollout: verl's `rollout.name`, e.g. `vllm`.
        strategies: training role -> verl's strategy for it, e.g. `actor` -> `megatron`.
        versions: what the driver has installed, to name the odd one out.
        run: eight hex digits that no other run on this machine has.
    """

    options: NereusOptions
    platform: str
    rollout: str
    strategies: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=installed)
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Activation:
        values = json.loads(text)
        return cls(**{**values, "options": NereusOptions.from_mapping(values["options"])})


_active: Activation | None = None


def active() -> Activation | None:
    """The activation of this process, or None when nereus is off here."""
    return _active


def activate(activation: Activation) -> None:
    """Arm the patches and open the registries in this process. Doing it again with the same options does nothing.

    Raises:
        NereusError: the process is part of a run with other options already.
    """
    global _active
    if _active is not None:
        if _active != activation:
            raise NereusError(
                "this process is part of another run already",
                where=f"process {os.getpid()}",
                expected=f"options {_active.options.digest()}",
                got=f"options {activation.options.digest()}",
                change="start the second run in a process of its own",
            )
        return
    from verl_ext.integrations import doors, patches

    _active = activation
    _show_log()
    if activation.options.cpu.python:
        multiprocessing.set_executable(activation.options.cpu.python)
    doors.open_all(activation.platform)
    MANIFEST.arm(patches.wanted(activation.platform, activation.rollout, activation.strategies.values()))


def _show_log() -> None:
    """Let this package's messages reach the job's log, whatever the process's own logging leaves out."""
    package = logging.getLogger("verl_ext")
    if not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s nereus: %(message)s"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        package.propagate = False


def activate_from_environment() -> None:
    """Activate when this process was started inside a run; else do nothing."""
    text = os.environ.get(VARIABLE)
    if text:
        activate(Activation.from_json(text))


def ray_setup_hook() -> None:
    """Ray calls this first in every worker process of the job (`runtime_env.worker_process_setup_hook`)."""
    activate_from_environment()
    if _active is None:
        raise NereusError(
            "a Ray worker of a nereus run did not get its options",
            where=f"{socket.gethostname()}, process {os.getpid()}",
            expected=f"{VARIABLE} in the job's runtime environment",
            got="nothing",
            change="do not drop ray_kwargs.ray_init.runtime_env.env_vars",
        )


def _features(activation: Activation) -> list[str]:
    found = [ROLL_CALL]
    if MANIFEST.states().get(BoundedWeightSyncWait.name) == APPLIED:
        found.append(BOUNDED_SYNC)
    if activation.platform == "cpu":
        found.append(CPU_PLATFORM)
    if activation.options.cpu.python:
        found.append(PREFORK)
    return found


def report(process: str, role: str) -> dict[str, Any]:
    """What this process says of itself at the roll call. Plain values, so that any process can read it.

    Args:
        process: its name in the table, e.g. `actor 0`.
        role: which patches have to be applied in it, see `Patch.roles`.
    """
    activation = _active
    strategy = activation.strategies.get(role.removeprefix("remote_"), "") if activation else ""
    return {
        "process": process,
        "role": role,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "version": __version__,
        "active": activation is not None,
        "options": activation.options.digest() if activation else "",
        "manifest": MANIFEST.digest(),
        "versions": installed(),
        "patches": sorted(name for name, state in MANIFEST.states().items() if state == "applied"),
        "missing": MANIFEST.missing(role, strategy),
        "features": _features(activation) if activation else [],
        "plugins_filter": os.environ.get("VLLM_PLUGINS", ""),
        "entry_point": any(point.name == "nereus" for point in importlib.metadata.entry_points(group="verl.plugins")),
    }
