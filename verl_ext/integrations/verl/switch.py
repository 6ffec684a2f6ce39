"""What `+plugins=nereus` does on verl's own command line.

It composes the Hydra group `plugins/nereus`: the typed options under `nereus`, and a Hydra callback that runs in the
driver before verl's main function. The callback checks the config, refuses what verl would silently ignore, lowers the
options to where the workers can see them, and makes this process part of the run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_ext import ending
from verl_ext.compat import versions
from verl_ext.compat.extension import clashes
from verl_ext.config import NereusOptions, root
from verl_ext.errors import NereusError
from verl_ext.feature import active
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.run import VARIABLE, Run
from verl_ext.integrations.verl.answers import own_answer
from verl_ext.integrations.verl.join import RAY_SETUP_HOOK, join, touches
from verl_ext.integrations.verl.lowering import lower_features
from verl_ext.integrations.verl.record import COMMAND_VARIABLE, LOWERED_VARIABLE
from verl_ext.integrations.verl.roll_call import DRIVER_VARIABLE
from verl_ext.preflight import check, strategies
from verl_ext.report.model import Lowered
from verl_ext.view import View


def register() -> None:
    """Make the group known to Hydra. Without `+plugins=nereus` nothing reads it."""
    node = {"nereus": root(), "hydra": {"callbacks": {"nereus": {"_target_": f"{__name__}.Switch"}}}}
    ConfigStore.instance().store(group="plugins", name="nereus", package="_global_", node=node)


class Switch(Callback):
    """Hydra turns an Exception of a callback into a warning, so a refusal leaves as SystemExit."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder: str | None = None
        try:
            folder = report_folder(config)
            ending.forget(folder)
            check_entry_point(getattr(sys.modules["__main__"], "__file__", None))
            run, lowered = prepare(config)
            join(run)
            hand_over(config, run, lowered, sys.orig_argv)
        except NereusError as error:
            _refuse(error, folder)
        except Exception as error:
            traceback.print_exc()
            unexpected = NereusError(
                "nereus could not read this config",
                where=f"Hydra's callback in process {os.getpid()}",
                expected="the config of verl.trainer.main_ppo in verl 0.9.1",
                got=f"{type(error).__name__}: {error}",
                change="see the traceback above; report it, or run without +plugins=nereus",
            )
            _refuse(unexpected, folder)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra calls on_run_start for single runs only: the jobs of a sweep would train without nereus.
        error = NereusError(
            "a sweep of Hydra would train without nereus",
            where="--multirun (or hydra.mode=MULTIRUN)",
            expected="one training run for each command",
            got="a sweep",
            change="leave --multirun out and call the command once for each value, or run without +plugins=nereus",
        )
        _refuse(error, None)


def _refuse(error: NereusError, folder: str | None) -> NoReturn:
    """End the command with the message, and leave it in the run's folder where that is known."""
    if folder is not None:
        ending.write(folder, ending.of(error, ending.CONFIG))
    raise SystemExit(f"nereus refused to start\n{error}") from error


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


def report_folder(config: DictConfig) -> str:
    """Where the run is recorded: `nereus.report.dir`, else Hydra's folder of the run."""
    asked = OmegaConf.select(config, "nereus.report.dir") if OmegaConf.is_dict(config.get("nereus")) else ""
    return os.path.abspath(str(asked or config.hydra.run.dir))


def prepare(config: DictConfig) -> tuple[Run, list[Lowered]]:
    """Check the composed config, set what the active features need in it, and make the run from it.

    Args:
        config: verl's whole config with `nereus` in it; keys that features lower are set in place.

    Returns:
        The run, and what was set.

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
    run = _run(config)
    if not run.options.compat.allow_untested_versions:
        versions.check(run.rollout)
    lowered = lower_features(config, run, active(FEATURES, run))
    # Among what was set may be options of nereus, and the engine.
    run = dataclasses.replace(_run(config), id=run.id)
    for clash in clashes(touches(run)):
        raise clash
    check(View(config), run.options, [rule for feature in FEATURES for rule in feature.rules])
    run.options.report.dir = report_folder(config)
    return run, lowered


def _run(config: DictConfig) -> Run:
    # verl's config holds interpolations that only resolve later; only our own part has to resolve here.
    values = OmegaConf.to_container(config.nereus, resolve=True)
    assert isinstance(values, dict)
    return Run(
        options=NereusOptions.from_mapping({str(key): value for key, value in values.items()}),
        platform=str(config.trainer.device),
        rollout=str(config.actor_rollout_ref.rollout.name),
        engines=strategies(View(config)),
        mode=str(OmegaConf.select(config, "trainer.v1.trainer_mode")),
    )


def hand_over(config: DictConfig, run: Run, lowered: list[Lowered], command: list[str]) -> None:
    """Write the run into the part of verl's config that reaches the other processes: Ray's runtime environment.

    Args:
        config: verl's whole config; changed in place.
        run: this run, which this process, the driver, has joined.
        lowered: what features have set, for the report.
        command: the command line, for the report.
    """
    with open_dict(config):
        OmegaConf.update(config, "nereus", json.loads(run.options.to_json()), force_add=True)
        # DictConfig.setdefault returns what it was given, not the node it made.
        for node in ("ray_kwargs.ray_init.runtime_env", "ray_kwargs.ray_init.runtime_env.env_vars"):
            if OmegaConf.select(config, node) is None:
                OmegaConf.update(config, node, {}, force_add=True)
        runtime_env = config.ray_kwargs.ray_init.runtime_env
        if runtime_env.get("worker_process_setup_hook", RAY_SETUP_HOOK) != RAY_SETUP_HOOK:
            raise NereusError(
                "ray_kwargs.ray_init.runtime_env.worker_process_setup_hook is taken",
                where="ray_kwargs.ray_init.runtime_env.worker_process_setup_hook",
                expected="unset: nereus starts with it in every Ray process",
                got=str(runtime_env.worker_process_setup_hook),
                change="call your own hook from a module that your workers import",
            )
        runtime_env.worker_process_setup_hook = RAY_SETUP_HOOK
        for name, text in (
            (VARIABLE, run.to_json()),
            (COMMAND_VARIABLE, json.dumps(command)),
            (LOWERED_VARIABLE, json.dumps(lowered)),
            (DRIVER_VARIABLE, json.dumps(own_answer("driver", "driver"))),
        ):
            runtime_env.env_vars[name] = _without_interpolation(text)


def _without_interpolation(text: str) -> str:
    """The same JSON without a `${`, which verl's config would try to resolve, as in a command line that has one."""
    return text.replace("$", "\\u0024")
