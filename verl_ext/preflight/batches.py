"""Batches that data-parallel ranks, or their micro-batches, do not divide: refused with the nearest sizes that would.

verl finds these in a worker after the first batch was generated (workers/engine_workers.py:267, engine/utils.py:125).
It pads a batch to whole mini-batches with samples that have no weight (trainer/ppo/padding_utils.py), and its loader
drops what is left of an epoch (drop_last, trainer/ppo/v1/trainer_base.py:747): neither is a reason to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.preflight.arithmetic import divisors, nearest, nearest_sizes, padded, step_for
from verl_ext.preflight.engines import CRITIC, REF, Engine, engines, reference_in_actor, uses_reference, world_size
from verl_ext.preflight.layout import read_layout
from verl_ext.view import ACTOR, ROLLOUT, View


@dataclass(frozen=True)
class Ranks:
    """Of one engine: how many share a batch, and by which number of micro-batches its pipeline goes."""

    engine: Engine
    data: int
    group: int = 1

    @property
    def size_key(self) -> str:
        return f"{self.engine.path}.ppo_mini_batch_size"


def read_ranks(view: View, engine: Engine) -> Ranks | None:
    """None for an engine whose ranks are not divided by sizes known here, or not evenly: that is another refusal."""
    strategy, world = str(view(f"{engine.path}.strategy")), world_size(view)
    if strategy == "megatron":
        layout, section = read_layout(view, engine), engine.megatron
        replica, group = layout.tp * layout.pp * layout.cp, 1
        if view(f"{section}.dynamic_context_parallel", False):
            return None
        if layout.vpp is not None and layout.vpp > 1:
            group = int(view(f"{section}.override_transformer_config.microbatch_group_size_per_vp_stage", layout.pp))
    elif strategy in ("fsdp", "fsdp2"):
        section, group = "fsdp" if engine.path == CRITIC else "fsdp_config", 1
        replica = int(view(f"{engine.path}.{section}.ulysses_sequence_parallel_size", 1))
        old = int(view(f"{engine.path}.ulysses_sequence_parallel_size", 1))
        if engine.path != CRITIC and old > 1:  # workers/config/actor.py:328, which the critic's has no counterpart of
            replica = old
    else:
        return None
    return Ranks(engine, world // replica, group) if world % replica == 0 else None


@refuses(
    Refusal(
        "`ppo_mini_batch_size` x `rollout.n` of actor or critic that the data-parallel ranks do not divide (FSDP too)",
        because="generates a whole batch, then fails in the update",
        change="a mini-batch size; `data.train_batch_size` with it where it is too small. A batch that is no"
        " multiple is padded by verl with samples of no weight (`trainer/ppo/padding_utils.py`), and "
        "the rest of an epoch is dropped (`trainer/ppo/v1/trainer_base.py:747`): both are let through",
        evidence="`workers/engine_workers.py:267`",
    ),
    Refusal(
        "a rank's share that `actor.ppo_micro_batch_size_per_gpu`, "
        "`rollout.log_prob_micro_batch_size_per_gpu` or that of the reference does not divide, "
        "without dynamic batch sizes",
        because='the same: "data size must be divisible by force_group_size * micro_batch_size_per_gpu"',
        change="the micro-batch, the mini-batch, or `actor.use_dynamic_bsz=True`",
        evidence="`workers/engine/utils.py:125`",
    ),
    Refusal(
        "virtual stages, and micro-batches of a rank that are no multiple of PP; with dynamic sizes, "
        "fewer samples than PP",
        because="the same",
        change="the same",
        evidence="`workers/engine/megatron/transformer_impl.py:915`, `utils/seqlen_balancing.py:445`",
    ),
)
def batch_by_data_parallel(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    found = {engine.path: read_ranks(view, engine) for engine in engines(view)}
    actor, critic, ref = (found.get(path) for path in (ACTOR, CRITIC, REF))
    trained = [ranks for ranks in (actor, critic) if ranks is not None]
    shared = True
    for ranks in trained:
        for refusal in _mini_batch(view, ranks):
            shared = False
            yield refusal
    if actor is None or not shared:
        return
    if not view(f"{ACTOR}.use_dynamic_bsz", False):
        yield from _training_micro_batch(view, actor)
        bypassed = view("algorithm.rollout_correction.bypass_mode", False)
        if not bypassed or (uses_reference(view) and reference_in_actor(view)):
            yield from _inference_micro_batch(view, actor, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", trained)
    if ref is not None and not view(f"{REF}.log_prob_use_dynamic_bsz", False):
        yield from _inference_micro_batch(view, ref, f"{REF}.log_prob_micro_batch_size_per_gpu", trained)


def _samples(view: View) -> int:
    return int(view(f"{ROLLOUT}.n", 1))


def _updates(view: View) -> int:
    """Into how many parts a batch is divided before anything else (trainer/ppo/v1/trainer_base.py:130, :539)."""
    mode = view("trainer.v1.trainer_mode", "sync")
    return int(view(f"trainer.v1.{mode}.parameter_sync_step", 1))


def _mini_size(view: View, ranks: Ranks) -> int:
    return int(view(ranks.size_key, 256))


def _resized(view: View, ranks: Ranks, prompts: int) -> str:
    """The override for a mini-batch of so many prompts, with that of the batch where it has to grow with it."""
    ways = [view.override(ranks.size_key, prompts)]
    batch = int(view("data.train_batch_size", 0))
    if view("trainer.v1.trainer_mode") == "separate_async" and ranks.engine.path == ACTOR:
        ways.append(f"data.train_batch_size={prompts * _updates(view)}")
    elif prompts > batch:
        ways.append(f"data.train_batch_size={prompts}")
    return " ".join(ways)


def _mini_batch(view: View, ranks: Ranks) -> Iterator[NereusError]:
    prompts, n = _mini_size(view, ranks), _samples(view)
    step = step_for(ranks.data, n)
    if prompts * n % ranks.data:
        yield NereusError(
            f"a mini-batch of {prompts * n} samples cannot be divided among {ranks.data} data-parallel ranks",
            where=ranks.size_key,
            expected=f"{ranks.size_key} * {ROLLOUT}.n in multiples of {ranks.data}",
            got=f"{prompts} * {n} = {prompts * n}",
            change=", or ".join(_resized(view, ranks, size) for size in nearest_sizes(prompts, step)),
        )
    elif prompts * n // ranks.data < ranks.group:  # utils/seqlen_balancing.py:445
        yield NereusError(
            f"{prompts * n // ranks.data} samples a rank are fewer than the {ranks.group} micro-batches by which a "
            "pipeline with virtual stages goes",
            where=ranks.size_key,
            expected=f"{ranks.size_key} * {ROLLOUT}.n of {ranks.data * ranks.group} or more",
            got=f"{prompts} * {n} = {prompts * n}",
            change=_resized(view, ranks, padded(-(-ranks.data * ranks.group // n), step)),
        )


def _training_micro_batch(view: View, ranks: Ranks) -> Iterator[NereusError]:
    key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    micro, prompts, n = view(key), _mini_size(view, ranks), _samples(view)
    if micro is None:
        return
    share = prompts * n // ranks.data
    if share % (int(micro) * ranks.group):
        resized = nearest_sizes(prompts, step_for(ranks.data * int(micro) * ranks.group, n))
        yield _undivided(
            view, key, int(micro), share, ranks, [_resized(view, ranks, size) for size in resized], "mini-batch"
        )
        return
    # verl's own check (utils/config.py:114-127), which names no size that would do.
    least = ranks.data * int(micro) if view(f"{ACTOR}.strategy") == "megatron" else world_size(view)
    batch = int(view("data.train_batch_size", 0))
    if batch * n % least:
        yield NereusError(
            f"a batch of {batch * n} samples cannot be divided into {least}, one micro-batch for each rank",
            where="data.train_batch_size",
            expected=f"data.train_batch_size * {ROLLOUT}.n in multiples of {least}",
            got=f"{batch} * {n} = {batch * n}",
            change=", or ".join(f"data.train_batch_size={size}" for size in nearest_sizes(batch, step_for(least, n))),
        )


def batch_sizes(real: int, data: int, mini_batches: tuple[int, ...], *, warmup: tuple[int, ...] = ()) -> set[int]:
    """Samples of a batch once it is padded (trainer/ppo/v1/trainer_base.py:1589): while only the critic is trained its
    mini-batch alone decides, later the actor's as well.
    """
    return {padded(real, math.lcm(data, *sizes)) for sizes in (mini_batches, warmup) if sizes}


def _inference_micro_batch(view: View, ranks: Ranks, key: str, trained: list[Ranks]) -> Iterator[NereusError]:
    micro, n = view(key), _samples(view)
    if micro is None:
        return
    sizes = {each.engine.path: _mini_size(view, each) * n for each in trained}
    critic_only = tuple(size for path, size in sizes.items() if path != ACTOR)
    data = next(each.data for each in trained if each.engine.path == ACTOR)
    real = int(view("data.train_batch_size", 0)) // _updates(view) * n
    warmup = critic_only if int(view("trainer.critic_warmup", 0)) > 1 else ()
    for size in sorted(batch_sizes(real, data, tuple(sizes.values()), warmup=warmup)):
        # Ranks of a reference that are not the actor's get shares that differ by one.
        shares = {size // ranks.data, -(-size // ranks.data)}
        for share in sorted(shares):
            if share % (int(micro) * ranks.group):
                yield _undivided(view, key, int(micro), share, ranks, [], f"batch of {size}")
                return


def _undivided(
    view: View, key: str, micro: int, share: int, ranks: Ranks, resized: list[str], what: str
) -> NereusError:
    """A rank's share of a batch that is no whole number of micro-batches, or not one the pipeline can take."""
    fitting = divisors(share // ranks.group) if share % ranks.group == 0 and share else ()
    by = f" in groups of {ranks.group}" if ranks.group > 1 else ""
    section = key.rpartition(".")[0]
    dynamic = f"{section}.{'log_prob_' if section != ACTOR else ''}use_dynamic_bsz"
    ways = [view.override(key, size) for size in nearest(micro, fitting)] + resized
    if section == REF:
        ways.append(view.override(dynamic, True))
    else:
        ways.append(f"{ACTOR}.use_dynamic_bsz=True")
    return NereusError(
        f"a rank's {share} samples of a {what} cannot be divided into micro-batches of {micro}{by}",
        where=key,
        expected=f"a divisor of {share}" + (f" that leaves a multiple of {ranks.group}" if by else ""),
        got=str(micro),
        change=", or ".join(ways),
    )
