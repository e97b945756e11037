"""What ends next."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from apportion.placement.state import FOREVER, NodeState

Ending = tuple[int, int, str, int]
"""(end, place, holder, number): of a GPU, with the piece's number, or of a node, with ``HOST``."""

HOST = -1
_TOGETHER: Final = 20
"""Ends that differ in this many low bits only, about a second, lie together."""


class Endings:
    """What is held, by its end; entries that no longer hold lie about until their time.

    What is held for ever is not in here.
    """

    def __init__(self) -> None:
        self._ends: dict[int, list[Ending]] = {}
        self._least: dict[int, int] = {}
        self._next: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def first(self) -> int:
        """The first end that may still hold; FOREVER where there is none."""
        return self._least[self._next[0]] if self._next else FOREVER

    def add(self, ending: Ending) -> None:
        """Note an end."""
        if ending[0] >= FOREVER:
            return
        self._size += 1
        about = ending[0] >> _TOGETHER
        together = self._ends.get(about)
        if together is None:
            self._ends[about] = [ending]
            self._least[about] = ending[0]
            heapq.heappush(self._next, about)
        else:
            together.append(ending)
            self._least[about] = min(self._least[about], ending[0])

    def due(self, now: int) -> Iterator[Ending]:
        """Yield, and forget, what ends by ``now``."""
        while self.first <= now:
            about = heapq.heappop(self._next)
            del self._least[about]
            together = sorted(self._ends.pop(about))
            due = [each for each in together if each[0] <= now]
            self._size -= len(together)
            later = together[len(due) :]
            for each in later:
                self.add(each)
            yield from due
            if later:
                return

    def ascending(self) -> Iterator[Ending]:
        """Yield all ends in order, those that no longer hold among them."""
        # Most who ask want the first few: what comes after them stays unsorted.
        ahead = self._next.copy()
        while ahead:
            yield from sorted(self._ends[heapq.heappop(ahead)])

    def keep(self, endings: Iterable[Ending]) -> None:
        """Hold exactly these from now on."""
        self.__init__()
        for ending in endings:
            self.add(ending)


def endings_of(node: NodeState) -> Iterator[Ending]:
    """Yield the ends of all that is held on a node."""
    for holder, host in node.held.items():
        yield host.end, node.id, holder, HOST
    for gpu in node.gpus:
        for key, held in gpu.held.items():
            yield held.end, gpu.id, *key
