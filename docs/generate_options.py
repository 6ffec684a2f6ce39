"""Write docs/options.md, the reference of every option, from the dataclasses in verl_ext/config.py.

.venv/bin/python docs/generate_options.py            write the page
.venv/bin/python docs/generate_options.py --check    exit 1 when the page is not what would be written
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from verl_ext import config

PAGE = Path(__file__).with_name("options.md")

HEAD = """\
<!-- Written by docs/generate_options.py from verl_ext/config.py. Do not edit. -->

# Options

Options stand under `nereus` on verl's own command line, without a `+`:

```bash
python -m verl.trainer.main_ppo ... +plugins=nereus nereus.weight_sync.stall_timeout_s=120
```

A key that does not exist, a value of the wrong type and a value outside its range each end the run before anything is
started; a misspelt key is answered with the nearest one. All options are part of one digest that every process reports
at the roll call.
"""


def sections(root: type = config.NereusOptions) -> Iterator[tuple[str, type]]:
    """The groups of options as (name, dataclass), in their order."""
    for item in dataclasses.fields(root):
        factory = item.default_factory
        if not (isinstance(factory, type) and dataclasses.is_dataclass(factory)):
            raise SystemExit(f"{root.__name__}.{item.name} is in no group; every option is nereus.GROUP.NAME")
        yield item.name, factory


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


def table(name: str, cls: type) -> str:
    words, hints, defaults = meanings(cls), typing.get_type_hints(cls), cls()
    rows = ["| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    for item in dataclasses.fields(cls):
        if item.name not in words:
            raise SystemExit(f"{cls.__name__}.{item.name} has no text below it that says what it means")
        cells = (
            f"`nereus.{name}.{item.name}`",
            kind(hints[item.name]),
            f"`{literal(getattr(defaults, item.name))}`",
            words[item.name].replace("|", "\\|"),
        )
        rows.append("| " + " | ".join(cells) + " |")
    return f"## nereus.{name}\n\n{inspect.cleandoc(cls.__doc__ or '')}\n\n" + "\n".join(rows) + "\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(table(name, cls) for name, cls in sections())]
    if config.REMOVED:
        removed = (f"- `nereus.{old}`: write `nereus.{new}`" for old, new in config.REMOVED.items())
        parts.append("## Removed\n\n" + "\n".join(removed) + "\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
