"""A run that preflight has nothing against, in verl's real config, and what it says when one thing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations.features import FEATURES
from verl_ext.preflight import RULES, View, megatron

ALL_RULES = (*RULES, *(rule for feature in FEATURES for rule in feature.rules))

EXPERTS = {"model_type": "qwen3_moe", "num_experts": 8}


@dataclass
class Run:
    """Makes configs of a run with a model, data and a rollout engine."""

    compose: Callable[..., DictConfig]
    folder: Path
    given: list[str] = field(default_factory=list)

    def config(self, *overrides: str, engine: str = "dp") -> DictConfig:
        return self.compose(*self.given, *overrides, engine=engine)

    def findings(self, *overrides: str, engine: str = "dp") -> dict[str, list[NereusError]]:
        """What each rule has found, of the rules that have found something."""
        config = self.config(*overrides, engine=engine)
        options = NereusOptions.from_mapping(OmegaConf.to_container(config.nereus))
        found = {rule.__name__: list(rule(View(config), options)) for rule in ALL_RULES}
        return {name: errors for name, errors in found.items() if errors}

    def model(self, name: str, config: object) -> str:
        """The override for a model with this config.json."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return f"actor_rollout_ref.model.path={folder}"


@pytest.fixture
def run(compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(megatron, "installed", lambda _module: True)  # which the default environment does not have
    made = Run(compose, tmp_path)
    data = tmp_path / "data.parquet"
    data.write_bytes(b"PAR1x\x01\x00\x00\x00PAR1")
    made.given = [
        "actor_rollout_ref.rollout.name=vllm",
        f"data.train_files={data}",
        f"data.val_files={data}",
        made.model("experts", EXPERTS),
    ]
    return made
