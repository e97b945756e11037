"""Whole numbers in order, in blocks: adding one costs the same however many there are.

A block is an array, its numbers side by side: finding one among objects that lie all over memory
costs a large fleet most of a decision.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

NO_KEY: Final = 2**64
"""Above every key."""
_WORD: Final = 2**64 - 1
_CODE: Final = "Q"
_BLOCK: Final = 512


class Keys:
    """A sorted set of whole numbers below 2**64: what is added is not in it, what is removed is.

    ``first`` is the least of them, and ``NO_KEY`` where there are none.
    """

    __slots__ = ("_blocks", "_lasts", "first")

    def __init__(self) -> None:
        self._blocks: list[array[int]] = []
        self._lasts = array(_CODE)
        self.first = NO_KEY

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks:
            yield from block

    def add(self, key: int) -> None:
        """Take one in."""
        self.first = min(self.first, key)
        if not self._blocks:
            self._blocks.append(array(_CODE, (key,)))
            self._lasts.append(key)
            return
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            at -= 1
            self._lasts[at] = key
        block = self._blocks[at]
        block.insert(bisect_left(block, key), key)
        if len(block) > _BLOCK:
            half = len(block) // 2
            self._blocks.insert(at + 1, block[half:])
            self._lasts.insert(at + 1, block[-1])
            del block[half:]
            self._lasts[at] = block[-1]

    def remove(self, key: int) -> None:
        """Take one out."""
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]
        if key == self.first:
            self.first = self._blocks[0][0] if self._blocks else NO_KEY


def mixed(number: int) -> int:
    """Return a 64-bit number that has nothing to do with the number given.

    A different number gives another one (each step can be undone): what is gone through by them is
    in one fixed order that no way of numbering can make a bad one.
    """
    number &= _WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _WORD
    return number ^ (number >> 31)
