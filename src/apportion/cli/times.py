"""Times as people type and read them: their own zone in, UTC and their own zone out."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Final, TextIO

from apportion.errors import InvalidInputError
from apportion.quantities.windows import format_duration, format_instant, parse_instant

TIME_GRAMMAR: Final = (
    "RFC 3339 such as 2026-12-01T09:00:00Z, or 2026-12-01T09:00 in this machine's zone"
)

_NAIVE = r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)"
_BOXES = "├┤═─■·"
_ASCII = "||=-o."
_WIDTH = 60
_HOUR = timedelta(hours=1)


def read_time(text: str, *, field: str) -> datetime:
    """Read an instant as aware UTC; one without a zone is in the zone of this machine (TZ).

    Raises InvalidInputError for what `parse_instant` refuses, and for a time that the zone has
    twice or never, where a clock change is.
    """
    match = re.fullmatch(_NAIVE, text)
    try:
        if match is None:
            return parse_instant(text, field=field)
        naive = parse_instant(f"{match[1]}T{match[2]}Z", field=field).replace(tzinfo=None)
    except InvalidInputError as error:
        error.given, error.allowed = text[:60], TIME_GRAMMAR
        raise
    return _in_local_zone(naive, text, field)


def both_zones(instant: datetime) -> str:
    """Write an instant to the second in UTC and in this machine's zone."""
    whole = instant.replace(microsecond=0)
    return f"{format_instant(whole)} ({whole.astimezone():%Y-%m-%d %H:%M:%S %Z})"


def local_time(instant: datetime | None) -> str | None:
    """Write an instant to the minute in this machine's zone, named, for a column of a table."""
    return None if instant is None else f"{instant.astimezone():%a %Y-%m-%d %H:%M %Z}"


def short_time(instant: datetime | None) -> str | None:
    """Write an instant to the second in UTC, for a column of a table."""
    return None if instant is None else format_instant(instant.replace(microsecond=0))


def window_lines(start: datetime, end: datetime, now: datetime, *, boxes: bool) -> list[str]:
    """Draw a window on a line with where now is, and say its ends in both zones."""
    return [
        _bar(start, end, now, boxes=boxes),
        f"from  {both_zones(start)}",
        f"until {both_zones(end)}",
        _lengths(start, end, now),
    ]


def lane(
    start: datetime,
    end: datetime,
    span: tuple[datetime, datetime],
    *,
    until: datetime | None,
    boxes: bool,
) -> str:
    """Draw a window on the line of a longer span, and how far it could go on: to the end if None.

    Several of one span stand one below the other.
    """
    opening, closing, further, held, _, outside = _BOXES if boxes else _ASCII
    low, high = span
    first, last, stop = (
        (instant - low) * (_WIDTH - 1) // (high - low) for instant in (start, end, until or high)
    )
    cells = [
        outside if not first <= at <= stop else held if at <= last else further
        for at in range(_WIDTH)
    ]
    cells[first], cells[last] = opening, closing
    return "".join(cells)


def can_draw_windows(stream: TextIO | None = None) -> bool:
    """Tell whether a stream's encoding holds the characters of a window's line."""
    target = sys.stdout if stream is None else stream
    try:
        _BOXES.encode(target.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def rough(duration: timedelta) -> str:
    """Write a duration to the second, or to the minute from an hour on."""
    step = timedelta(minutes=1) if duration >= _HOUR else timedelta(seconds=1)
    return format_duration(duration // step * step)


def _in_local_zone(naive: datetime, text: str, field: str) -> datetime:
    """Read a wall-clock time; the two folds differ exactly where clocks change."""
    try:
        early, late = (naive.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    except (OverflowError, ValueError, OSError):
        raise InvalidInputError(
            "is out of range", field=field, given=text, allowed=TIME_GRAMMAR
        ) from None
    if early == late:
        return early
    twice = early.astimezone().replace(tzinfo=None, fold=0) == naive
    raise InvalidInputError(
        "happens twice in this zone" if twice else "does not happen in this zone",
        field=field,
        given=text,
        allowed=f"{format_instant(min(early, late))} or {format_instant(max(early, late))}",
        hint="Clocks change there; say the instant with its zone",
    )


def _bar(start: datetime, end: datetime, now: datetime, *, boxes: bool) -> str:
    opening, closing, gone, left, here, outside = _BOXES if boxes else _ASCII
    low, high = min(start, now), max(end, now)

    def column(instant: datetime) -> int:
        return (instant - low) * (_WIDTH - 1) // (high - low)

    first, last, present = column(start), column(end), column(now)
    cells = [
        outside if not first <= at <= last else gone if at < present else left
        for at in range(_WIDTH)
    ]
    cells[first], cells[last], cells[present] = opening, closing, here
    return "".join(cells)


def _lengths(start: datetime, end: datetime, now: datetime) -> str:
    total = f"{rough(end - start)} in all"
    if now < start:
        return f"{total}, begins in {rough(start - now)}"
    if now >= end:
        return f"{total}, over since {rough(now - end)}"
    return f"{total}, {rough(now - start)} gone, {rough(end - now)} left"
