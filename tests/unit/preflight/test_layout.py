"""Layouts that divide neither model nor ranks are refused with both numbers and sizes that work; the others are not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verl_ext.errors import NereusError
from verl_ext.preflight.arithmetic import divisors, nearest, nearest_sizes, padded, step_for
from verl_ext.preflight.layout import KEYS, Layout, Shape, choices, conflicts, read_shape, undivided_layers

ACTOR, REF, CRITIC = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron", "critic.megatron"
MODEL = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "num_experts": 8,
    "moe_intermediate_size": 32,
    "intermediate_size": 65,  # of no layer of this model
    "vocab_size": 128,
}
SIZE = st.integers(1, 400)


def sizes(section: str = ACTOR, **values: object) -> list[str]:
    return [f"{section}.{KEYS[name]}={value}" for name, value in values.items()]


@pytest.fixture
def layout(run):
    """What is found on a layout of a model, without a critic unless one is asked for."""

    def found(*overrides: str, world: int = 1, model: dict | None = None, critic: bool = False, **values: object):
        path = run.folder / "model"
        path.exists() or run.model("model", MODEL | (model or {}))
        return run.findings(
            f"actor_rollout_ref.model.path={path}",
            f"trainer.n_gpus_per_node={world}",
            f"algorithm.adv_estimator={'gae' if critic else 'grpo'}",
            *sizes(**values),
            *overrides,
            engine="megatron",
        )

    return found


def only(found: dict[str, list[NereusError]]) -> NereusError:
    """The first finding of the one rule that has any."""
    assert list(found) == ["megatron_layout"]
    for error in found["megatron_layout"]:
        assert all((error.what, error.where, error.expected, error.got, error.change))
        assert "None" not in str(error)
    return found["megatron_layout"][0]


# ---- arithmetic


@given(SIZE)
def test_divisors_are_all_that_divide(number):
    assert divisors(number) == tuple(size for size in range(1, number + 1) if number % size == 0)


@given(SIZE, st.sets(SIZE))
def test_nearest_leaves_nothing_nearer_on_either_side(value, others):
    found = nearest(value, others)
    assert set(found) <= others - {value}
    assert list(found) == sorted(found)
    for other in others - {value}:
        side = [size for size in found if (size < value) == (other < value)]
        assert len(side) == 1 and abs(side[0] - value) <= abs(other - value)


@given(SIZE, SIZE)
def test_nearest_sizes_are_the_multiples_around(size, multiple):
    found = nearest_sizes(size, multiple)
    assert found and all(number > 0 and number % multiple == 0 for number in found)
    assert all(abs(number - size) < multiple for number in found)
    assert (found == (size,)) == (size % multiple == 0)


@given(SIZE, SIZE)
def test_a_step_is_the_least_count_of_groups_that_is_shared_evenly(total, factor):
    assert step_for(total, factor) == next(count for count in range(1, total + 1) if count * factor % total == 0)


@given(st.integers(0, 400), SIZE)
def test_padding_is_the_least_that_makes_a_multiple(size, multiple):
    assert padded(size, multiple) % multiple == 0
    assert 0 <= padded(size, multiple) - size < multiple


OPTIONAL = st.none() | st.integers(1, 6)


@given(st.integers(1, 24), st.integers(1, 6), OPTIONAL, OPTIONAL, OPTIONAL, st.integers(0, 2))
def test_layers_are_divided_where_stages_can_be_filled(layers, pp, vpp, first, last, extra):
    if first is not None or last is not None:
        extra = 0  # Megatron-Core takes one or the other
    found = undivided_layers(Layout(pp=pp, vpp=vpp, first=first, last=last, extra=extra), layers)
    taken = [count for count in (first, last) if count is not None]
    rest, left = layers + extra - sum(taken), pp - len(taken)
    fills = any(rest == each * left for each in range(1, rest + 1) if each % (vpp or 1) == 0) if left > 0 else False
    fine = (fills or (rest == 0 and left == 0)) and all(count % (vpp or 1) == 0 for count in taken)
    assert (found is None) == fine


@given(
    st.builds(
        Layout,
        world=st.integers(1, 16),
        **dict.fromkeys(("tp", "pp", "cp", "ep"), st.integers(1, 5)),
        vpp=st.none() | st.integers(2, 4),
    ),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_a_suggested_size_ends_the_conflict_it_is_suggested_for(layout, heads, layers):
    shape = Shape(split=(("heads", heads, ("tp",)), ("experts", 8, ("ep",))), layers=layers, kv_heads=heads, experts=8)
    for conflict in conflicts(layout, shape):
        for size in conflict.sizes:
            for value in choices(layout, shape, conflict, size):
                changed = replace(layout, **{size: None if size == "vpp" and value == 1 else value})
                assert conflict.kind not in {left.kind for left in conflicts(changed, shape)}


# ---- what is let through


@pytest.mark.parametrize(
    ("world", "values"),
    [
        (1, {}),
        (2, {"tp": 2}),
        (2, {"pp": 2}),
        (2, {"pp": 2, "vpp": 2}),
        (2, {"ep": 2}),
        (2, {"cp": 2}),
        (2, {}),
        (4, {"tp": 2, "pp": 2}),
        (4, {"tp": 4}),  # more ranks than key-value heads
        (8, {"tp": 2, "ep": 2, "etp": 1}),
        (8, {"tp": 2, "cp": 2, "ep": 8, "etp": 1}),  # experts are divided over context-parallel ranks too
    ],
)
def test_layouts_that_divide_are_fine(layout, world, values):
    assert layout(world=world, **values) == {}


def test_padded_batches_on_context_parallel_ranks_are_fine(layout):
    assert layout("actor_rollout_ref.model.use_remove_padding=False", world=2, cp=2) == {}


def test_sequence_parallelism_is_no_matter_on_one_tensor_parallel_rank(layout):
    assert layout(f"{ACTOR}.sequence_parallel=False") == {}


def test_a_dense_model_trains_on_tensor_parallel_ranks_without_sequence_parallelism(layout):
    dense = {"num_experts": 0, "intermediate_size": 64}
    assert layout(f"{ACTOR}.sequence_parallel=False", world=2, tp=2, model=dense) == {}


def test_latent_attention_has_no_key_value_heads(layout):
    assert layout(world=2, tp=2, model={"num_key_value_heads": 3, "kv_lora_rank": 16}) == {}


def test_a_model_that_cannot_be_read_is_only_asked_about_the_ranks(run):
    unread = ["actor_rollout_ref.model.path=owner/name", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=3"]
    assert run.findings(*unread, *sizes(tp=3), engine="megatron") == {}
    assert "3 ranks" in only(run.findings(*unread, *sizes(tp=2), engine="megatron")).what


def test_settings_of_megatron_are_nothing_to_another_engine(run):
    fsdp = [f"+{setting}" for setting in sizes(tp=3, ep=5)]
    assert run.findings(*fsdp) == {}


# ---- what is refused: (overrides, two numbers, ways out)


@pytest.mark.parametrize(
    ("world", "values", "model", "numbers", "ways"),
    [
        (3, {"tp": 2}, {}, (3, 2), ["tp=1"]),
        (6, {"tp": 2, "cp": 2}, {}, (6, 4), ["tp=1", "cp=1", "cp=3"]),
        (8, {"ep": 3}, {"num_experts": 9}, (8, 3), ["ep=1"]),
        (3, {"tp": 3}, {}, (4, 3), ["tp=1"]),
        (4, {"tp": 4}, {"num_attention_heads": 8, "num_key_value_heads": 6}, (6, 4), ["tp=2"]),
        (6, {"tp": 3}, {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 126}, (2, 3), ["tp=2"]),
        (4, {"tp": 4}, {"vocab_size": 126}, (126, 4), ["tp=2"]),
        (4, {"tp": 4}, {"num_experts": 0, "intermediate_size": 66}, (66, 4), ["tp=2"]),
        (4, {"tp": 4}, {"first_k_dense_replace": 1, "intermediate_size": 66}, (66, 4), ["tp=2"]),
        (4, {"tp": 4}, {"shared_expert_intermediate_size": 30}, (30, 4), ["tp=2"]),
        (4, {"tp": 4}, {"n_shared_experts": 1, "moe_intermediate_size": 34}, (34, 4), ["tp=2"]),
        (4, {"tp": 1, "etp": 4}, {"moe_intermediate_size": 34}, (34, 4), ["etp=2"]),
        (4, {"cp": 4}, {"linear_num_key_heads": 2, "linear_num_value_heads": 4}, (2, 4), ["cp=2"]),
        (3, {"pp": 3}, {}, (4, 3), ["pp=1"]),
        (2, {"pp": 2, "vpp": 3}, {}, (2, 3), ["vpp=2"]),
        (2, {"vpp": 2}, {}, (2, 1), ["vpp=null", "pp=2"]),
        (3, {"ep": 3}, {}, (8, 3), ["ep=1"]),
        (2, {"ep": 2}, {"num_experts": 0, "intermediate_size": 64}, (2, 0), ["ep=1"]),
    ],
)
def test_layouts_that_do_not_divide_are_refused_with_both_numbers(layout, world, values, model, numbers, ways):
    found = layout(world=world, model=model, **values)
    assert set(found) <= {"megatron_layout", "batch_by_data_parallel"}
    errors = [error for error in found["megatron_layout"] if set(numbers) <= numbers_of(error.what)]
    assert errors, found
    assert errors[0].change == ", or ".join(map(override, ways))


def numbers_of(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


def override(way: str) -> str:
    size, _, value = way.partition("=")
    return f"{ACTOR}.{KEYS[size]}={value}"


def test_the_advice_ends_the_refusal(layout):
    error = only(layout(world=3, tp=3))
    assert error.what == "num_attention_heads=4 cannot be divided among 3 tensor-parallel ranks"
    assert error.where == f"{ACTOR}.tensor_model_parallel_size"
    assert (error.expected, error.got) == ("a divisor of 4", "3")
    assert error.change == f"{ACTOR}.tensor_model_parallel_size=1"
    assert "megatron_layout" not in layout(error.change, world=3, tp=3)


def test_stages_of_a_given_size_leave_the_others_for_the_rest(layout):
    first = f"+{ACTOR}.override_transformer_config.num_layers_in_first_pipeline_stage"
    assert layout(f"{first}=1", world=2, pp=2) == {}
    assert layout(f"{first}=2", world=3, pp=3) == {}
    error = only(layout(f"{first}=1", world=3, pp=3))
    assert error.what == "layers left for the other stages=3 cannot be divided among 2 pipeline stages"


def test_a_layout_of_stages_by_hand_is_left_to_megatron(layout):
    by_hand = f"+{ACTOR}.override_transformer_config.pipeline_model_parallel_layout='Et|tt|tL'"
    assert layout(by_hand, world=3, pp=3) == {}


def test_embedding_and_loss_may_count_as_layers(layout):
    more = f"+{ACTOR}.override_transformer_config.account_for"
    both = [f"{more}_embedding_in_pipeline_split=True", f"{more}_loss_in_pipeline_split=True"]
    assert layout(*both, world=3, pp=3) == {}
    assert "5 cannot" in only(layout(both[0], world=2, pp=2)).what.replace("=5", " 5")


def test_experts_do_not_train_on_tensor_parallel_ranks_without_sequence_parallelism(layout):
    error = only(layout(f"{ACTOR}.sequence_parallel=False", world=2, tp=2))
    assert {8, 2} <= numbers_of(error.what)
    assert error.change.startswith(f"{ACTOR}.sequence_parallel=True, or ")


def test_a_vocabulary_that_bridge_is_told_to_pad_is_fine(layout):
    padded_vocabulary = f"+{ACTOR}.override_transformer_config.should_pad_vocab=True"
    assert layout(padded_vocabulary, world=4, tp=4, model={"vocab_size": 126}) == {}


def test_the_text_part_of_a_multimodal_config_is_looked_at():
    shape = read_shape({"vision_config": {"num_attention_heads": 5}, "text_config": MODEL})
    assert shape.split[0] == ("num_attention_heads", 4, ("tp",))
    assert (shape.layers, shape.kv_heads, shape.experts) == (4, 2, 8)


# ---- several engines in one process


def test_the_reference_takes_over_the_layout_of_the_actor(layout):
    assert layout("actor_rollout_ref.actor.use_kl_loss=True", world=2, tp=2) == {}
    assert only(layout("actor_rollout_ref.actor.use_kl_loss=True", world=3, tp=3)).where.startswith(ACTOR)


def test_a_reference_of_another_layout_is_refused(layout):
    error = only(layout("actor_rollout_ref.actor.use_kl_loss=True", *sizes(REF, tp=1), world=2, tp=2))
    assert error.where == f"{REF}.tensor_model_parallel_size"
    assert error.change == f"{REF}.tensor_model_parallel_size=2"


def test_a_reference_that_the_run_does_not_use_is_not_looked_at(layout):
    assert layout(*sizes(REF, tp=1), world=2, tp=2) == {}
    adapter = ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.model.lora.rank=8"]
    assert layout(*adapter, *sizes(REF, tp=1), world=2, tp=2) == {}


def test_a_critic_without_the_actor_s_layout_is_refused(layout):
    error = only(layout(world=2, tp=2, critic=True))
    assert error.where == f"{CRITIC}.tensor_model_parallel_size"
    assert (error.expected, error.got) == ("tensor_model_parallel_size=2, as the actor", "1")
    assert layout(error.change, world=2, tp=2, critic=True) == {}


def test_the_critic_s_model_is_its_own(layout, run):
    critic = run.model("critic", MODEL | {"num_attention_heads": 3, "num_key_value_heads": 3})
    path = critic.replace("actor_rollout_ref.model", "critic.model")
    error = only(layout(path, *sizes(CRITIC, tp=2), world=2, tp=2, critic=True))
    assert error.what == "num_attention_heads=3 cannot be divided among 2 tensor-parallel ranks"
    assert error.where.startswith(CRITIC)


# ---- against the original


@pytest.mark.slow
@given(
    st.sampled_from([(2, 1), (4, 2), (6, 3), (6, 2), (8, 8)]),
    st.integers(1, 12),
    st.builds(
        Layout,
        world=st.just(1),
        **dict.fromkeys(("tp", "pp"), st.integers(1, 4)),
        ep=st.integers(1, 3),
        vpp=st.none() | st.integers(2, 3),
        first=st.none() | st.integers(1, 3),
        last=st.none() | st.integers(1, 3),
    ),
    st.sampled_from([0, 6, 8]),
)
def test_what_megatron_core_refuses_is_refused_and_nothing_else(heads, layers, layout, experts):
    pytest.importorskip("megatron.core")
    import torch
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    given_stages = [count for count in (layout.first, layout.last) if count is not None]
    # Megatron-Core takes fewer stages or layers than are given away, and builds another model than the one asked for.
    assume(layout.pp >= len(given_stages) and layers >= sum(given_stages))
    assume(layout.vpp is None or layout.pp > 1)
    shape = Shape(
        split=(("heads", heads[0], ("tp",)), *([("experts", experts, ("ep",))] if experts else [])),
        layers=layers,
        kv_heads=heads[1],
        experts=experts,
    )
    of_the_model = [conflict for conflict in conflicts(layout, shape) if not conflict.kind.endswith("ranks")]
    try:
        config = TransformerConfig(
            num_layers=layers,
            hidden_size=heads[0] * 8,
            num_attention_heads=heads[0],
            num_query_groups=heads[1],
            num_moe_experts=experts or None,
            moe_ffn_hidden_size=32 if experts else None,
            add_bias_linear=False,
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            virtual_pipeline_model_parallel_size=layout.vpp,
            expert_model_parallel_size=layout.ep,
            num_layers_in_first_pipeline_stage=layout.first,
            num_layers_in_last_pipeline_stage=layout.last,
            sequence_parallel=layout.tp > 1,
            pipeline_dtype=torch.float32,
        )
        stages = [(rank, stage) for rank in range(layout.pp) for stage in range(layout.vpp or 1)]
        for rank, stage in stages:
            get_num_layers_to_build(config, vp_stage=None if layout.vpp is None else stage, pp_rank=rank)
        accepted = not experts or experts % layout.ep == 0  # which MoELayer asks for
    except (ValueError, AssertionError):
        accepted = False
    assert accepted == (not of_the_model)
