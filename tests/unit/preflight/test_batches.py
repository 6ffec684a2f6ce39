"""Batches are refused where verl fails on them, with the nearest sizes that it would take, and nowhere else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.errors import NereusError
from verl_ext.preflight.batches import batch_sizes

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
SIZE = st.integers(1, 60)


def settings(
    *more: str, world: int, batch: int, mini: int, n: int = 1, dynamic: bool = True, critic: bool = False
) -> list[str]:
    return [
        f"trainer.n_gpus_per_node={world}",
        f"data.train_batch_size={batch}",
        f"{ACTOR}.ppo_mini_batch_size={mini}",
        f"{ROLLOUT}.n={n}",
        f"{ACTOR}.use_dynamic_bsz={dynamic}",
        f"algorithm.adv_estimator={'gae' if critic else 'grpo'}",
        *more,
    ]


def only(found: dict[str, list[NereusError]]) -> NereusError:
    assert list(found) == ["batch_by_data_parallel"]
    error = found["batch_by_data_parallel"][0]
    assert all((error.what, error.where, error.expected, error.got, error.change))
    assert "None" not in str(error)
    return error


def after(base: list[str], way: str) -> list[str]:
    """The overrides with one way out in the place of what it changes."""
    changed = {part.split("=")[0] for part in way.split()}
    return [override for override in base if override.split("=")[0] not in changed] + way.split()


@pytest.mark.parametrize("engine", ["dp", "megatron"])
def test_a_mini_batch_that_ranks_cannot_share_is_refused_with_the_nearest_sizes(run, engine):
    """EL-04: 10 samples, groups of 5, 2 ranks become 4."""
    assert run.findings(*settings(world=2, batch=2, mini=2, n=5), engine=engine) == {}
    given = settings(world=4, batch=2, mini=2, n=5)
    error = only(run.findings(*given, engine=engine))
    assert error.what == "a mini-batch of 10 samples cannot be divided among 4 data-parallel ranks"
    assert error.got == "2 * 5 = 10"
    assert error.change == f"{ACTOR}.ppo_mini_batch_size=4 data.train_batch_size=4"
    assert run.findings(*after(given, error.change), engine=engine) == {}


def test_a_mini_batch_of_3_is_refused_with_a_size_on_either_side(run):
    given = settings(world=2, batch=8, mini=3)
    error = only(run.findings(*given))
    assert error.change == f"{ACTOR}.ppo_mini_batch_size=2, or {ACTOR}.ppo_mini_batch_size=4"
    for way in error.change.split(", or "):
        assert run.findings(*after(given, way)) == {}


def test_a_batch_that_verl_pads_is_fine(run):
    assert run.findings(*settings(world=4, batch=10, mini=4)) == {}
    assert run.findings(*settings(world=4, batch=3, mini=4)) == {}


def test_model_parallel_ranks_share_a_sample(run):
    sizes = settings(f"{ACTOR}.megatron.context_parallel_size=2", world=4, batch=2, mini=2)
    assert run.findings(*sizes, engine="megatron") == {}
    assert (
        run.findings(*settings(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2", world=4, batch=2, mini=2)) == {}
    )
    assert run.findings(*settings(f"{ACTOR}.ulysses_sequence_parallel_size=2", world=4, batch=2, mini=2)) == {}
    assert only(run.findings(*settings(world=4, batch=2, mini=2))).where == f"{ACTOR}.ppo_mini_batch_size"


def test_the_critic_s_mini_batch_is_shared_too(run):
    critic = "critic.ppo_mini_batch_size=3"
    assert run.findings(*settings(critic, world=2, batch=4, mini=2)) == {}
    error = only(run.findings(*settings(critic, world=2, batch=4, mini=2, critic=True)))
    assert error.where == "critic.ppo_mini_batch_size"


def test_engines_whose_ranks_are_not_known_here_are_left_to_verl(run):
    assert run.findings(*settings(world=4, batch=2, mini=2, critic=False), engine="veomni") == {}


# ---- micro-batches of a fixed size


def fixed(*more: str, micro: int, world: int = 2, batch: int = 24, mini: int = 12, **others: int) -> list[str]:
    size = f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro}"
    return settings(size, *more, world=world, batch=batch, mini=mini, dynamic=False, **others)


def test_a_micro_batch_that_divides_is_fine(run):
    assert run.findings(*fixed(micro=3)) == {}
    assert run.findings(*settings(world=2, batch=24, mini=12, dynamic=False)) == {}  # verl asks for it


def test_a_micro_batch_that_does_not_divide_the_share_is_refused(run):
    given = fixed(micro=4)
    error = only(run.findings(*given))
    assert error.what == "a rank's 6 samples of a mini-batch cannot be divided into micro-batches of 4"
    ways = error.change.split(", or ")
    assert ways == [
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=6",
        f"{ACTOR}.ppo_mini_batch_size=8",
        f"{ACTOR}.ppo_mini_batch_size=16",
        f"{ACTOR}.use_dynamic_bsz=True",
    ]
    for way in ways:
        assert run.findings(*after(given, way)) == {}, way


def test_a_micro_batch_is_no_matter_with_dynamic_sizes(run):
    assert run.findings(*settings(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", world=2, batch=24, mini=12)) == {}


def test_a_batch_of_another_number_of_micro_batches_is_refused_as_by_verl(run):
    given = fixed(micro=2, batch=10, mini=4)
    error = only(run.findings(*given, engine="megatron"))
    assert error.what == "a batch of 10 samples cannot be divided into 4, one micro-batch for each rank"
    assert error.change == "data.train_batch_size=8, or data.train_batch_size=12"
    assert run.findings(*after(given, error.change.split(", or ")[0]), engine="megatron") == {}


def test_log_probs_are_computed_on_the_whole_padded_batch(run):
    key = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    assert run.findings(*fixed(f"{key}=4", micro=3)) == {}  # 24 / 2
    error = only(run.findings(*fixed(f"{key}=5", micro=3)))
    assert error.what == "a rank's 12 samples of a batch of 24 cannot be divided into micro-batches of 5"
    assert error.change.startswith(f"{key}=4, or {key}=6")
    assert run.findings(*fixed(f"{key}=9", micro=3, batch=28)) == {}  # padded to 36
    assert run.findings(*fixed(f"{key}=7", micro=3, batch=28)) != {}


def test_log_probs_that_are_not_computed_are_not_looked_at(run):
    bypass = ["algorithm.rollout_correction.bypass_mode=True", f"{ROLLOUT}.calculate_log_probs=True"]
    assert run.findings(*fixed(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=5", *bypass, micro=3)) == {}


def test_the_reference_has_its_own_micro_batch(run):
    key = f"{REF}.log_prob_micro_batch_size_per_gpu"
    assert run.findings(*fixed(f"{key}=5", micro=3)) == {}
    error = only(run.findings(*fixed(f"{key}=5", f"{ACTOR}.use_kl_loss=True", micro=3)))
    assert error.where == key
    assert error.change.endswith(f"{REF}.log_prob_use_dynamic_bsz=True")
    dynamic = f"{REF}.log_prob_use_dynamic_bsz=True"
    assert run.findings(*fixed(f"{key}=5", f"{ACTOR}.use_kl_loss=True", dynamic, micro=3)) == {}


# ---- virtual stages


STAGES = [
    f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size=2",
]


def test_virtual_stages_need_whole_groups_of_micro_batches(run):
    assert run.findings(*fixed(*STAGES, micro=3), engine="megatron") == {}
    error = only(run.findings(*fixed(*STAGES, micro=4), engine="megatron"))
    assert error.what == "a rank's 12 samples of a mini-batch cannot be divided into micro-batches of 4 in groups of 2"
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu=3" in error.change


def test_virtual_stages_need_as_many_samples_as_stages(run):
    assert run.findings(*settings(*STAGES, world=2, batch=4, mini=2), engine="megatron") == {}
    given = settings(*STAGES, world=2, batch=4, mini=1)
    error = only(run.findings(*given, engine="megatron"))
    assert error.change == f"{ACTOR}.ppo_mini_batch_size=2"
    assert run.findings(*after(given, error.change), engine="megatron") == {}


# ---- arithmetic


@given(SIZE, SIZE, st.lists(SIZE, min_size=1, max_size=2), st.lists(SIZE, max_size=1))
def test_padded_batches_are_whole_mini_batches_of_every_rank(real, data, minis, warmup):
    sizes = batch_sizes(real, data, tuple(minis), warmup=tuple(warmup))
    whole = math.lcm(data, *minis)
    assert any(size % whole == 0 and real <= size < real + whole for size in sizes)
    assert len(sizes) <= 1 + len(warmup)
    assert all(size >= real and size % data == 0 for size in sizes)
