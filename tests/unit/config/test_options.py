"""CF-01: every option can be set plainly, and whatever is not an option is an error that names the right one."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator

import pytest
from hydra.errors import ConfigCompositionException
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from verl_ext import config
from verl_ext.config import NereusOptions, check_overrides, check_switch, nearest
from verl_ext.errors import NereusError

# One right value of each type: as written on the command line, and as it has to arrive.
RIGHT = {
    str: ("words", "words"),
    int: ("7", 7),
    float: ("0.25", 0.25),
    bool: ("true", True),
    list[str]: ("['a=0.5']", ["a=0.5"]),
}
WRONG = {int: "several", float: "'a while'", bool: "perhaps", list[str]: "one"}


def options(cls: type = NereusOptions, prefix: str = "") -> Iterator[tuple[str, type, bool]]:
    """Every option as (key, type, whether null is a value), from the dataclasses alone."""
    for name, kind in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from options(kind, f"{prefix}{name}.")
        elif isinstance(kind, types.UnionType):
            (inner,) = [part for part in typing.get_args(kind) if part is not type(None)]
            yield prefix + name, inner, True
        else:
            yield prefix + name, kind, False


OPTIONS = {key: (kind, optional) for key, kind, optional in options()}
every_option = pytest.mark.parametrize("key", OPTIONS)
keys = st.sampled_from(list(OPTIONS))


def right(key: str) -> tuple[str, object]:
    return ("R3", "R3") if key == "routing.mode" else RIGHT[OPTIONS[key][0]]


def nested(key: str, value: object) -> dict:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def built(composed) -> NereusOptions:
    return NereusOptions.from_mapping(OmegaConf.to_container(composed.nereus, resolve=True))


def get(values: object, key: str) -> object:
    for part in key.split("."):
        values = getattr(values, part)
    return values


def test_fields_and_composed_keys_are_the_same(compose):
    def leaves(node, prefix=""):
        for name, value in node.items():
            yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]

    composed = OmegaConf.to_container(compose().nereus)
    assert set(leaves(composed)) == set(config.keys()) == set(OPTIONS)


def test_options_compose_with_megatron_too(compose):
    composed = compose("nereus.report.title=mine", engine="megatron")
    assert composed.actor_rollout_ref.actor.strategy == "megatron"
    assert built(composed).report.title == "mine"


def test_without_the_switch_there_is_nothing_of_nereus(compose):
    composed = compose(switch=False)
    assert "nereus" not in composed and "nereus" not in composed.actor_rollout_ref
    assert "nereus" not in composed.hydra.callbacks


@every_option
def test_a_plain_override_sets_it(compose, key):
    text, value = right(key)
    assert get(built(compose(f"nereus.{key}={text}")), key) == value


@every_option
def test_with_a_plus_hydra_says_that_it_exists(compose, key):
    text, value = right(key)
    # To something that is null, and to a list, Hydra adds.
    if OPTIONS[key][1] or OPTIONS[key][0] == list[str]:
        assert get(built(compose(f"+nereus.{key}={text}")), key) == value
    else:
        with pytest.raises(ConfigCompositionException, match=rf"An item is already at 'nereus\.{key}'"):
            compose(f"+nereus.{key}={text}")


@every_option
def test_null_is_a_value_only_where_it_says_so(compose, key):
    if OPTIONS[key][1]:
        assert get(built(compose(f"nereus.{key}=null")), key) is None
    else:
        with pytest.raises(ConfigCompositionException) as raised:
            compose(f"nereus.{key}=null")
        assert f"field 'nereus.{key}' is not Optional" in str(raised.value.__cause__)


@pytest.mark.parametrize("key", [key for key, (kind, _) in OPTIONS.items() if kind in (int, float)])
def test_a_quoted_number_is_a_number(compose, key):
    text, value = right(key)
    found = get(built(compose(f"nereus.{key}='{text}'")), key)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("key", [key for key, (kind, _) in OPTIONS.items() if kind in WRONG])
def test_a_wrong_type_is_an_error_that_names_the_option(compose, key):
    override = f"nereus.{key}={WRONG[OPTIONS[key][0]]}"
    with pytest.raises(ConfigCompositionException) as raised:
        compose(override)
    assert f"nereus.{key}" in str(raised.value)


def test_values_of_another_part_of_the_config_can_be_used(compose):
    composed = compose("nereus.report.title='${trainer.experiment_name}'", "trainer.experiment_name=mine")
    assert built(composed).report.title == "mine"


# ---- misspelt


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """(a key with one slip in its last word, the key that was meant)"""
    key = draw(keys)
    section, _, word = key.rpartition(".")
    at = draw(st.integers(0, len(word) - 1))
    slip = draw(st.sampled_from(["left out", "doubled", "swapped"]))
    if slip == "left out":
        wrong = word[:at] + word[at + 1 :]
    elif slip == "doubled":
        wrong = word[:at] + word[at] + word[at:]
    else:
        wrong = word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    assume(wrong and f"{section}.{wrong}" not in OPTIONS)
    return f"{section}.{wrong}", key


@given(misspelt(), st.sampled_from(["", "+", "++"]))
def test_a_slip_on_the_command_line_is_answered_with_the_option_that_was_meant(pair, plus):
    wrong, meant = pair
    with pytest.raises(NereusError) as raised:
        check_overrides(["trainer.nnodes=1", f"{plus}nereus.{wrong}=1"])
    assert raised.value.where == f"nereus.{wrong}"
    assert raised.value.change == f"did you mean nereus.{meant}?"


@given(misspelt())
def test_a_slip_that_hydra_lets_pass_is_answered_too(pair):
    wrong, meant = pair
    with pytest.raises(NereusError) as raised:
        NereusOptions.from_mapping(nested(wrong, 1))
    assert raised.value.change == f"did you mean nereus.{meant}?"


def test_hydra_lets_a_new_key_pass_and_the_options_do_not(compose):
    composed = compose("+nereus.routing.mod=R3")
    with pytest.raises(NereusError, match=r"did you mean nereus\.routing\.mode"):
        built(composed)


def test_a_whole_section_may_be_given(compose):
    check_overrides(["nereus.routing={mode:R3}"])
    assert built(compose("nereus.routing={mode:R3}")).routing.mode == "R3"


@given(keys)
def test_options_as_they_are_pass(key):
    check_overrides(
        ["+plugins=nereus", f"nereus.{key}={right(key)[0]}", "actor_rollout_ref.rollout.n=4", "--cfg", "job"]
    )


def test_options_where_nobody_reads_them_are_refused():
    with pytest.raises(NereusError) as raised:
        check_overrides(["+actor_rollout_ref.nereus.routing.mode=R3"])
    assert raised.value.change == "nereus.routing.mode=R3"


def test_nothing_is_guessed_where_nothing_is_near():
    assert nearest("zebra", config.keys()) is None
    with pytest.raises(NereusError) as raised:
        check_overrides(["nereus.zebra=1"])
    assert "did you mean" not in raised.value.change


@pytest.mark.parametrize("plus", ["", "+"])
def test_a_removed_option_is_answered_with_its_replacement(compose, monkeypatch: pytest.MonkeyPatch, plus):
    monkeypatch.setitem(config.REMOVED, "routing.kind", "routing.mode")
    with pytest.raises(NereusError) as on_the_command_line:
        check_overrides([f"{plus}nereus.routing.kind=R3"])
    with pytest.raises(NereusError) as in_the_config:
        built(compose("+nereus.routing.kind=R3"))
    for raised in (on_the_command_line, in_the_config):
        assert raised.value.what == "nereus.routing.kind was removed"
        assert raised.value.change == "write nereus.routing.mode instead"


# ---- the switch


@pytest.mark.parametrize(
    "argument",
    [
        *("+plugins=nereus", "+plugins=[nereus]", "+plugins='nereus'", "+plugins@_global_=nereus", "+plugins@=nereus"),
        *("plugins=nereus", "trainer.project_name=nereus", "+plugin=other", "nereus.report.title=nereus"),
    ],
)
def test_spellings_that_work_and_what_is_no_switch_pass(argument):
    check_switch([argument])


@pytest.mark.parametrize(
    "argument",
    ["+plugin=nereus", "+pluigns=nereus", "+plugins@nereus=nereus", "+plugins@foo.bar=nereus", "+Plugins=nereus"],
)
def test_spellings_that_hydra_takes_and_that_do_nothing_are_refused(argument):
    with pytest.raises(NereusError) as raised:
        check_switch(["trainer.nnodes=1", argument])
    assert raised.value.got == argument
    assert raised.value.change == "+plugins=nereus"


# ---- values

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()), st.just({}))


def fits(value: object, kind: type, optional: bool) -> bool:
    if value is None:
        return optional
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, list) if kind == list[str] else type(value) is kind


@given(keys, VALUES)
def test_a_value_of_another_type_names_the_option_and_what_it_takes(key, value):
    kind, optional = OPTIONS[key]
    assume(not fits(value, kind, optional))
    with pytest.raises(NereusError) as raised:
        NereusOptions.from_mapping(nested(key, value))
    assert raised.value.where == f"nereus.{key}"
    assert raised.value.got.startswith(repr(value))


@given(keys, VALUES)
def test_any_value_is_taken_as_it_is_or_refused_with_all_five_parts(key, value):
    try:
        found = get(NereusOptions.from_mapping(nested(key, value)), key)
    except NereusError as error:
        assert all((error.what, error.where, error.expected, error.got, error.change))
    else:
        assert found == (float(value) if OPTIONS[key][0] is float and value is not None else value)


def test_a_section_that_is_no_section_is_refused():
    with pytest.raises(NereusError):
        NereusOptions.from_mapping({"routing": "R3"})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_is_a_number_above_zero_and_no_absence_of_one(value):
    with pytest.raises(NereusError) as raised:
        NereusOptions.from_mapping({"weight_sync": {"stall_timeout_s": value}})
    assert raised.value.where == "nereus.weight_sync.stall_timeout_s"


def test_an_unknown_mode_is_answered_with_the_nearest():
    with pytest.raises(NereusError) as raised:
        NereusOptions.from_mapping({"routing": {"mode": "r3"}})
    assert raised.value.change.startswith("nereus.routing.mode=")
    assert "R3" in raised.value.expected


@pytest.mark.parametrize("baseline", ["half", "=0.5", "constant=half"])
def test_a_baseline_is_a_label_and_a_number(baseline):
    with pytest.raises(NereusError) as raised:
        NereusOptions.from_mapping({"report": {"baselines": [baseline]}})
    assert raised.value.got == repr(baseline)


def test_a_baseline_s_label_may_hold_an_equals_sign():
    found = NereusOptions.from_mapping({"report": {"baselines": ["p=0.5=0.25"]}})
    assert found.report.levels() == {"p=0.5": 0.25}


# ---- digest


def test_the_digest_tells_any_two_sets_of_options_apart():
    changed = {key: NereusOptions.from_mapping(nested(key, right(key)[1])).digest() for key in OPTIONS}
    assert len({NereusOptions().digest(), *changed.values()}) == len(changed) + 1


def test_the_digest_is_of_the_values_not_of_how_they_came():
    spelt = {"weight_sync": {"stall_timeout_s": 45}, "routing": {}}
    assert NereusOptions.from_mapping(spelt).digest() == NereusOptions().digest()
