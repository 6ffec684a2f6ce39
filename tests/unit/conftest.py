"""verl's own config as Hydra composes it, for every test that has something to say about its keys."""

from __future__ import annotations

import functools
import gc
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig, open_dict

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

Compose = Callable[..., DictConfig]


@pytest.fixture(scope="session")
def compose() -> Compose:
    """Compose verl's `ppo_trainer` with overrides, as its command line does.

    compose("nereus.routing.mode=R3", engine="megatron"), without `+plugins=nereus` when `switch` is false. The groups
    are composed once; the overrides are Hydra's own code on a copy, a tenth of the time.
    """
    import verl

    gc.freeze()  # else every pass of the collector visits all of torch
    folder = str(Path(verl.__file__).parent / "trainer" / "config")

    @functools.cache
    def base(engine: str, switch: bool) -> bytes:
        groups = [f"model_engine={engine}", *(["+plugins=nereus"] if switch else [])]
        with initialize_config_dir(folder, version_base=None):
            return pickle.dumps(hydra_compose("ppo_trainer", groups, return_hydra_config=True))

    def compose(*overrides: str, engine: str = "dp", switch: bool = True) -> DictConfig:
        config: DictConfig = pickle.loads(base(engine, switch))
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
        with open_dict(config):
            config.hydra.overrides.task = list(overrides)
        return config

    return compose
