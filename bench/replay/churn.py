"""Requests that come and go: who gets in, when, and how full that keeps the fleet.

What does not fit at once waits as long as its patience lasts. Whenever something ends, the waiting
are tried again, the oldest first; those behind may pass. None is moved once it has begun.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

What = TypeVar("What", bound=Hashable)
Lease = TypeVar("Lease")
What_contra = TypeVar("What_contra", contravariant=True)


class Fleet(Protocol[What_contra, Lease]):
    """What requests are placed on."""

    def place(self, what: What_contra, /) -> Lease | None:
        """Give it its place, if there is room."""
        ...

    def free(self, lease: Lease, /) -> None:
        """Take it away."""
        ...


@dataclass(frozen=True, slots=True)
class Arrival(Generic[What]):
    """A request for ``length`` seconds that may begin up to ``patience`` seconds late."""

    at: float
    what: What
    length: float
    patience: float = 0.0


class Churn(Generic[What, Lease]):
    """One run; ``could`` says whether what just ended may have made room for a kind of request."""

    def __init__(
        self, fleet: Fleet[What, Lease], could: Callable[[Lease, What], bool] | None = None
    ) -> None:
        self._fleet = fleet
        self._could = could
        self._ends: list[tuple[float, int, Lease]] = []
        self._waiting: dict[What, deque[int]] = {}
        self._arrivals: Sequence[Arrival[What]] = ()
        self._starts: list[float | None] = []

    def run(self, arrivals: Sequence[Arrival[What]]) -> list[float | None]:
        """Return when each request began; None where it never did."""
        self._arrivals = arrivals
        self._starts = [None] * len(arrivals)
        for number, arrival in enumerate(arrivals):
            self._let_go(arrival.at)
            if not self._begin(number, arrival.at) and arrival.patience:
                self._waiting.setdefault(arrival.what, deque()).append(number)
        self._let_go(float("inf"))
        return self._starts

    def _begin(self, number: int, now: float) -> bool:
        arrival = self._arrivals[number]
        lease = self._fleet.place(arrival.what)
        if lease is None:
            return False
        self._starts[number] = now
        heapq.heappush(self._ends, (now + arrival.length, number, lease))
        return True

    def _let_go(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            now, _, lease = heapq.heappop(self._ends)
            self._fleet.free(lease)
            self._retry(now, lease)

    def _retry(self, now: float, lease: Lease) -> None:
        heads: list[tuple[int, What]] = []
        for what, queue in list(self._waiting.items()):
            if self._could is not None and not self._could(lease, what):
                continue
            self._push_head(heads, queue, what, now)
        while heads:
            number, what = heapq.heappop(heads)
            if self._begin(number, now):
                queue = self._waiting[what]
                queue.popleft()
                self._push_head(heads, queue, what, now)

    def _push_head(
        self, heads: list[tuple[int, What]], queue: deque[int], what: What, now: float
    ) -> None:
        """Offer the oldest of a kind that still has patience."""
        while queue and now > self._arrivals[queue[0]].at + self._arrivals[queue[0]].patience:
            queue.popleft()
        if queue:
            heapq.heappush(heads, (queue[0], what))
        else:
            del self._waiting[what]


def used(
    arrivals: Sequence[Arrival[What]],
    starts: Sequence[float | None],
    size: Callable[[What], int],
    window: tuple[float, float],
) -> float:
    """Return how many units are in use in a window, averaged over time."""
    since, until = window
    area = 0.0
    for arrival, start in zip(arrivals, starts, strict=True):
        if start is not None:
            overlap = min(until, start + arrival.length) - max(since, start)
            area += size(arrival.what) * max(0.0, overlap)
    return area / (until - since)
