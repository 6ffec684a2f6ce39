"""Extensions of one upstream class are composed in the order of their features, or refused with both names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from verl_ext.compat.extension import Extension, Slot, clashes, instances
from verl_ext.compat.touch import APPLIED, ARMED, Manifest
from verl_ext.errors import NereusError

UPSTREAM, MIXINS = "an_upstream_of_the_tests", "mixins_of_the_tests"


class Upstream:
    """What an upstream release defines."""

    def step(self) -> list[str]:
        return ["upstream"]

    def save(self) -> str:
        return "upstream"


class First:
    def step(self) -> list[str]:
        return ["first", *super().step()]


class Second:
    def step(self) -> list[str]:
        return ["second", *super().step()]

    def load(self) -> str:
        return "second"


class Selfish:
    def step(self) -> list[str]:
        return ["selfish"]


class Comprehensive:
    def step(self) -> list[str]:
        def inner() -> list[str]:
            return super(Comprehensive, self).step()

        return ["comprehensive", *inner()]


class Attribute:
    load = "a value"


class TheSlot(Slot):
    name, target = "upstream-slot", f"{UPSTREAM}:Upstream"
    also = ("another_upstream_of_the_tests",)
    why = upstream = remove_when = ""
    versions = {}  # noqa: RUF012


def extension(name: str, **attributes: Any) -> type[Extension]:
    values = {"name": name.lower(), "slot": TheSlot, "mixin": f"{MIXINS}:{name}", "why": "", "upstream": ""}
    return type(name, (Extension,), {**values, "remove_when": "", "versions": {}, **attributes})


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with the class, another that has it by name, and the mixins in a module that can be imported."""
    kind = type("Upstream", (Upstream,), {"__module__": UPSTREAM})
    for name in (UPSTREAM, "another_upstream_of_the_tests"):
        module = ModuleType(name)
        module.Upstream = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    mixins = ModuleType(MIXINS)
    mixins.__dict__.update({item.__name__: item for item in (First, Second, Selfish, Comprehensive, Attribute)})
    monkeypatch.setitem(sys.modules, MIXINS, mixins)
    return sys.modules[UPSTREAM]


def armed(*kinds: type[Extension]) -> Manifest:
    manifest = Manifest()
    manifest.arm(instances(kinds))
    return manifest


def test_extensions_are_composed_from_the_outside_in(upstream):
    armed(extension("First"), extension("Second"))
    assert upstream.Upstream().step() == ["first", "second", "upstream"]
    assert upstream.Upstream().load() == "second" and upstream.Upstream().save() == "upstream"


def test_the_other_order_is_the_other_way_round(upstream):
    armed(extension("Second"), extension("First"))
    assert upstream.Upstream().step() == ["second", "first", "upstream"]


def test_the_class_keeps_its_name_and_stands_wherever_it_stood(upstream):
    before = upstream.Upstream
    armed(extension("First"))
    assert upstream.Upstream is not before and issubclass(upstream.Upstream, before)
    assert (upstream.Upstream.__name__, upstream.Upstream.__module__) == ("Upstream", UPSTREAM)
    assert sys.modules["another_upstream_of_the_tests"].Upstream is upstream.Upstream


def test_an_extension_is_applied_when_its_class_is_composed(upstream):
    manifest = armed(extension("First"), extension("Second"))
    assert manifest.states() == {"first": APPLIED, "second": APPLIED, "upstream-slot": APPLIED}
    sys.modules.pop(UPSTREAM)
    assert armed(extension("First")).states() == {"first": ARMED, "upstream-slot": ARMED}


def test_a_class_is_extended_once(upstream):
    armed(extension("First"))
    (slot,) = (touch for touch in instances([extension("First")]) if isinstance(touch, Slot))
    assert slot.compose(upstream.Upstream) is upstream.Upstream


def test_without_an_extension_there_is_no_slot():
    assert instances([]) == []


def test_another_source_of_what_an_extension_relies_on_is_refused(upstream):
    with pytest.raises(NereusError, match="extension first does not know this version"):
        armed(extension("First", relies_on=((f"{UPSTREAM}:Upstream.step", "0123456789ab"),)))


@pytest.mark.parametrize(
    "kinds", [("First", "Second"), ("Second", "First"), ("First", "Selfish"), ("Comprehensive", "Selfish")]
)
def test_what_can_be_composed_is_let_through(upstream, kinds):
    assert list(clashes([extension(kind) for kind in kinds])) == []


@pytest.mark.parametrize(
    ("kinds", "method"),
    [(("Selfish", "First"), "step"), (("First", "Selfish", "Second"), "step"), (("Attribute", "Second"), "load")],
)
def test_what_takes_a_method_from_another_is_refused_with_both_names(upstream, kinds, method):
    (error,) = clashes([extension(kind) for kind in kinds])
    assert method in error.got and f"mixins_of_the_tests:{kinds[-1]}.{method}" in error.where
    assert error.what.startswith(("selfish and", "attribute and"))
