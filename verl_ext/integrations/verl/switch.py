"""What `+plugins=nereus` does on verl's own command line.

It composes the Hydra group `plugins/nereus`: the typed options under `nereus`, and a Hydra callback that runs in the
driver before verl's main function. The callback checks the config, refuses what verl would silently ignore, lowers the
options to where the workers can see them, and makes this process part of the run.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_ext.compat import versions
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.cpu.environment import CPU_ENVIRONMENT
from verl_ext.integrations.verl.process import (
    COMMAND_VARIABLE,
    DRIVER_VARIABLE,
    RAY_SETUP_HOOK,
    VARIABLE,
    Activation,
    activate,
    report,
)
from verl_ext.preflight import check

CPU_POLL_INTERVAL_S = 0.05


def register() -> None:
    """Make the group known to Hydra. Without `+plugins=nereus` nothing reads it."""
    node = {
        "nereus": NereusOptions,
        "actor_rollout_ref": {"nereus": "${nereus}"},
        "hydra": {"callbacks": {"nereus": {"_target_": f"{__name__}.Switch"}}},
    }
    ConfigStore.instance().store(group="plugins", name="nereus", package="_global_", node=node)


class Switch(Callback):
    """Hydra turns an Exception of a callback into a warning, so a refusal leaves as SystemExit."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            activation = prepare(config)
            activate(activation)
            lower(config, activation, sys.orig_argv)
        except NereusError as error:
            raise SystemExit(f"nereus refused to start\n{error}") from error


def prepare(config: DictConfig) -> Activation:
    """Check the composed config and make the activation of the run from it.

    Args:
        config: verl's whole config with `nereus` in it; not changed.

    Raises:
        NereusError: an option, a combination or a version that cannot be right.
    """
    # verl's config holds interpolations that only resolve later; only our own part has to resolve here.
    values = OmegaConf.to_container(config.nereus, resolve=True)
    assert isinstance(values, dict)
    options = NereusOptions.from_mapping({str(key): value for key, value in values.items()})
    if not options.compat.allow_untested_versions:
        versions.check(str(config.actor_rollout_ref.rollout.name))
    check(config, options)
    options.report.dir = os.path.abspath(options.report.dir or config.hydra.run.dir)
    platform = str(config.trainer.device)
    if platform == "cpu" and options.trainer.poll_interval_s is None:
        options.trainer.poll_interval_s = CPU_POLL_INTERVAL_S
    return Activation(options, platform, str(config.actor_rollout_ref.rollout.name))


def lower(config: DictConfig, activation: Activation, command: list[str]) -> None:
    """Write the activation into the parts of verl's config that reach the other processes.

    Args:
        config: verl's whole config; changed in place.
        activation: of this run, active in this process, which is the driver.
        command: the command line, for the report.
    """
    with open_dict(config):
        OmegaConf.update(config, "nereus", json.loads(activation.options.to_json()), force_add=True)
        config.actor_rollout_ref.nereus = config.nereus
        # DictConfig.setdefault returns what it was given, not the node it made.
        for node in ("ray_kwargs.ray_init.runtime_env", "ray_kwargs.ray_init.runtime_env.env_vars"):
            if OmegaConf.select(config, node) is None:
                OmegaConf.update(config, node, {}, force_add=True)
        init = config.ray_kwargs.ray_init
        runtime_env = init.runtime_env
        variables = runtime_env.env_vars
        if runtime_env.get("worker_process_setup_hook", RAY_SETUP_HOOK) != RAY_SETUP_HOOK:
            raise NereusError(
                "ray_kwargs.ray_init.runtime_env.worker_process_setup_hook is taken",
                where="ray_kwargs.ray_init.runtime_env.worker_process_setup_hook",
                expected="unset: nereus starts with it in every Ray process",
                got=str(runtime_env.worker_process_setup_hook),
                change="call your own hook from a module that your workers import",
            )
        runtime_env.worker_process_setup_hook = RAY_SETUP_HOOK
        variables[VARIABLE] = activation.to_json()
        variables[COMMAND_VARIABLE] = json.dumps(command)
        variables[DRIVER_VARIABLE] = json.dumps(report("driver", "driver"))
        if activation.platform == "cpu":
            for name, value in CPU_ENVIRONMENT.items():
                variables.setdefault(name, os.environ.get(name, value))
            # A cluster that runs already has its own resources.
            if init.get("num_gpus") is None and init.get("address") is None:
                init.num_gpus = config.trainer.n_gpus_per_node
            if activation.options.cpu.python:
                runtime_env.py_executable = activation.options.cpu.python
