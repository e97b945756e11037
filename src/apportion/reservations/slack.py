"""The earliest start that has room: what a window with slack is placed at."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from apportion.placement import PoolIndex
from apportion.placement.gangs import gang_opening
from apportion.pools.service import PoolRecord
from apportion.reservations.admission import Draft
from apportion.reservations.ends import held_until
from apportion.reservations.fleet import Fleet, instant_of, micros


def earliest_start(
    fleet: Fleet,
    draft: Draft,
    pools: Sequence[PoolRecord],
    bounds: tuple[datetime, datetime, datetime],
) -> datetime | None:
    """Return the first start at which one of the pools has room for a draft; None without any.

    ``bounds`` are the first and the last instant that will do, and now.
    """
    first, last, now = bounds
    found: datetime | None = None
    for pool in pools:
        start, end = draft.window(first)
        length = held_until(end, pool) - start
        opening = _opening(
            fleet.indexes[pool.id],
            draft,
            length // timedelta(microseconds=1),
            (micros(first), micros(last), micros(now)),
        )
        if opening is not None:
            # Later pools need not look beyond what this one has.
            found = last = instant_of(opening)
    return found


def _opening(
    index: PoolIndex, draft: Draft, length: int, bounds: tuple[int, int, int]
) -> int | None:
    if draft.members > 1:
        asks = [draft.ask] * draft.members
        return gang_opening(index, asks, length, bounds, apart=draft.members_apart)
    first, last, now = bounds
    openings = index.openings(draft.ask, length, now, first=first, last=last)
    return next((opening.start for opening in openings), None)
