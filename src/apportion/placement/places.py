"""Places in the fleet's order, and who stands at each: found in one step, however large the fleet.

A place is a number that says when its turn comes, by its high bits, and where it is kept, by its
low ones. Finding it by a table of all places instead costs three looks into cold memory.
"""

from typing import Final, Generic, TypeVar

from apportion.placement.keys import mixed

_SEATS: Final = 2**24 - 1
"""More than there are nodes in any pool."""

Who = TypeVar("Who")


class Places(Generic[Who]):
    """Who stands at which place."""

    def __init__(self) -> None:
        self._seats: list[Who | None] = []
        self._left: list[int] = []

    def give(self, number: int) -> int:
        """Return a place for a number: the order of places has nothing to do with the numbers."""
        if self._left:
            seat = self._left.pop()
        else:
            seat = len(self._seats)
            self._seats.append(None)
        return mixed(number) & ~_SEATS | seat

    def put(self, place: int, who: Who) -> None:
        """Have somebody stand at a place that was given."""
        self._seats[place & _SEATS] = who

    def at(self, place: int) -> Who:
        """Return who stands at a place."""
        who = self._seats[place & _SEATS]
        assert who is not None  # noqa: S101 - a place is given back when nobody stands there
        return who

    def give_back(self, place: int) -> None:
        """Let the next one have the seat."""
        seat = place & _SEATS
        self._seats[seat] = None
        self._left.append(seat)
