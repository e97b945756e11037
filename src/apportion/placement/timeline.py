"""Where time makes a difference, and what ends next."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from apportion.placement.state import FOREVER, NEVER, NodeState

Ending = tuple[int, int, str, int]
"""(end, place, holder, number): of a GPU, with the piece's number, or of a node, with ``HOST``."""

HOST = -1


class Timeline:
    """Finds the nodes that can offer a window more than what is free in every window.

    On all others everything held runs at the window's first instant: what is free then, is free in
    every window. A node stands in both lists once; nodes where nothing is held stand in neither.
    """

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._noted: dict[int, tuple[int, int]] = {}

    def note(self, node: NodeState) -> None:
        """Take up when the last thing held on a node starts and the first one ends."""
        start = max((gpu.last_start for gpu in node.gpus), default=NEVER)
        end = min((gpu.first_end for gpu in node.gpus), default=FOREVER)
        self._enter(node.id, max(start, node.last_start), min(end, node.first_end))

    def widen(self, node_id: int, start: int, end: int) -> None:
        """Take up one more thing that is held on a node."""
        last_start, first_end = self._noted.get(node_id, (NEVER, FOREVER))
        self._enter(node_id, max(last_start, start), min(first_end, end))

    def _enter(self, node_id: int, start: int, end: int) -> None:
        if self._noted.get(node_id) == (start, end):
            return
        self.forget(node_id)
        if start == NEVER:
            return
        insort(self._starts, (start, node_id))
        insort(self._ends, (end, node_id))
        self._noted[node_id] = (start, end)

    def forget(self, node_id: int) -> None:
        """Take a node out."""
        noted = self._noted.pop(node_id, None)
        if noted is not None:
            del self._starts[bisect_left(self._starts, (noted[0], node_id))]
            del self._ends[bisect_left(self._ends, (noted[1], node_id))]

    def changing(self, start: int) -> Iterator[int]:
        """Yield the nodes where something ends by ``start``, or starts after it; some twice."""
        for _, node_id in islice(self._ends, bisect_left(self._ends, (start + 1, -1))):
            yield node_id
        for _, node_id in islice(self._starts, bisect_left(self._starts, (start + 1, -1)), None):
            yield node_id


class Endings:
    """What is held, by its end; entries that no longer hold lie about until their time."""

    def __init__(self) -> None:
        self._heap: list[Ending] = []

    def __len__(self) -> int:
        return len(self._heap)

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
