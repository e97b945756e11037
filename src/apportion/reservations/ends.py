"""What follows from an end by a pool's policy: when others have it, and when it is told. Pure."""

from datetime import datetime

from apportion.pools.service import PoolRecord
from apportion.reservations.windows import LAST


def held_until(end: datetime, pool: PoolRecord) -> datetime:
    """Return when others can have what is free at an end; the calendar has a last day."""
    return end + min(pool.policy.window.gap, LAST - end)


def told_at(end: datetime, pool: PoolRecord) -> datetime | None:
    """Return when the tenant is told that it ends soon; None where the pool tells nobody."""
    notice = pool.policy.window.notice
    return end - notice if notice else None
