"""What a section of the options is: a dataclass, checked by itself, built from plain values with exact types."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from verl_ext.errors import NereusError

T = TypeVar("T")


class Section:
    """Base of a dataclass of options. The string below each field says what it means, for the reference."""

    def check(self, path: str) -> None:
        """Raise NereusError for a value outside its range. `path` is where it stands, e.g. `nereus.routing`."""


def positive(name: str, value: float | None) -> None:
    """Raise NereusError unless the value is null or a finite number above zero.

    Neither nan nor inf: a wait without a limit is what a limit is for.
    """
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise NereusError(
            f"{name} has to be a number above zero",
            where=name,
            expected="a positive, finite number",
            got=repr(value),
            change=f"give {name} a positive value",
        )


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise NereusError, with the nearest of `choices`, unless the value is one of them."""
    if value not in choices:
        raise NereusError(
            f"{name}={value!r} is not one of its values",
            where=name,
            expected="one of " + ", ".join(choices),
            got=repr(value),
            change=f"{name}={nearest(value, choices) or choices[0]}",
        )


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice that `word` most likely meant, or None when nothing is close."""
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if not found:
        by_leaf = {choice.rsplit(".", 1)[-1]: choice for choice in choices}
        leaf = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(by_leaf), n=1, cutoff=0.6)
        return by_leaf[leaf[0]] if leaf else None
    return found[0]


def sections(root: type) -> dict[str, type]:
    """Name -> dataclass of every section of a root, in their order."""
    found = {item.name: _nested(item) for item in dataclasses.fields(root)}
    return {name: section for name, section in found.items() if section is not None}


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option below `cls` as (dotted path, type)."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        nested = _nested(item)
        if nested is not None:
            yield from leaves(nested, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, hints[item.name]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key of nested plain values, dotted."""
    for name, value in values.items():
        path = prefix + str(name)
        if isinstance(value, Mapping):
            yield from flatten(value, path + ".")
        else:
            yield path


def build(cls: type[T], values: Mapping[str, Any], path: str) -> T:
    """An instance of a dataclass of options from plain values; what is missing has its default.

    Raises:
        NereusError: a value of another type. An int is taken where a float is asked for; nothing else is converted.
    """
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if item.name not in values:
            continue
        value, where = values[item.name], f"{path}.{item.name}"
        nested = _nested(item)
        arguments[item.name] = build(nested, value, where) if nested else _convert(value, hints[item.name], where)
    return cls(**arguments)


def _nested(item: dataclasses.Field[Any]) -> type | None:
    factory = item.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def _convert(value: Any, kind: Any, where: str) -> Any:
    alternatives = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for alternative in alternatives:
        if alternative == list[str] and isinstance(value, list):
            return [_convert(item, str, f"{where}[{index}]") for index, item in enumerate(value)]
        if alternative is float and isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return float(value)
        if type(value) is alternative:
            return value
    expected = " or ".join(getattr(alternative, "__name__", str(alternative)) for alternative in alternatives)
    raise NereusError(
        f"{where} has the wrong type",
        where=where,
        expected=expected,
        got=f"{value!r} ({type(value).__name__})",
        change=f"give {where} a value of type {expected}",
    )
