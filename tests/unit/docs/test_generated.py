"""What the documents take from the code is what the code says."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from verl_ext import config
from verl_ext.errors import NereusError
from verl_ext.feature import Feature, Refusal, refuses
from verl_ext.integrations.features import OWN
from verl_ext.preflight import RULES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date(generator):
    for path, text in generator.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run .venv/bin/python docs/generate.py"


def test_every_option_has_one_row(generator):
    rows = re.findall(r"^\| `nereus\.([\w.]+)` \|", generator.options_page(), re.MULTILINE)
    assert tuple(rows) == config.keys()


def test_every_rule_is_on_the_page_with_all_that_it_refuses(generator):
    page = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    rules = [*RULES, *(rule for feature in OWN for rule in feature.rules)]
    for rule in rules:
        assert rule.refusals, rule.__name__
        assert page.count(f"| `{rule.__name__}` |\n") == len(rule.refusals), rule.__name__


def test_every_touch_is_on_the_page_about_attachment():
    page = (ROOT / "docs" / "how-it-attaches.md").read_text(encoding="utf-8")
    for feature in OWN:
        for touch in feature.touches:
            assert f"| {touch.kind} `{touch.name}` |" in page


def test_a_feature_has_its_row_its_refusals_and_its_touches(generator):
    @refuses(Refusal("`a.b=c`", because="ignores it", evidence="`x.py:7`", change="`a.b=d`"))
    def never(_view: object, _options: object) -> Iterator[NereusError]:
        yield from ()

    toy = Feature(
        name="toy",
        summary="greets",
        state="works",
        tested="by hand",
        on=lambda run: True,
        rules=(never,),
        touches=OWN[0].touches[:1],
    )
    assert "| toy | greets | works | by hand |" in generator.works([toy])
    assert "| `a.b=c` | ignores it | `x.py:7` | `a.b=d` | `never` |" in generator.refusals(toy.rules, "Setting")
    assert "### toy\n" in generator.touches([toy]) and OWN[0].touches[0].why in generator.touches([toy])


@dataclass
class Sample:
    """A group."""

    several: int = 3
    """How many,
    on two lines, with a | in it."""

    perhaps: float | None = None
    """Maybe."""


def test_a_row_holds_type_default_and_meaning(generator):
    text = generator.section("sample", Sample)
    assert "## nereus.sample\n\nA group.\n" in text
    assert "| `nereus.sample.several` | integer | `3` | How many, on two lines, with a \\| in it. |" in text
    assert "| `nereus.sample.perhaps` | number or null | `null` | Maybe. |" in text


@dataclass
class Silent:
    """A group."""

    unexplained: bool = True


def test_an_option_without_a_meaning_is_an_error(generator):
    with pytest.raises(SystemExit, match=r"Silent\.unexplained"):
        generator.section("silent", Silent)


def test_a_page_without_its_block_is_an_error(generator):
    with pytest.raises(SystemExit, match="no block gone"):
        generator.filled("# A page\n", {"gone": str})


def test_check_tells_an_outdated_page(generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator, "PAGE", tmp_path / "options.md")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    generator.PAGE.write_text("old")
    assert generator.main(["--check"]) == 1
