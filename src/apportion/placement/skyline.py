"""How much is held at each instant, kept so that the most in a window is cheap to ask for."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

FOREVER: Final = 2**62
NEVER: Final = -FOREVER


class Skyline:
    """A step function of time: whole amounts added and taken off over half-open windows.

    ``top`` is the most held at any instant. Asking costs two binary searches and a maximum over the
    steps within the window; a change costs one pass over the steps.
    """

    __slots__ = ("_levels", "_times", "top")

    def __init__(self) -> None:
        self._times = [NEVER]
        self._levels = [0]
        self.top = 0

    def add(self, start: int, end: int, amount: int) -> None:
        """Add ``amount``, which may be negative, throughout [start, end)."""
        first, last = self._step_at(start), self._step_at(end)
        for at in range(first, last):
            self._levels[at] += amount
        # Steps that no longer are any would pile up with every booking that came and went.
        for at in (last, first):
            if at and self._levels[at] == self._levels[at - 1]:
                del self._times[at], self._levels[at]
        self.top = max(self._levels)

    def peak(self, start: int, end: int) -> int:
        """Return the most held at one instant of [start, end)."""
        first = bisect_right(self._times, start) - 1
        return max(self._levels[first : bisect_left(self._times, end)])

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, amount) for each stretch of time in which some is held."""
        ends = [*self._times[1:], FOREVER]
        for start, end, level in zip(self._times, ends, self._levels, strict=True):
            if level:
                yield start, end, level

    def _step_at(self, instant: int) -> int:
        """Return the index of the step that begins at ``instant``, made if there is none."""
        at = bisect_left(self._times, instant)
        if at == len(self._times) or self._times[at] != instant:
            self._times.insert(at, instant)
            self._levels.insert(at, self._levels[at - 1])
        return at
