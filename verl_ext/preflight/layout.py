"""Megatron layouts that divide neither the model nor the ranks: refused with both numbers and the sizes that would do.

verl and Megatron-Core find these in a worker, after every process has started, and name one number or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.preflight.arithmetic import divisors, nearest
from verl_ext.preflight.engines import REF, Engine, engine_model, megatron_engines, world_size
from verl_ext.preflight.replay import expert_count
from verl_ext.view import ACTOR, View

KEYS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
RANKS = {"tp": "tensor-parallel", "cp": "context-parallel", "ep": "expert-parallel", "etp": "expert-tensor-parallel"}


@dataclass(frozen=True)
class Layout:
    """How many ranks there are, and what they are divided into. `extra`: embedding and loss that count as layers."""

    world: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    first: int | None = None
    last: int | None = None
    extra: int = 0
    by_hand: bool = False

    @property
    def experts_tp(self) -> int:
        return self.tp if self.etp is None else self.etp  # megatron/core/parallel_state.py:871

    def size(self, field: str) -> int:
        value = self.experts_tp if field == "etp" else getattr(self, field)
        return 1 if value is None else int(value)


def read_layout(view: View, engine: Engine) -> Layout:
    more = view(f"{engine.megatron}.override_transformer_config", {})
    sizes = {field: view(f"{engine.megatron}.{key}") for field, key in KEYS.items()}
    return Layout(
        world=world_size(view),
        **{field: int(value) for field, value in sizes.items() if value is not None},
        first=more.get("num_layers_in_first_pipeline_stage"),
        last=more.get("num_layers_in_last_pipeline_stage"),
        extra=sum(bool(more.get(f"account_for_{what}_in_pipeline_split", False)) for what in ("embedding", "loss")),
        by_hand=more.get("pipeline_model_parallel_layout") is not None,
    )


@dataclass(frozen=True)
class Shape:
    """The numbers of a model that ranks divide among them, as (name, number, by which sizes), and special ones."""

    split: tuple[tuple[str, int, tuple[str, ...]], ...]
    layers: int = 0
    kv_heads: int = 0
    experts: int = 0


def read_shape(model: Mapping[str, Any], *, padded_vocabulary: bool = False) -> Shape:
    """Of a config.json. Megatron-Bridge does not pad the vocabulary unless it is told to."""
    texts = [part for key, part in model.items() if isinstance(part, Mapping) and "vision" not in key]
    text = next((part for part in (model, *texts) if "num_attention_heads" in part), model)
    numbers = {key: value for key, value in text.items() if isinstance(value, int) and value > 0}
    experts = expert_count(model)
    expert_width = next((key for key in ("moe_intermediate_size", "intermediate_size") if key in numbers), "")
    splits: dict[str, tuple[str, ...]] = {
        "num_attention_heads": ("tp",),
        "linear_num_key_heads": ("tp", "cp"),
        "linear_num_value_heads": ("tp", "cp"),
    }
    if not padded_vocabulary:
        splits["vocab_size"] = ("tp",)
    # The key stands in the config of models that have no dense layer, too.
    if not experts or "first_k_dense_replace" in numbers:
        splits["intermediate_size"] = ("tp",)
    if experts:
        splits["shared_expert_intermediate_size"] = ("tp",)
        splits.setdefault(expert_width, ("etp",))
        if {"n_shared_experts", "moe_intermediate_size"} <= numbers.keys():
            shared = numbers["n_shared_experts"] * numbers["moe_intermediate_size"]
            numbers["n_shared_experts * moe_intermediate_size"] = shared
            splits["n_shared_experts * moe_intermediate_size"] = ("tp",)
    split = [(name, numbers[name], sizes) for name, sizes in splits.items() if name in numbers]
    if experts:
        split.append(("number of experts", experts, ("ep",)))
    return Shape(
        split=tuple(split),
        layers=numbers.get("num_hidden_layers", 0),
        kv_heads=0 if "kv_lora_rank" in numbers else numbers.get("num_key_value_heads", 0),
        experts=experts,
    )


@dataclass(frozen=True)
class Conflict:
    """Two numbers that do not go together, and the sizes of which one has to change. `kind` tells it from others."""

    kind: str
    sizes: tuple[str, ...]
    what: str
    expected: str
    got: str


def conflicts(layout: Layout, shape: Shape | None) -> Iterator[Conflict]:
    """Everything that does not divide; without a model only what the ranks alone tell."""
    yield from _of_the_world(layout)
    if layout.vpp is not None and layout.pp < 2:
        yield Conflict(
            "stages",
            ("vpp", "pp"),
            f"{layout.vpp} virtual stages a rank need at least 2 pipeline stages, and there is {layout.pp}",
            f"null, or {KEYS['pp']} of 2 or more",
            str(layout.vpp),
        )
    if shape is None:
        return
    for name, number, sizes in shape.split:
        ranks = _product(layout, sizes)
        if number % ranks:
            words = " x ".join(RANKS[size] for size in sizes)
            what = f"{name}={number} cannot be divided among {ranks} {words} ranks"
            yield Conflict(name, _given(layout, sizes), what, f"a divisor of {number}", str(ranks))
    kv, tp = shape.kv_heads, layout.tp
    if kv and kv % tp and tp % kv:
        what = f"num_key_value_heads={kv} is neither a multiple nor a divisor of {tp} tensor-parallel ranks"
        yield Conflict("num_key_value_heads", ("tp",), what, f"a divisor or a multiple of {kv}", str(tp))
    if layout.ep > 1 and not shape.experts:
        what = f"{layout.ep} expert-parallel ranks have 0 experts to divide among them: the model is dense"
        yield Conflict("experts", ("ep",), what, "1", str(layout.ep))
    undivided = undivided_layers(layout, shape.layers) if shape.layers else None
    if undivided:
        what, number, parts = undivided
        words = f"{what}={number} cannot be divided among {parts}"
        movable = ("pp",) if layout.vpp is None else ("pp", "vpp")
        yield Conflict("layers", movable, words, "stages with equally many layers", f"{number} for {parts}")


def _product(layout: Layout, sizes: tuple[str, ...]) -> int:
    product = 1
    for size in sizes:
        product *= layout.size(size)
    return product


def _given(layout: Layout, sizes: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are more than 1, by the size that says so."""
    return tuple("tp" if size == "etp" and layout.etp is None else size for size in sizes if layout.size(size) > 1)


def _of_the_world(layout: Layout) -> Iterator[Conflict]:
    for kind, sizes in (("dense ranks", ("tp", "pp", "cp")), ("expert ranks", ("etp", "ep", "pp"))):
        ranks = _product(layout, sizes)
        told = kind == "expert ranks" and layout.ep == 1 and layout.etp is None  # by the dense ranks
        if layout.world % ranks and not told:
            product = " x ".join(f"{size.upper()} {layout.size(size)}" for size in sizes)
            what = f"{layout.world} ranks cannot be divided into groups of {ranks} ({product})"
            yield Conflict(kind, _given(layout, sizes), what, f"a product that divides {layout.world}", str(ranks))


def undivided_layers(layout: Layout, layers: int) -> tuple[str, int, str] | None:
    """The first number of layers that its stages do not divide: (name, number, stages), or None.

    The rules of megatron/core/transformer/transformer_config.py:1988-2110: stages of a given size are taken away first,
    with their layers, and each rank's layers are divided once more among its virtual stages.
    """
    if layout.by_hand:
        return None
    virtual = layout.vpp or 1
    given = {"first": layout.first, "last": layout.last}
    for which, count in given.items():
        if count is not None and count % virtual:
            return f"num_layers_in_{which}_pipeline_stage", count, f"{virtual} virtual stages"
    uneven = [count for count in given.values() if count is not None]
    left, stages = layers + layout.extra - sum(uneven), layout.pp - len(uneven)
    name = "layers left for the other stages" if uneven else "num_hidden_layers"
    if layout.extra:
        name += f" + {layout.extra}"
    if stages < 0 or left < 0 or bool(stages) != bool(left) or (stages and left % stages):
        return name, left, f"{stages} pipeline stages"
    if stages and left // stages % virtual:
        return f"{name} / {stages} pipeline stages", left // stages, f"{virtual} virtual stages"
    return None


def choices(layout: Layout, shape: Shape | None, conflict: Conflict, size: str) -> tuple[int, ...]:
    """The nearest values of a size that leave no conflict, else those that end this one. 1 virtual stage is null."""
    candidates = range(1, shape.layers + 1 if shape else 2) if size == "vpp" else divisors(layout.world)
    after: dict[int, set[str]] = {}
    for value in candidates:
        changes: dict[str, Any] = {size: None if size == "vpp" and value == 1 else value}
        after[value] = {other.kind for other in conflicts(replace(layout, **changes), shape)}
    clean = [value for value, left in after.items() if not left]
    return nearest(layout.size(size), clean or [value for value, left in after.items() if conflict.kind not in left])


@refuses(
    Refusal(
        "ranks (`trainer.nnodes` x `trainer.n_gpus_per_node`) that TP x PP x CP, or expert TP x EP x "
        "PP, does not divide. Expert TP is TP where it is null",
        because="Megatron raises",
        change="one of the sizes",
        evidence="`megatron/core/parallel_state.py:822`, `:881`",
    ),
    Refusal(
        "attention heads, vocabulary, width of the dense layers or of the shared expert and TP; width"
        " of the experts and expert TP; heads of linear attention and TP x CP; experts and EP",
        because="Megatron raises while the model is built. Megatron-Bridge does not pad the vocabulary, "
        "unless `override_transformer_config.should_pad_vocab` says so",
        change="TP, expert TP, CP or EP",
        evidence="`megatron/core/transformer/transformer_config.py:1323`, `megatron/core/utils.py:556`, "
        "`megatron/core/transformer/moe/moe_layer.py:185`; "
        "`megatron/bridge/models/gpt_provider.py:183`",
    ),
    Refusal(
        "key-value heads that are neither a multiple nor a divisor of TP",
        because="Megatron raises",
        change="TP",
        evidence="`transformer_config.py:1338`",
    ),
    Refusal(
        "layers that the pipeline stages do not divide, or a stage's that its virtual stages do not; "
        "virtual stages without PP. `num_layers_in_first_pipeline_stage` and `..._last_...` of "
        "`override_transformer_config` are taken away first; a `pipeline_model_parallel_layout` is "
        "left to Megatron",
        because="Megatron raises",
        change="PP or virtual stages",
        evidence="`transformer_config.py:1988-2110`, `parallel_state.py:828`",
    ),
    Refusal(
        "EP of 2 or more and a dense model",
        because="Megatron raises",
        change="EP 1",
        evidence="`transformer_config.py:1468`",
    ),
    Refusal(
        "experts, TP of 2 or more, `megatron.sequence_parallel=False`",
        because="runs until the first training step, then raises. With TP 1 verl switches it off itself",
        change="`megatron.sequence_parallel=True`",
        evidence="`megatron/core/transformer/moe/moe_layer.py:629`",
    ),
    Refusal(
        "a critic or reference with other sizes than the actor. The critic's are 1 unless given",
        because="they share a process, and Megatron's groups are made once in it: whoever starts first "
        "decides, critic before reference before actor",
        change="the actor's sizes",
        evidence="`workers/engine/megatron/transformer_impl.py:244`",
    ),
)
def megatron_layout(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    found = megatron_engines(view)
    for engine in found:
        layout = read_layout(view, engine)
        if engine.path == REF and Engine(ACTOR) in found and layout == read_layout(view, Engine(ACTOR)):
            continue  # what the reference takes over from the actor is said of the actor
        model, more = engine_model(view, engine), f"{engine.megatron}.override_transformer_config"
        own = view(f"{engine.megatron}.vanilla_mbridge", False) or view(f"{more}.should_pad_vocab", False)
        shape = None if model is None else read_shape(model, padded_vocabulary=bool(own))
        for conflict in conflicts(layout, shape):
            yield _refusal(view, engine, layout, shape, conflict)
        if shape is not None and engine.trains:
            yield from _experts_without_sequence_parallelism(view, engine, layout, shape)
    yield from _one_layout_a_process(view, found)


def _refusal(view: View, engine: Engine, layout: Layout, shape: Shape | None, conflict: Conflict) -> NereusError:
    values = {size: choices(layout, shape, conflict, size) for size in conflict.sizes}
    if not any(values.values()):  # no single size ends it
        values = dict.fromkeys(conflict.sizes, (1,))
    ways = [_override(view, engine, size, value) for size, found in values.items() for value in found]
    return NereusError(
        conflict.what,
        where=", ".join(f"{engine.megatron}.{KEYS[size]}" for size in conflict.sizes),
        expected=conflict.expected,
        got=conflict.got,
        change=", or ".join(ways),
    )


def _override(view: View, engine: Engine, size: str, value: int) -> str:
    return view.override(f"{engine.megatron}.{KEYS[size]}", "null" if size == "vpp" and value == 1 else value)


def _experts_without_sequence_parallelism(
    view: View, engine: Engine, layout: Layout, shape: Shape
) -> Iterator[NereusError]:
    key = f"{engine.megatron}.sequence_parallel"
    given = view(f"{engine.megatron}.override_transformer_config.sequence_parallel", view(key, True))
    if shape.experts and layout.tp > 1 and not given:
        yield NereusError(
            f"a model with {shape.experts} experts does not train on {layout.tp} tensor-parallel ranks without sequence"
            " parallelism: Megatron-Core raises in its first step (megatron/core/transformer/moe/moe_layer.py:629)",
            where=key,
            expected="True",
            got="False",
            change=f"{view.override(key, True)}, or {_override(view, engine, 'tp', 1)}",
        )


def _one_layout_a_process(view: View, found: tuple[Engine, ...]) -> Iterator[NereusError]:
    """verl puts actor, reference and critic into one process, and Megatron's groups are made once in it."""
    if Engine(ACTOR) not in found:
        return
    actor = read_layout(view, Engine(ACTOR))
    for engine in found:
        other = read_layout(view, engine)
        same = {"etp"} if other.etp is None and actor.etp is None else set()
        differing = [size for size in KEYS if size not in same and other.size(size) != actor.size(size)]
        if differing:
            yield NereusError(
                "engines of one process cannot have different layouts: the first to start makes the groups of all "
                "(verl/workers/engine/megatron/transformer_impl.py:244)",
                where=", ".join(f"{engine.megatron}.{KEYS[size]}" for size in differing),
                expected=", ".join(f"{KEYS[size]}={actor.size(size)}, as the actor" for size in differing),
                got=", ".join(str(other.size(size)) for size in differing),
                change=" ".join(_override(view, engine, size, actor.size(size)) for size in differing),
            )
