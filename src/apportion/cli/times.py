"""Times as people type and read them: their own zone in, UTC and their own zone out."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Final, TextIO

from apportion.cli.zones import chosen_zone, local
from apportion.errors import InvalidInputError
from apportion.quantities.windows import format_duration, format_instant, parse_instant

TIME_GRAMMAR: Final = (
    "RFC 3339 such as 2026-12-01T09:00Z; in your zone 2026-12-01T09:00, 18:00, monday 9:00"
)

NO_END: Final = "no end"
"""What stands in place of the end of what has none."""

_NAIVE = r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)"
_SPOKEN = (
    r"(?:(today|tomorrow|yesterday|mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?"
    r"|sat(?:urday)?|sun(?:day)?) )?([0-9]{1,2})(:[0-9]{2}(?::[0-9]{2})?)"
)
_NEAR: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_BOXES = "├┤═─■·"
_ASCII = "||=-o."
_WIDTH = 60
_HOUR = timedelta(hours=1)


def read_time(
    text: str, *, field: str, after: datetime | None = None, past: bool = False
) -> datetime:
    """Read an instant as aware UTC; one without a zone is in the user's, and is said in both.

    A bare 18:00 or monday 9:00 is the next one after ``after`` (now if None), or with ``past`` the
    last one. Raises InvalidInputError for what is no time, and for a time that the zone has twice
    or never, where clocks change: both instants that it could be are named.
    """
    naive = re.fullmatch(_NAIVE, text)
    spoken = re.fullmatch(_SPOKEN, text.lower())
    try:
        if naive is not None:
            wall = _wall(f"{naive[1]}T{naive[2]}", text, field)
        elif spoken is not None:
            wall = _spoken(spoken, text, field, after or datetime.now(UTC), past=past)
        else:
            return _parsed(text, text, field)
        instant = _settled(wall, text, field)
    except (OverflowError, ValueError, OSError):
        raise InvalidInputError(
            "is out of range", field=field, given=text, allowed=TIME_GRAMMAR
        ) from None
    sys.stderr.write(f"{field} {text}: {_said(instant)}\n")
    return instant


def both_zones(instant: datetime) -> str:
    """Write an instant to the second in UTC and in the user's zone."""
    whole = instant.replace(microsecond=0)
    return f"{format_instant(whole)} ({local(whole):%Y-%m-%d %H:%M:%S %Z})"


def local_time(instant: datetime | None) -> str | None:
    """Write an instant to the minute in the user's zone, named, for a column of a table."""
    return None if instant is None else f"{local(instant):%a %Y-%m-%d %H:%M %Z}"


def short_time(instant: datetime | None) -> str | None:
    """Write an instant to the second in the user's zone, named, for a column of a table."""
    return None if instant is None else f"{local(instant):%Y-%m-%d %H:%M:%S %Z}"


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


def _parsed(full: str, text: str, field: str) -> datetime:
    """Read a whole instant; a refusal speaks of the text as it was given."""
    try:
        return parse_instant(full, field=field)
    except InvalidInputError as error:
        error.given, error.allowed = text[:60], TIME_GRAMMAR
        raise


def _wall(full: str, text: str, field: str) -> datetime:
    """Read what a clock on the wall shows, without a zone."""
    return _parsed(f"{full}Z", text, field).replace(tzinfo=None)


def _spoken(match: re.Match[str], text: str, field: str, mark: datetime, *, past: bool) -> datetime:
    """Find the day of a clock time that has a word for it, or none."""
    word, hour, rest = match.groups()
    today = _wall(f"{local(datetime.now(UTC)):%Y-%m-%d}T{hour:0>2}{rest}", text, field)
    if word in _NEAR:
        return today + timedelta(days=_NEAR[word])
    day = local(mark).date()
    around = (
        datetime.combine(day, today.time()) + timedelta(days=-ahead if past else ahead)
        for ahead in range(9)  # a week and a day: today's own may be over
    )
    return next(
        wall
        for wall in around
        if (word is None or _DAYS[wall.weekday()].startswith(word))
        and (min(_folds(wall)) <= mark if past else max(_folds(wall)) > mark)
    )


def _folds(wall: datetime) -> tuple[datetime, datetime]:
    """Return the instants that a time on the wall could be; two only where clocks change."""
    early, late = (wall.replace(tzinfo=chosen_zone(), fold=fold).astimezone(UTC) for fold in (0, 1))
    return early, late


def _settled(wall: datetime, text: str, field: str) -> datetime:
    early, late = _folds(wall)
    if early == late:
        return early
    twice = local(early).replace(tzinfo=None, fold=0) == wall
    raise InvalidInputError(
        "happens twice in this zone" if twice else "does not happen in this zone",
        field=field,
        given=text,
        allowed=f"{format_instant(min(early, late))} or {format_instant(max(early, late))}",
        hint="Clocks change there; say the instant with its zone",
    )


def _said(instant: datetime) -> str:
    """Write an instant in the user's zone and in UTC, whose day is said where it is another."""
    shown, utc = local(instant), instant.astimezone(UTC)
    seconds = ":%S" if utc.second else ""
    day = "" if shown.date() == utc.date() else "%Y-%m-%d "
    return f"{shown:%a %Y-%m-%d %H:%M{seconds} %Z} ({utc:{day}%H:%M{seconds} UTC})"


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
