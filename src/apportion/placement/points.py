"""Pairs of whole numbers: how many are at least so large in both, without looking at each."""

from bisect import bisect_left, insort
from typing import Final

_BLOCK: Final = 256
_BITS: Final = 64
"""Bits of a point's second number and of its id, which stand below the first number."""
_MASK: Final = 2**_BITS - 1


class Points:
    """A set of points (x, y, id), in blocks by x; each block also has its y in order.

    Counting takes one search in each block of at most ``block`` points, and a look at the points
    of one of them.
    """

    __slots__ = ("_block", "_blocks", "_lasts", "_ys")

    def __init__(self, block: int = _BLOCK) -> None:
        self._block = block
        self._blocks: list[list[int]] = []
        self._lasts: list[int] = []
        self._ys: list[list[int]] = []

    def add(self, x: int, y: int, number: int) -> None:
        """Take in a point that is not there."""
        key = (x << _BITS | y) << _BITS | number
        if not self._blocks:
            self._blocks.append([])
            self._lasts.append(key)
            self._ys.append([])
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        block, ys = self._blocks[at], self._ys[at]
        insort(block, key)
        insort(ys, y)
        if len(block) > self._block:
            half = len(block) // 2
            self._blocks[at : at + 1] = block[:half], block[half:]
            self._ys[at : at + 1] = (sorted(map(_y, each)) for each in (block[:half], block[half:]))
            self._lasts[at : at + 1] = block[half - 1], block[-1]
        else:
            self._lasts[at] = block[-1]

    def remove(self, x: int, y: int, number: int) -> None:
        """Take out a point that is there."""
        key = (x << _BITS | y) << _BITS | number
        at = bisect_left(self._lasts, key)
        block, ys = self._blocks[at], self._ys[at]
        del block[bisect_left(block, key)]
        del ys[bisect_left(ys, y)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at], self._ys[at]

    def at_least(self, x: int, y: int) -> int:
        """Count the points with at least this x and at least this y."""
        key = x << 2 * _BITS
        at = bisect_left(self._lasts, key)
        if at == len(self._blocks):
            return 0
        block = self._blocks[at]
        found = sum(1 for each in block[bisect_left(block, key) :] if _y(each) >= y)
        return found + sum(len(ys) - bisect_left(ys, y) for ys in self._ys[at + 1 :])


def _y(key: int) -> int:
    return key >> _BITS & _MASK
