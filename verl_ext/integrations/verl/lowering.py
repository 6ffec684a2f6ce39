"""Setting in verl's config what the active features need, and nothing that the user has said something about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_ext.errors import NereusError
from verl_ext.feature import Feature
from verl_ext.integrations.run import Run
from verl_ext.options import flatten
from verl_ext.report.model import Lowered
from verl_ext.view import View


def lower_features(config: DictConfig, run: Run, features: Sequence[Feature]) -> list[Lowered]:
    """Set the keys of all features; what the user has given stays.

    Args:
        config: verl's composed config; changed in place.
        features: those that are on.

    Returns:
        Every key with its value in the config, in order.

    Raises:
        NereusError: two features set one key to different values.
    """
    given = given_keys(config)
    found: dict[str, tuple[str, Any]] = {}
    view = View(config)
    for feature in features:
        for key, value in feature.lower(run, view).items():
            known = found.get(key)
            if known is not None and known[1] != value:
                raise NereusError(
                    f"{known[0]} and {feature.name} set one key to different values",
                    where=key,
                    expected=f"one value, or one of your own: {key}=VALUE",
                    got=f"{known[1]} and {value}",
                    change=f"give {key} on the command line, or switch one of the two off",
                )
            found[key] = (feature.name, value)
    lowered = []
    with open_dict(config):
        for key, (name, value) in found.items():
            kept = is_given(key, given)
            if not kept:
                OmegaConf.update(config, key, value, force_add=True)
            lowered.append(Lowered(feature=name, key=key, value=_value(config, key), kept=kept))
    return lowered


def _value(config: DictConfig, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def is_given(key: str, given: set[str]) -> bool:
    """Whether the user has said something about a key, about a part of it, or about what it is a part of."""
    return any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in given)


def given_keys(config: DictConfig) -> set[str]:
    """Dotted keys from the command line, and from the primary config file where that is the user's own."""
    overrides = OmegaConf.select(config, "hydra.overrides.task") or []
    found = {str(item).split("=")[0].lstrip("+~").split("@")[0] for item in overrides}
    return found | _in_own_file(config)


def _in_own_file(config: DictConfig) -> set[str]:
    name = OmegaConf.select(config, "hydra.job.config_name")
    for source in OmegaConf.select(config, "hydra.runtime.config_sources") or []:
        if source.get("provider") != "main" or source.get("schema") != "file" or not name:
            continue
        file = Path(source["path"]) / f"{str(name).removesuffix('.yaml')}.yaml"
        # verl's own files name every key with its default.
        if file.is_file() and file.parent.parts[-3:] != ("verl", "trainer", "config"):
            loaded = OmegaConf.to_container(OmegaConf.load(file))
            return (
                set(flatten({str(key): value for key, value in loaded.items()})) if isinstance(loaded, dict) else set()
            )
    return set()
