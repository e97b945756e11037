"""Sets of units of one GPU's ruler, as integers and as PostgreSQL's int4multirange.

In memory a set is a bit mask: bit ``i`` is unit ``i``, so "do these clash" is ``a & b != 0``. In
the database it is an ``int4multirange``. ``WHOLE`` is every unit whatever the ruler's length: all
bits set, written ``{[0,)}``, so that it clashes with any booking of the GPU.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

WHOLE: Final = -1

_MULTIRANGE = re.compile(r"\{(\[[0-9]+,[0-9]*\)(,\[[0-9]+,[0-9]*\))*)?\}")
_RANGE = re.compile(r"\[([0-9]+),([0-9]*)\)")


def span(start: int, size: int) -> int:
    """Return the mask of ``size`` units from ``start`` on."""
    return ((1 << size) - 1) << start


def ranges(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the maximal half-open runs ``[low, high)`` of a finite mask, lowest first."""
    if mask < 0:
        raise ValueError("an unbounded set has no finite runs")
    low = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        low += zeros
        mask >>= zeros
        ones = ((mask + 1) & ~mask).bit_length() - 1
        yield low, low + ones
        low += ones
        mask >>= ones


def bits(mask: int) -> Iterator[int]:
    """Yield the units of a finite mask, lowest first."""
    for low, high in ranges(mask):
        yield from range(low, high)


def lowest(mask: int, count: int) -> int:
    """Return ``count`` units of ``mask``, from the tightest run that holds them all if one does.

    A contiguous piece keeps the database's index small; where none is long enough, the lowest units
    are taken. Raises ValueError when the mask holds fewer units.
    """
    tightest = start = 0
    for low, high in ranges(mask):
        if high - low >= count and not 0 < tightest <= high - low:
            tightest, start = high - low, low
    if tightest:
        return span(start, count)
    taken = 0
    for low, high in ranges(mask):
        size = min(count, high - low)
        taken |= span(low, size)
        count -= size
        if count == 0:
            return taken
    raise ValueError("not enough free units")


@lru_cache(maxsize=4096)
def to_multirange(mask: int) -> str:
    """Write a mask as PostgreSQL's int4multirange, ``{[0,4),[8,9)}``; ``WHOLE`` is ``{[0,)}``."""
    if mask == WHOLE:
        return "{[0,)}"
    return "{" + ",".join(f"[{low},{high})" for low, high in ranges(mask)) + "}"


def from_multirange(text: str) -> int:
    """Read what `to_multirange` or PostgreSQL writes; an open end is every unit from there on."""
    if not _MULTIRANGE.fullmatch(text):
        raise ValueError(f"not a multirange of units: {text!r}")
    mask = 0
    for low, high in _RANGE.findall(text):
        mask |= span(int(low), int(high) - int(low)) if high else -1 << int(low)
    return mask
