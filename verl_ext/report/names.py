"""The metric names: which of verl's keys mean reward, length, rollout/trainer gap, KL, time; what each is.

The keys are those verl 0.9.1 logs (`trainer/ppo/metric_utils.py`, `utils/debug/metrics.py`,
`trainer/ppo/rollout_corr_helper.py`, `trainer/ppo/v1/trainer_base.py`). Keys under `nereus/` are our own.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from verl_ext.errors import NereusError

NEREUS_PREFIX = "nereus/"
TIMING_PREFIX = "timing_s/"
VALIDATION_PREFIXES = ("val-core/", "val-aux/", "val/")
VALIDATION_CORE_PREFIX = "val-core/"

# verl logs the score before and after the KL penalty; the score is what the reward function said.
REWARD = ("critic/score/mean", "critic/rewards/mean")
RESPONSE_LENGTH = "response_length/mean"
CLIP_RATIO = "response_length/clip_ratio"
GAP_MAX = "training/rollout_probs_diff_max"
GAP_MEAN = "training/rollout_probs_diff_mean"
GAP_CORRELATION = "training/rollout_actor_probs_pearson_corr"
KL = ("actor/ppo_kl", "rollout_corr/kl", "rollout_corr/k3_kl", "actor/kl_loss", "actor/reward_kl_penalty")
ENTROPY = "actor/entropy"
GRAD_NORM = "actor/grad_norm"
STEP_SECONDS = "timing_s/step"
VALIDATION_SECONDS = "timing_s/testing"
THROUGHPUT = "perf/throughput"

SUMMARY_KEYS = ("step", "reward", "response_length", "rollout_gap_max", "seconds")

# The order in which a step passes through them, so that bars of different runs stack alike.
PHASES = (
    "gen",
    "switch_wait",
    "wait_for_enough_samples",
    "switch_to_trainer",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "save_checkpoint",
    "update_weights",
    "switch_to_rollout",
)

# verl's trainers run these outside the `step` timer, so they are no part of timing_s/step.
OUTSIDE_STEP = frozenset({"step", "testing", "dump_rollout_generations", "start_profile", "stop_profile"})

MEANINGS: dict[str, str] = {
    "critic/score/mean": "what the reward function gave, mean over responses",
    "critic/rewards/mean": "score after the KL penalty, mean over responses",
    "critic/advantages/mean": "advantage, mean over tokens",
    "response_length/mean": "tokens per response",
    "response_length/clip_ratio": "share of responses as long as the longest of the step",
    "response/aborted_ratio": "share of responses that were aborted",
    "prompt_length/mean": "tokens per prompt",
    "training/rollout_probs_diff_max": "largest |p(trainer) - p(rollout)| of any sampled token",
    "training/rollout_probs_diff_mean": "mean |p(trainer) - p(rollout)| over sampled tokens",
    "training/rollout_probs_diff_valid": "1 when the gap could be measured, 0 when no token was valid",
    "training/rollout_actor_probs_pearson_corr": "correlation of trainer and rollout token probabilities",
    "rollout_corr/kl": "KL(rollout || trainer), estimated as the mean of -log ratio",
    "rollout_corr/k3_kl": "KL(rollout || trainer), the low-variance k3 estimate",
    "actor/ppo_kl": "KL between the policy that sampled and the policy being updated",
    "actor/kl_loss": "KL to the reference policy, as used in the loss",
    "actor/reward_kl_penalty": "KL to the reference policy, as taken off the reward",
    "actor/entropy": "entropy of the policy, nats per token",
    "actor/grad_norm": "norm of the actor's gradient before clipping",
    "actor/lr": "learning rate of the actor",
    "actor/pg_loss": "policy-gradient loss",
    "actor/pg_clipfrac": "share of tokens where the PPO ratio was clipped",
    "timing_s/step": "seconds for the whole step",
    "timing_s/gen": "seconds waiting for rollouts",
    "timing_s/old_log_prob": "seconds to recompute log-probs of the sampled tokens",
    "timing_s/update_actor": "seconds to update the actor",
    "timing_s/update_weights": "seconds to bring new weights to the rollout",
    "timing_s/testing": "seconds for validation, outside timing_s/step",
    "perf/throughput": "tokens per second and GPU",
    "perf/time_per_step": "seconds for the whole step",
    "perf/total_num_tokens": "tokens in the batch",
}


def number(value: object) -> int | float | None:
    """A plain int or float for anything that holds one number (NumPy and torch scalars too), else None.

    NaN and the infinities are numbers here; strings, arrays with more than one element and None are not.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, numbers.Number) or getattr(value, "ndim", None) == 0:
        item: Any = getattr(value, "item", None)
        plain = item() if callable(item) else value
        if isinstance(plain, (bool, int)):
            return int(plain)
        if isinstance(plain, (float, numbers.Real)):
            return float(plain)
    return None


def summarise(step: int, metrics: Mapping[str, Any]) -> dict[str, int | float | None]:
    """One flat record of a step, as `RunWriter.append` takes it.

    Args:
        step: verl's global step.
        metrics: what verl logged at this step; values that are not one number are left out.

    Returns:
        `step`, `reward` (critic/score/mean, else critic/rewards/mean), `response_length` (tokens),
        `rollout_gap_max` (largest difference of token probabilities between trainer and rollout) and
        `seconds` (of the whole step), each None where verl logged nothing for it; then every numeric metric
        by its own name.

    Raises:
        NereusError: a metric has the name of a summary key, so that one of the two would be lost.
    """
    clash = sorted(set(SUMMARY_KEYS) & set(metrics))
    if clash:
        raise NereusError(
            "a logged metric has the name of a summary key of the run record",
            where=f"metrics of step {step}",
            expected=f"metric names other than {', '.join(SUMMARY_KEYS)}",
            got=", ".join(clash),
            change="give the metric a prefix, for example my/reward",
        )
    values = {key: plain for key, value in metrics.items() if (plain := number(value)) is not None}
    return {
        "step": int(step),
        "reward": next((values[key] for key in REWARD if key in values), None),
        "response_length": values.get(RESPONSE_LENGTH),
        "rollout_gap_max": values.get(GAP_MAX),
        "seconds": values.get(STEP_SECONDS),
        **values,
    }


def is_validation_only(record: Mapping[str, object]) -> bool:
    """Whether a record holds a validation (verl logs one before training, under the step it resumes from)."""
    keys = [key for key, value in record.items() if key not in SUMMARY_KEYS and value is not None]
    return bool(keys) and all(key.startswith(VALIDATION_PREFIXES) for key in keys)


def phases(keys: Iterable[str]) -> list[str]:
    """The `timing_s/` keys that add up to a step, in the order of the step; unknown timers follow by name.

    Names with a second slash are details of another timer and are left out.
    """
    names = {key[len(TIMING_PREFIX) :] for key in keys if key.startswith(TIMING_PREFIX)}
    names = {name for name in names if "/" not in name} - OUTSIDE_STEP
    known = [name for name in PHASES if name in names]
    return [TIMING_PREFIX + name for name in [*known, *sorted(names - set(PHASES))]]
