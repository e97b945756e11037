"""What ends next."""

import heapq
from collections.abc import Iterator

from apportion.placement.state import FOREVER

Ending = tuple[int, int, str, int]
"""(end, place, holder, number): of a GPU, with the piece's number, or of a node, with ``HOST``."""

HOST = -1


class Endings:
    """What is held, by its end; entries that no longer hold lie about until their time."""

    def __init__(self) -> None:
        self._heap: list[Ending] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> int:
        """The earliest end that may still hold; FOREVER where there is none."""
        return self._heap[0][0] if self._heap else FOREVER

    def add(self, ending: Ending) -> None:
        """Note an end."""
        heapq.heappush(self._heap, ending)

    def due(self, now: int) -> Iterator[Ending]:
        """Yield, and forget, what ends by ``now``."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)

    def keep(self, endings: list[Ending]) -> None:
        """Hold exactly these from now on."""
        self._heap = endings
        heapq.heapify(self._heap)
