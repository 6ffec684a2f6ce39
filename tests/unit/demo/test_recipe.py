from __future__ import annotations

from pathlib import Path

import pytest

from verl_ext.demo.assets import DemoAssets
from verl_ext.demo.recipe import PROMPT_TOKENS, RESPONSE_TOKENS, demo_overrides
from verl_ext.demo.task import ReverseTask
from verl_ext.errors import NereusError


def assets(root: str = "/somewhere/it's, {here}") -> DemoAssets:
    path = Path(root)
    return DemoAssets(
        root=path,
        model=path / "model",
        train=path / "train.parquet",
        test=path / "test.parquet",
        reward=path / "reward.py",
        baselines={},
        cached=True,
    )


def test_each_key_once_and_paths_survive_hydra() -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    parsed = parser.parse_overrides(demo_overrides(assets(), steps=7, prompts=4, samples=6, lr=1e-5))
    values = {override.key_or_group: override.value() for override in parsed}
    assert len(values) == len(parsed)
    assert str(values["data.train_files"]) == "/somewhere/it's, {here}/train.parquet"
    assert values["trainer.total_training_steps"] == 7
    assert values["actor_rollout_ref.actor.optim.lr"] == 1e-5
    assert values["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == 24
    # An epoch may be one batch only; the run must not end before its steps.
    assert values["trainer.total_epochs"] >= 7


def test_the_longest_prompt_and_answer_fit() -> None:
    task = ReverseTask()
    assert 3 + task.max_letters <= PROMPT_TOKENS
    assert task.max_letters + 1 < RESPONSE_TOKENS


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"prompts": 0}, {"samples": 1}])
def test_what_cannot_be_trained_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(NereusError, match="cannot be trained"):
        demo_overrides(assets(), **wrong)


def test_keys_exist_in_verl() -> None:
    """Overrides without `+` must name keys of verl's own config."""
    pytest.importorskip("verl")
    hydra = pytest.importorskip("hydra")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=demo_overrides(assets("/x")))
    assert config.actor_rollout_ref.actor.rollout_n == config.actor_rollout_ref.rollout.n == 8
    assert config.actor_rollout_ref.rollout.response_length == RESPONSE_TOKENS
