"""What verl needs to hear to run on a CPU, and how a user's own model and data are put in the demo's place.

The training itself is in `recipe.py`; what any run with `trainer.device=cpu` needs is the preset of that platform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_ext.demo.recipe import PROMPT_TOKENS, RESPONSE_TOKENS, quoted

# A user's model is no toy: a step that a real model survives.
OWN_LR = 1e-6
OWN_PROMPTS = 4
OWN_SAMPLES = 4
# What the prefork server of a run imports, by name: only a run's own processes know verl.
PRELOAD = ("verl_ext.integrations.cpu.preload",)
ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Lengths:
    """Longest prompt and longest response, in tokens."""

    prompt: int
    response: int

    @property
    def total(self) -> int:
        return self.prompt + self.response


# The tiny model has 256 positions and a token a letter; a user's tokenizer may need a hundred tokens for its template.
DEMO_LENGTHS = Lengths(PROMPT_TOKENS, RESPONSE_TOKENS)
OWN_MODEL_LENGTHS = Lengths(128, 32)
OWN_DATA_LENGTHS = Lengths(160, 64)
OWN_BOTH_LENGTHS = Lengths(512, 128)


def lengths(model: Path | None, data: Path | None) -> Lengths:
    """What the demo leaves room for, by what of it is the user's own."""
    if model is not None and data is not None:
        return OWN_BOTH_LENGTHS
    if model is not None:
        return OWN_MODEL_LENGTHS
    return DEMO_LENGTHS if data is None else OWN_DATA_LENGTHS


def fsdp_overrides(dtype: str) -> list[str]:
    """Train with FSDP2."""
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    return [
        f"{ACTOR}.fsdp_config.model_dtype={short}",
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype={short}",
    ]


def megatron_overrides(dtype: str) -> list[str]:
    """Train with Megatron-Core through Megatron-Bridge."""
    return ["model_engine=megatron", f"{ACTOR}.megatron.dtype={dtype}"]


ENGINES = {"fsdp2": fsdp_overrides, "megatron": megatron_overrides}


def cpu_overrides(
    *, workers: int = 1, engine: str = "fsdp2", dtype: str = "float32", max_model_len: int, temp_dir: Path
) -> list[str]:
    """Overrides for `verl.trainer.main_ppo` besides the preset of the cpu platform.

    Args:
        workers: training ranks, and as many vLLM replicas.
        engine: one of ENGINES.
        dtype: of trainer and rollout, `float32` or `bfloat16`.
        max_model_len: longest prompt and response together, in tokens.
        temp_dir: for Ray's sockets and logs; its path has to be short.
    """
    rollout = "actor_rollout_ref.rollout"
    return [
        *ENGINES[engine](dtype),
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={workers}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"{rollout}.name=vllm",
        f"{rollout}.dtype={dtype}",
        f"{rollout}.max_model_len={max_model_len}",
        f"{rollout}.max_num_batched_tokens={max(1024, max_model_len)}",
        f"+ray_kwargs.ray_init._temp_dir={quoted(temp_dir)}",
    ]


def bucket_override(model: Path) -> str:
    """The bucket of the weight sync: above the largest single tensor, which shared memory cannot split."""
    total = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    megabytes = min(max(16, (total >> 20) + 1), 2048)
    return f"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes={megabytes}"


def own_overrides(model: Path | None, data: Path | None, reward: Path | None) -> list[str]:
    """Put a user's model, data or reward in the place of the demo's. Later overrides win."""
    overrides: list[str] = []
    if model is not None or data is not None:
        room = lengths(model, data)
        overrides += [
            f"data.max_prompt_length={room.prompt}",
            f"data.max_response_length={room.response}",
            "data.filter_overlong_prompts=True",
        ]
    if model is not None:
        overrides += [f"actor_rollout_ref.model.path={quoted(model)}", f"actor_rollout_ref.actor.optim.lr={OWN_LR:g}"]
    if data is not None:
        overrides += [
            f"data.train_files={quoted(data)}",
            f"data.val_files={quoted(data)}",
            f"data.train_batch_size={OWN_PROMPTS}",
            f"actor_rollout_ref.rollout.n={OWN_SAMPLES}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={OWN_PROMPTS}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        ]
        if reward is None:
            # verl's own rewards, chosen by the data's `data_source`.
            overrides.append("reward.custom_reward_function.path=null")
    if reward is not None:
        overrides.append(f"reward.custom_reward_function.path={quoted(reward)}")
    return overrides


def command(python: str, overrides: Sequence[str]) -> list[str]:
    """The command line of the run: what a user would type, nothing more."""
    return [python, "-m", "verl.trainer.main_ppo", *overrides, "+plugins=nereus"]
