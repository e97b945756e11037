"""The window that a request asks for: read, and held to what its candidate pools take. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from apportion.errors import InvalidInputError
from apportion.pools.service import PoolRecord
from apportion.quantities.windows import (
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from apportion.reservations.lengths import check_lead, check_length, check_open_ended
from apportion.reservations.schemas import ReservationAsk

LAST: Final = datetime.max.replace(tzinfo=UTC)
"""The last instant of the calendar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedWindow:
    """[start, end), or ``duration`` from ``start``, which is now where it is None.

    With ``end_before`` it begins at ``start`` or any time later, if it is over by then. With
    ``open_ended`` it goes on to the last instant of the calendar.
    """

    start: datetime | None
    end: datetime | None = None
    duration: timedelta | None = None
    end_before: datetime | None = None
    open_ended: bool = False

    def length(self, now: datetime) -> timedelta:
        """Return how long it lasts, to the last instant of the calendar where it has no end."""
        if self.open_ended:
            return LAST - (self.start or now)
        if self.duration is not None:
            return self.duration
        assert self.end is not None  # noqa: S101 - one of the two is given
        return self.end - (self.start or now)


def read_window(request: ReservationAsk, now: datetime) -> AskedWindow:
    """Read the window; InvalidInputError for one that is past, backward, or said in two ways."""
    start = None if request.start is None else parse_instant(request.start, field="start")
    end = None if request.end is None else parse_instant(request.end, field="end")
    if not request.open_ended and (request.duration is None) == (end is None):
        raise InvalidInputError(
            "give either a duration or an end",
            field="duration",
            given=request.duration,
            allowed='a duration such as "4h", start and end, or open_ended',
        )
    if start is not None and start < now:
        raise InvalidInputError(
            "lies in the past", field="start", given=request.start, hint="Leave it out to begin now"
        )
    if request.open_ended:
        return _without_end(request, start)
    if end is None:
        return _with_length(request, start, now)
    if request.end_before is not None:
        raise InvalidInputError(
            "bounds a duration, and an end was given",
            field="end_before",
            given=request.end_before,
            allowed="end, or duration and end_before",
        )
    if start is None:
        raise InvalidInputError("needed beside an end", field="start")
    if end <= start:
        raise InvalidInputError("must lie after the start", field="end", given=request.end)
    return AskedWindow(start=start, end=end)


def _without_end(request: ReservationAsk, start: datetime | None) -> AskedWindow:
    for field in ("duration", "end", "end_before"):
        given = getattr(request, field)
        if given is not None:
            raise InvalidInputError(
                "says when it ends, and open_ended that it does not",
                field=field,
                given=given,
                allowed="open_ended, with a start or without, or one of the others",
            )
    return AskedWindow(start=start, open_ended=True)


def _with_length(request: ReservationAsk, start: datetime | None, now: datetime) -> AskedWindow:
    duration = parse_duration(request.duration or "", field="duration")
    if (start or now) > LAST - duration:
        raise InvalidInputError(
            "reaches beyond the calendar", field="duration", given=request.duration
        )
    if request.end_before is None:
        return AskedWindow(start=start, duration=duration)
    end_before = parse_instant(request.end_before, field="end_before")
    window = AskedWindow(start=start, duration=duration, end_before=end_before)
    _check_slack(window, start or now, given=request.end_before)
    return window


def hold_to_pools(
    window: AskedWindow,
    pools: Sequence[PoolRecord],
    request: ReservationAsk,
    now: datetime,
    *,
    movable: bool = False,
) -> AskedWindow:
    """Refuse a window that one of the pools does not take, with the nearest that are.

    One that is ``movable``, or has slack, begins no sooner than all of them take it.
    """
    field, given = (
        ("end", request.end) if window.duration is None else ("duration", request.duration)
    )
    for pool in pools:
        if window.open_ended:
            check_open_ended(pool)
        else:
            check_length(pool, window.length(now), field=field, given=given)
    if window.end_before is None and not movable:
        for pool in pools:
            check_lead(pool, window.start, now)
        return window
    lead = max(pool.policy.window.lead for pool in pools)
    if not lead:
        return window
    earliest = max(now + lead, window.start or now)
    _check_slack(window, earliest, given=request.end_before)
    return replace(window, start=earliest)


def _check_slack(window: AskedWindow, earliest: datetime, *, given: str | None) -> None:
    """Refuse slack that is less than none."""
    duration, end_before = window.duration, window.end_before
    if duration is None or end_before is None or end_before - duration >= earliest:
        return
    raise InvalidInputError(
        f"leaves no time for {format_duration(duration)} from {format_instant(earliest)} on",
        field="end_before",
        given=given,
        allowed=f"{format_instant(earliest + duration)} or later",
    )
