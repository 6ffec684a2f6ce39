"""How a process becomes part of a run, and everything of nereus in it active.

The driver joins in its Hydra callback, every Ray process of the job by `ray_setup_hook`, vLLM's processes by the entry
point `vllm.general_plugins`. The hook is named by path: on a node without nereus Ray cannot import it and the job ends
there, with that message.
"""

from __future__ import annotations

import logging
import os
import socket

from verl_ext.compat.extension import instances
from verl_ext.compat.touch import MANIFEST, Touch
from verl_ext.errors import NereusError
from verl_ext.feature import active
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.run import VARIABLE, Run, enter
from verl_ext.integrations.run import active as active_run

RAY_SETUP_HOOK = "verl_ext.integrations.verl.join.ray_setup_hook"


def touches(run: Run) -> list[type[Touch]]:
    """What a run touches, in the order of the features."""
    return [touch for feature in active(FEATURES, run) for touch in feature.touches if touch.wanted(run)]


def join(run: Run) -> None:
    """Make this process part of a run: arm everything. Doing it again with the same run does nothing.

    Raises:
        NereusError: the process is part of another run already.
    """
    present = active_run()
    if present is not None:
        if present != run:
            raise NereusError(
                "this process is part of another run already",
                where=f"process {os.getpid()}",
                expected=f"options {present.options.digest()}",
                got=f"options {run.options.digest()}",
                change="start the second run in a process of its own",
            )
        return
    enter(run)
    _show_log()
    MANIFEST.arm(instances(touches(run)))


def join_from_environment() -> None:
    """Join when this process was started inside a run; else do nothing."""
    text = os.environ.get(VARIABLE)
    if text:
        join(Run.from_json(text))


def ray_setup_hook() -> None:
    """Ray calls this first in every worker process of the job (`runtime_env.worker_process_setup_hook`)."""
    join_from_environment()
    if active_run() is None:
        raise NereusError(
            "a Ray worker of a nereus run did not get its options",
            where=f"{socket.gethostname()}, process {os.getpid()}",
            expected=f"{VARIABLE} in the job's runtime environment",
            got="nothing",
            change="do not drop ray_kwargs.ray_init.runtime_env.env_vars",
        )


def _show_log() -> None:
    """Let this package's messages reach the job's log, whatever the process's own logging leaves out."""
    package = logging.getLogger("verl_ext")
    if not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s nereus: %(message)s"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        package.propagate = False
