from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from verl_ext import config

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_options", ROOT / "docs" / "generate_options.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator):
    written = generator.PAGE.read_text(encoding="utf-8")
    assert written == generator.page(), "run .venv/bin/python docs/generate_options.py"


def test_every_option_has_one_row(generator):
    rows = re.findall(r"^\| `nereus\.([\w.]+)` \|", generator.page(), re.MULTILINE)
    assert tuple(rows) == config.keys()


@dataclass
class Sample:
    """A group."""

    several: int = 3
    """How many,
    on two lines, with a | in it."""

    perhaps: float | None = None
    """Maybe."""


def test_a_row_holds_type_default_and_meaning(generator):
    text = generator.table("sample", Sample)
    assert "## nereus.sample\n\nA group.\n" in text
    assert "| `nereus.sample.several` | integer | `3` | How many, on two lines, with a \\| in it. |" in text
    assert "| `nereus.sample.perhaps` | number or null | `null` | Maybe. |" in text


@dataclass
class Silent:
    """A group."""

    unexplained: bool = True


def test_an_option_without_a_meaning_is_an_error(generator):
    with pytest.raises(SystemExit, match=r"Silent\.unexplained"):
        generator.table("silent", Silent)


def test_check_tells_an_outdated_page(generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator, "PAGE", tmp_path / "options.md")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    generator.PAGE.write_text("old")
    assert generator.main(["--check"]) == 1
