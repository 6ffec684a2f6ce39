"""What `+plugins=nereus` does on verl's own command line.

It composes the Hydra group `plugins/nereus`: the typed options under `nereus`, and a Hydra callback that runs in the
driver before verl's main function. The callback checks the config, refuses what verl would silently ignore, lowers the
options to where the workers can see them, and makes this process part of the run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_ext.compat import versions
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.verl.process import (
    COMMAND_VARIABLE,
    DRIVER_VARIABLE,
    RAY_SETUP_HOOK,
    VARIABLE,
    Activation,
    activate,
    report,
)
from verl_ext.launch.environment import CPU_ENVIRONMENT
from verl_ext.preflight import View, check, strategies

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
            check_entry_point(getattr(sys.modules["__main__"], "__file__", None))
            activation = prepare(config)
            activate(activation)
            lower(config, activation, sys.orig_argv)
        except NereusError as error:
            raise SystemExit(f"nereus refused to start\n{error}") from error
        except Exception as error:
            traceback.print_exc()
            unexpected = NereusError(
                "nereus could not read this config",
                where=f"Hydra's callback in process {os.getpid()}",
                expected="the config of verl.trainer.main_ppo in verl 0.9.1",
                got=f"{type(error).__name__}: {error}",
                change="see the traceback above; report it, or run without +plugins=nereus",
            )
            raise SystemExit(f"nereus refused to start\n{unexpected}") from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra calls on_run_start for single runs only: the jobs of a sweep would train without nereus.
        error = NereusError(
            "a sweep of Hydra would train without nereus",
            where="--multirun (or hydra.mode=MULTIRUN)",
            expected="one training run for each command",
            got="a sweep",
            change="leave --multirun out and call the command once for each value, or run without +plugins=nereus",
        )
        raise SystemExit(f"nereus refused to start\n{error}")


def check_entry_point(main: str | None) -> None:
    """Raise NereusError in a program of verl's that has no roll call.

    Args:
        main: the file of the program that runs; None when it has none. Programs outside verl are let through: they may
            call verl's `run_ppo` themselves.
    """
    spec = importlib.util.find_spec("verl")
    if main is None or spec is None or spec.origin is None:
        return
    package, program = Path(spec.origin).resolve().parent, Path(main).resolve()
    if package in program.parents and program != package / "trainer" / "main_ppo.py":
        raise NereusError(
            "nereus extends the trainers of verl.trainer.main_ppo; this program would run without it",
            where=str(program.relative_to(package.parent)),
            expected="python -m verl.trainer.main_ppo",
            got=str(program.relative_to(package.parent)),
            change="use verl.trainer.main_ppo, or run without +plugins=nereus",
        )


def prepare(config: DictConfig) -> Activation:
    """Check the composed config and make the activation of the run from it.

    Args:
        config: verl's whole config with `nereus` in it; not changed.

    Raises:
        NereusError: an option, a combination or a version that cannot be right.
    """
    if not OmegaConf.is_dict(config.get("nereus")) or OmegaConf.select(config, "actor_rollout_ref.rollout") is None:
        raise NereusError(
            "the options of nereus or the rollout of verl are not in this config",
            where="nereus, actor_rollout_ref.rollout",
            expected="the config of verl.trainer.main_ppo with +plugins=nereus",
            got=f"nereus={config.get('nereus')}, and at the top: {', '.join(str(key) for key in config)}",
            change="do not set nereus or actor_rollout_ref as a whole",
        )
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
    return Activation(options, platform, str(config.actor_rollout_ref.rollout.name), strategies(View(config)))


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
        variables[VARIABLE] = _without_interpolation(activation.to_json())
        variables[COMMAND_VARIABLE] = _without_interpolation(json.dumps(command))
        variables[DRIVER_VARIABLE] = _without_interpolation(json.dumps(report("driver", "driver")))
        if activation.platform == "cpu":
            for name, value in CPU_ENVIRONMENT.items():
                variables.setdefault(name, os.environ.get(name, value))
            # A cluster that runs already has its own resources, and Ray refuses to be given more.
            if init.get("num_gpus") is None and init.get("address") is None and not os.environ.get("RAY_ADDRESS"):
                init.num_gpus = config.trainer.n_gpus_per_node
            if activation.options.cpu.python:
                runtime_env.py_executable = activation.options.cpu.python


def _without_interpolation(text: str) -> str:
    """The same JSON without a `${`, which verl's config would try to resolve, as in a command line that has one."""
    return text.replace("$", "\\u0024")
