"""What windows a pool takes: for how long, in which steps, and how long in advance. Pure."""

from datetime import datetime, timedelta
from typing import Final

from apportion.errors import InvalidInputError
from apportion.pools.service import PoolRecord
from apportion.quantities.windows import format_duration, format_instant

_FINEST: Final = timedelta(microseconds=1)


def check_length(pool: PoolRecord, length: timedelta, *, field: str, given: object) -> None:
    """Refuse a window that is not as long as the pool takes them, with the nearest that are."""
    rule = pool.policy.window
    step = rule.step or _FINEST
    shortest = _up(rule.minimum or step, step)
    longest = timedelta.max if rule.maximum is None else rule.maximum // step * step
    below, above = min(length // step * step, longest), max(_up(length, step), shortest)
    if below == above:
        return
    nearest = [format_duration(each) for each in (below, above) if shortest <= each <= longest]
    raise InvalidInputError(
        f"pool {pool.name} takes no window of this length",
        field=field,
        given=given,
        allowed=" or ".join(nearest),
        details={"pool_id": pool.id, "nearest": nearest},
    )


def check_open_ended(pool: PoolRecord) -> None:
    """Refuse a window without an end where the pool does not permit them, or bounds the length."""
    longest = pool.policy.window.maximum
    if pool.policy.open_ended and longest is None:
        return
    given_for = "any length" if longest is None else f"up to {format_duration(longest)}"
    raise InvalidInputError(
        f"pool {pool.name} takes no window without an end",
        field="open_ended",
        given=True,
        allowed=f"false, with a duration or an end: {given_for}",
        details={"pool_id": pool.id},
        hint="Its owner permits it with openEnded, where no window.maximum is set",
    )


def check_lead(pool: PoolRecord, start: datetime | None, now: datetime) -> None:
    """Refuse a window that begins sooner than the pool has to know of it."""
    lead = pool.policy.window.lead
    if lead and (start or now) < now + lead:
        earliest = format_instant(now + lead)
        raise InvalidInputError(
            f"pool {pool.name} takes windows {format_duration(lead)} before they begin",
            field="start",
            given=None if start is None else format_instant(start),
            allowed=f"a start from {earliest}",
            details={"pool_id": pool.id, "earliest": earliest},
        )


def _up(length: timedelta, step: timedelta) -> timedelta:
    return -(-length // step) * step
