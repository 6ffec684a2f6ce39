"""What divides what, and what would. Pure functions of whole numbers, each positive unless it says otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable


def divisors(number: int) -> tuple[int, ...]:
    """Every size that divides `number`, ascending: (1, 2, 3, 6) of 6."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


def nearest(value: int, choices: Iterable[int]) -> tuple[int, ...]:
    """The next of `choices` below and above `value`, ascending; one of them, or none, where there is no other."""
    others = sorted(set(choices) - {value})
    below, above = [size for size in others if size < value], [size for size in others if size > value]
    return (*below[-1:], *above[:1])


def nearest_sizes(size: int, multiple: int) -> tuple[int, ...]:
    """The positive multiples of `multiple` next to `size`; `size` alone when it is one: (8, 12) of 10 and 4."""
    if size % multiple == 0:
        return (size,)
    below = size - size % multiple
    return tuple(number for number in (below, below + multiple) if number > 0)


def step_for(total: int, factor: int) -> int:
    """The least count of groups of `factor` samples that `total` divides; the others are its multiples."""
    return total // math.gcd(total, factor)


def padded(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple
