"""Which models a run trains or evaluates, and where their settings are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_ext.preflight.inputs import model_config
from verl_ext.view import ACTOR, MODEL, View

REF, CRITIC = "actor_rollout_ref.ref", "critic"


@dataclass(frozen=True)
class Engine:
    """One of the models that a run trains or only evaluates."""

    path: str
    trains: bool = True

    @property
    def megatron(self) -> str:
        return f"{self.path}.megatron"

    @property
    def model(self) -> str:
        return f"{CRITIC}.model" if self.path == CRITIC else MODEL


def uses_reference(view: View) -> bool:
    return bool(view("algorithm.use_kl_in_reward", False) or view(f"{ACTOR}.use_kl_loss", False))


def reference_in_actor(view: View) -> bool:
    """With an adapter the reference is the actor without it, not a model of its own."""
    rank = int(view(f"{MODEL}.lora.rank", 0)) or int(view(f"{MODEL}.lora_rank", 0))
    return rank > 0 or view(f"{MODEL}.lora_adapter_path") is not None


def engines(view: View) -> tuple[Engine, ...]:
    """Those of this run, the actor first (verl's need_reference_policy and need_critic, trainer/ppo/utils.py:75)."""
    found = [Engine(ACTOR)]
    if uses_reference(view) and not reference_in_actor(view):
        found.append(Engine(REF, trains=False))
    if view("critic.enable", view("algorithm.adv_estimator") == "gae"):
        found.append(Engine(CRITIC))
    return tuple(found)


def megatron_engines(view: View) -> tuple[Engine, ...]:
    return tuple(engine for engine in engines(view) if view(f"{engine.path}.strategy") == "megatron")


def strategies(view: View) -> dict[str, str]:
    """Training role of this run -> verl's strategy for it, e.g. `actor` -> `megatron`."""
    return {engine.path.split(".")[-1]: str(view(f"{engine.path}.strategy")) for engine in engines(view)}


def engine_model(view: View, engine: Engine) -> dict[str, Any] | None:
    """The config.json of what this engine loads, when it can be read here."""
    names = {key: view(f"{engine.model}.{key}") for key in ("path", "hf_config_path")}
    return model_config(View({"actor_rollout_ref": {"model": names}}))


def world_size(view: View) -> int:
    return int(view("trainer.nnodes", 1)) * int(view("trainer.n_gpus_per_node", 8))
