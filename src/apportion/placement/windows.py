"""When could it start: the instants at which a node gets room for an ask, and until when it has it.

Room appears on a node only when something held there ends. So after now, where the whole fleet is
asked, only the node on which something ends is asked at each end, in their order.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from apportion.placement.asks import Ask
from apportion.placement.offers import Offer
from apportion.placement.search import STEPS_MAX, SearchExhaustedError, place_on
from apportion.placement.skyline import FOREVER
from apportion.placement.state import NodeState


@dataclass(frozen=True, slots=True)
class Opening:
    """Room from ``start`` on where ``offer`` says, for any end up to ``until``."""

    start: int
    until: int
    offer: Offer


def openings(
    ask: Ask, length: int, starts: tuple[int, int, int], ends: Iterable[tuple[int, NodeState]]
) -> Iterator[Opening]:
    """Yield the instants at which a node gets room for ``length``, one of each.

    ``starts`` are an instant that they come after, the last one, and now; ``ends`` those of what is
    held, in order, each with its node. A node that had room just before gets none.
    """
    told, last, now = starts
    for end, node in ends:
        if end <= told:
            continue
        if end > last:
            return
        offer = _fits(node, ask, end, end + length, now)
        if offer is not None and _fits(node, ask, end - 1, end - 1 + length, now) is None:
            told = end
            yield opening(node, ask, offer, (end, end + length), now)


def starts_within(ends: Iterable[int], first: int, last: int) -> Iterator[int]:
    """Yield the instants from ``first`` to ``last`` at which room can appear, each once."""
    if first <= last:
        yield first
        yield from sorted({end for end in ends if first < end <= last})


def opening(node: NodeState, ask: Ask, offer: Offer, window: tuple[int, int], now: int) -> Opening:
    """Say until when a node that has room for an ask in a window has it."""
    start, end = window
    starts = {held.start for gpu in node.gpus for held in gpu.held.values()}
    starts.update(held.start for held in node.held.values())
    stops = [each for each in sorted(starts) if each > end] + [FOREVER]
    # A longer window is never easier: the first stop that is too late is found by halving.
    late = bisect_left(stops, True, key=lambda stop: _fits(node, ask, start, stop, now) is None)
    return Opening(start, stops[late - 1] if late else end, offer)


def _fits(node: NodeState, ask: Ask, start: int, end: int, now: int) -> Offer | None:
    try:
        return place_on(node, ask, start, end, now, steps=STEPS_MAX)
    except SearchExhaustedError:
        return None
