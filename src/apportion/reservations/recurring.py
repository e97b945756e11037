"""What a series asks for, read: its windows as instants, and one ask for each of them. Pure."""

from collections.abc import Sequence
from datetime import date, datetime, time
from itertools import islice, pairwise
from typing import Final, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apportion.errors import InvalidInputError
from apportion.quantities.recurrence import Recurrence
from apportion.quantities.windows import format_instant
from apportion.reservations.schemas import ReservationAsk
from apportion.reservations.window_schemas import (
    OCCURRENCES_MAX,
    RecurrenceSpec,
    SeriesCreate,
    Weekday,
)

Windows = Sequence[tuple[datetime, datetime]]

_DAYS: Final = get_args(Weekday)


def read_recurrence(spec: RecurrenceSpec, now: datetime) -> Windows:
    """Return the windows that are still to begin, in UTC.

    Raises InvalidInputError for an unknown zone or date, for no window or too many, and for windows
    that overlap.
    """
    if (spec.until is None) == (spec.count is None):
        raise InvalidInputError(
            "give either the last day or how many windows",
            field="recurrence.until",
            given=spec.until,
            allowed="until or count",
        )
    zone = _zone(spec.zone)
    recurrence = Recurrence(
        days=frozenset(_DAYS.index(day) for day in spec.days),
        start=time.fromisoformat(spec.start),
        end=time.fromisoformat(spec.end),
        zone=zone,
        first=now.astimezone(zone).date()
        if spec.from_ is None
        else _date(spec.from_, "recurrence.from"),
        last=None if spec.until is None else _date(spec.until, "recurrence.until"),
    )
    coming = (window for window in recurrence.windows() if window[0] >= now)
    windows = list(islice(coming, spec.count or OCCURRENCES_MAX + 1))
    _check(windows, spec)
    return windows


def asks_of(request: SeriesCreate, windows: Windows) -> list[ReservationAsk]:
    """Return an ask for each window."""
    pieces = {
        name: getattr(request, name)
        for name in request.model_fields_set
        if name in ReservationAsk.model_fields
    }
    return [
        ReservationAsk.model_construct(
            **pieces, start=format_instant(start), end=format_instant(end)
        )
        for start, end in windows
    ]


def _check(windows: Windows, spec: RecurrenceSpec) -> None:
    if not windows:
        raise InvalidInputError(
            "has no window that is still to begin", field="recurrence", given=spec.until
        )
    if len(windows) > OCCURRENCES_MAX:
        raise InvalidInputError(
            f"has more than {OCCURRENCES_MAX} windows",
            field="recurrence.until",
            given=spec.until,
            allowed=f"a last day up to {windows[OCCURRENCES_MAX - 1][0].date()}, or a count",
        )
    for (_, end), (start, _) in pairwise(windows):
        if end > start:
            raise InvalidInputError(
                "ends after its next window begins",
                field="recurrence.end",
                given=spec.end,
                allowed="windows that do not overlap",
            )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInputError(
            "is no zone that is known here",
            field="recurrence.zone",
            given=name,
            allowed="a name of the IANA time zone database such as Europe/Berlin or UTC",
        ) from None


def _date(text: str, field: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            "does not exist", field=field, given=text, allowed="a date such as 2026-12-31"
        ) from None
