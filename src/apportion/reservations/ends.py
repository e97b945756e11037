"""What follows from an end by a pool's policy: when others have it, and when it is told. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from apportion.pools.service import PoolRecord
from apportion.quantities.windows import format_instant
from apportion.reservations.windows import LAST


def held_until(end: datetime, pool: PoolRecord) -> datetime:
    """Return when others can have what is free at an end; the calendar has a last day."""
    return end + min(pool.policy.window.gap, LAST - end)


def open_end(pool: PoolRecord) -> datetime:
    """Return the end that is kept for none: with its gap it reaches to the last instant.

    So the gap by which it was placed is known when it comes to have an end.
    """
    return LAST - pool.policy.window.gap


def has_no_end(row: Mapping[str, Any]) -> bool:
    """Tell whether a stored reservation waits for a place without an end, or has one."""
    return row["open_ended"] and row["state"] not in ("ending", "ended", "failed")


def end_text(row: Mapping[str, Any]) -> str | None:
    """Write the end of a stored reservation; None where it has none."""
    end = row["ends_at"]
    return None if end is None or has_no_end(row) else format_instant(end)


def told_at(end: datetime, pool: PoolRecord) -> datetime | None:
    """Return when the tenant is told that it ends soon; None where the pool tells nobody."""
    notice = pool.policy.window.notice
    return end - notice if notice else None
