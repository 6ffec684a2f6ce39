"""The one shape of an error in this package: what, where, expected, got, what to change."""

from __future__ import annotations

from typing import Any


class NereusError(Exception):
    """A refusal with everything a person needs to act on it.

    Args:
        what: one sentence: what is wrong.
        where: the option, file, process or function it is about.
        expected: what would have been right.
        got: what was found.
        change: what to do about it (an override to paste where there is one).
    """

    def __init__(self, what: str, *, where: str, expected: str, got: str, change: str) -> None:
        self.what, self.where, self.expected, self.got, self.change = what, where, expected, got, change
        super().__init__(what)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default exception pickling, and Ray pickles every exception.
        return _rebuild, (type(self), self.what, self.where, self.expected, self.got, self.change)

    def __str__(self) -> str:
        return (
            f"{self.what}\n"
            f"  where:    {self.where}\n"
            f"  expected: {self.expected}\n"
            f"  got:      {self.got}\n"
            f"  change:   {self.change}"
        )


def _rebuild(cls: type[NereusError], what: str, where: str, expected: str, got: str, change: str) -> NereusError:
    return cls(what, where=where, expected=expected, got=got, change=change)
