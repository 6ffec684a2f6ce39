"""Write what the documents take from the code: options, refusals, what a run touches, and what works.

.venv/bin/python docs/generate.py            write it
.venv/bin/python docs/generate.py --check    exit 1 when something is not what would be written

docs/options.md is written as a whole. The other pages are written by hand, but for their blocks:

    <!-- generated: NAME -->
    ...
    <!-- end -->
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from verl_ext import config, options, preflight
from verl_ext.compat.touch import Touch
from verl_ext.feature import Feature, Rule
from verl_ext.integrations.features import OWN
from verl_ext.integrations.slots import SLOTS

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("options.md")

# What there is to say in the README of what is no feature of this version.
OTHERS = (
    ("preflight", "refuses what verl would accept and not do", "works", "unit tests"),
    ("`nereus doctor`", "what is installed, what can work, and why not", "works", "unit tests"),
    ("rollout with SGLang", "", "written against 0.5.12", "not run"),
    ("training with Megatron on GPUs", "nothing of nereus is specific to it", "not run", "not run"),
    ("shared-prompt replay", "RL on prompts far beyond memory", "not in this version", ""),
    ("FP8 rollout and KV cache", "", "not in this version", ""),
    ("LoRA on experts", "", "not in this version", ""),
    ("elastic jobs", "", "not in this version", ""),
)

HEAD = """\
<!-- Written by docs/generate.py from the dataclasses of the options. Do not edit. -->

# Options

Options stand under `nereus` on verl's own command line, without a `+`:

```bash
python -m verl.trainer.main_ppo ... +plugins=nereus nereus.weight_sync.stall_timeout_s=120
```

A key that does not exist, a value of the wrong type and a value outside its range each end the run before anything is
started; a misspelt key is answered with the nearest one. All options are part of one digest that every process reports
at the roll call.
"""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)


# ------------------------------------------------------------------------------------------------ options


def meanings(cls: type) -> dict[str, str]:
    """Field -> the string below it in the source, on one line."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(cls)).body[0]).body
    found = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def kind(annotation: object) -> str:
    """A type as a person says it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(kind(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return "list of " + kind(typing.get_args(annotation)[0])
    words: dict[object, str] = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    return words[annotation]


def literal(value: object) -> str:
    """A default as it is written on Hydra's command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return {"": '""'}.get(value, value) if isinstance(value, str) else repr(value)


def section(name: str, cls: type) -> str:
    """A group of options."""
    words, hints, defaults = meanings(cls), typing.get_type_hints(cls), cls()
    rows = []
    for item in dataclasses.fields(cls):
        if item.name not in words:
            raise SystemExit(f"{cls.__name__}.{item.name} has no text below it that says what it means")
        value = literal(getattr(defaults, item.name))
        meaning = words[item.name].replace("|", "\\|")
        rows.append((f"`nereus.{name}.{item.name}`", kind(hints[item.name]), f"`{value}`", meaning))
    intro = inspect.cleandoc(cls.__doc__ or "")
    return f"## nereus.{name}\n\n{intro}\n\n" + table(("Option", "Type", "Default", "Meaning"), rows) + "\n"


def options_page() -> str:
    """docs/options.md."""
    parts = [HEAD, *(section(name, cls) for name, cls in options.sections(config.NereusOptions).items())]
    if config.REMOVED:
        removed = (f"- `nereus.{old}`: write `nereus.{new}`" for old, new in config.REMOVED.items())
        parts.append("## Removed\n\n" + "\n".join(removed) + "\n")
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------ blocks


def refusals(rules: Iterable[Rule], first: str) -> str:
    """What rules refuse. Without a reason where none of them has one: what is missing is missing."""
    rows = [(rule.__name__, refusal) for rule in rules for refusal in rule.refusals]
    if not any(refusal.because for _, refusal in rows):
        return table((first, "What to change", "Rule"), ((r.setting, r.change, f"`{name}`") for name, r in rows))
    return table(
        (first, "What happens without nereus's check", "Evidence", "What to change", "Rule"),
        ((r.setting, r.because, r.evidence, r.change, f"`{name}`") for name, r in rows),
    )


def rules_of(*modules: str) -> list[Rule]:
    """The rules of preflight that stand in these modules of it, in the order in which they are asked."""
    places = {f"verl_ext.preflight.{module}" for module in modules}
    return [rule for rule in preflight.RULES if rule.module in places]


def touches(features: Iterable[Feature]) -> str:
    """What each feature touches, and where that has to be."""
    parts = []
    for feature in features:
        if feature.touches:
            rows = [_touch(touch) for touch in feature.touches]
            parts.append(f"### {feature.name}\n\n" + table(("", "Where", "Why", "Of"), rows))
    return "\n\n".join(parts)


def _touch(touch: type[Touch]) -> tuple[str, ...]:
    where = ", ".join(sorted(role.replace("_", " ") for role in touch.roles)) or "where it is imported"
    return (f"{touch.kind} `{touch.name}`", where, touch.why, f"`{touch.target}`")


def slots() -> str:
    """The upstream classes that features may extend."""
    return table(("Class", "How the composed class is found"), ((f"`{slot.target}`", slot.why) for slot in SLOTS))


def works(features: Iterable[Feature]) -> str:
    """The table of the README."""
    rows = [(feature.name, feature.summary, feature.state, feature.tested) for feature in features]
    return table(("Feature", "What it does", "State", "Tested how"), [*rows, *OTHERS])


BLOCKS: dict[str, dict[str, typing.Callable[[], str]]] = {
    "README.md": {"what works": lambda: works(OWN)},
    "docs/refusals.md": {
        "settings": lambda: refusals(rules_of("ignored", "replay"), "Setting"),
        "layouts": lambda: refusals(rules_of("layout", "batches"), "Setting"),
        "megatron": lambda: refusals(rules_of("megatron"), "Setting"),
        "inputs": lambda: refusals(rules_of("inputs", "machine"), "Situation"),
        "features": lambda: refusals([rule for feature in OWN for rule in feature.rules], "Setting"),
    },
    "docs/how-it-attaches.md": {"touches": lambda: touches(OWN), "slots": slots},
}


def filled(text: str, blocks: dict[str, typing.Callable[[], str]]) -> str:
    """A page with its blocks as they should be."""
    for name, make in blocks.items():
        start, end = f"<!-- generated: {name} -->\n", "\n<!-- end -->"
        found = re.search(re.escape(start) + ".*?" + re.escape(end), text, re.DOTALL)
        if found is None:
            raise SystemExit(f"the page has no block {name}")
        text = text[: found.start()] + start + make() + end + text[found.end() :]
    return text


def pages() -> dict[Path, str]:
    """Everything that is generated, as it should be."""
    found = {ROOT / name: filled((ROOT / name).read_text(encoding="utf-8"), blocks) for name, blocks in BLOCKS.items()}
    return {PAGE: options_page(), **found}


def main(arguments: list[str]) -> int:
    outdated = {path: text for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text}
    if arguments == ["--check"]:
        return 1 if outdated else 0
    for path, text in outdated.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
