"""Refuse what verl 0.9.1 would accept and silently not do, and inputs that cannot be used.

Every rule is a function of the composed config, of files it names and of the machine: it yields findings and changes
nothing. `check` raises the first one. Rules that belong to a feature stand in its entry.
Facts and line numbers are in `docs/refusals.md`.
"""

from __future__ import annotations

from collections.abc import Iterable

from verl_ext.config import NereusOptions
from verl_ext.feature import Rule
from verl_ext.preflight.batches import batch_by_data_parallel
from verl_ext.preflight.engines import strategies
from verl_ext.preflight.ignored import (
    bypass_drops_correction,
    correction_needs_log_probs,
    disaggregated_prefill,
    fp8_kv_cache,
    legacy_reward_keys,
    legacy_trainer,
    lora_delivery,
    lora_key,
    prefix_grouper,
    rollout_engine,
)
from verl_ext.preflight.inputs import readable_data, readable_model, reward_function
from verl_ext.preflight.layout import megatron_layout
from verl_ext.preflight.machine import free_ports
from verl_ext.preflight.megatron import megatron_defects, megatron_packages, megatron_switches
from verl_ext.preflight.replay import replay_engine, replay_needs_experts, replay_rollout, replay_switches
from verl_ext.view import View

__all__ = ["RULES", "Rule", "View", "check", "strategies"]

RULES: tuple[Rule, ...] = (
    legacy_trainer,
    rollout_engine,
    legacy_reward_keys,
    readable_model,
    readable_data,
    reward_function,
    megatron_packages,
    megatron_switches,
    megatron_layout,
    megatron_defects,
    batch_by_data_parallel,
    replay_needs_experts,
    replay_engine,
    replay_rollout,
    replay_switches,
    lora_key,
    lora_delivery,
    bypass_drops_correction,
    correction_needs_log_probs,
    prefix_grouper,
    fp8_kv_cache,
    disaggregated_prefill,
    free_ports,
)


def check(view: View, options: NereusOptions, of_features: Iterable[Rule] = ()) -> None:
    """Raise NereusError at the first setting that verl would silently ignore, or an input that cannot be used.

    Args:
        view: verl's composed config, or nested dicts like it.
        options: nereus's own, checked.
        of_features: rules of features, asked after those that are about verl alone.
    """
    for rule in (*RULES, *of_features):
        for finding in rule(view, options):
            raise finding
