"""Windows that come again: days of the week and wall-clock times in a zone, as instants. Pure.

Clocks are changed. A time that does not exist on a day is moved to the first instant after the
change; one that is there twice is the first of the two. So a window that a change falls into is
longer or shorter than on other days, and one that would be empty is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Windows from ``start`` to ``end`` on some ``days`` of the week, 0 is Monday, in a zone.

    An ``end`` that is not after the start is that of the next day. ``first`` and ``last`` are the
    dates on which windows may start, both included; without a last one there is no end to them.
    """

    days: frozenset[int]
    start: time
    end: time
    zone: tzinfo
    first: date
    last: date | None = None

    def windows(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield the windows as instants in UTC, in order."""
        day = self.first
        while self.last is None or day <= self.last:
            if day.weekday() in self.days:
                over = day if self.end > self.start else _next(day)
                if over is None:
                    return
                start = instant_in(self.zone, datetime.combine(day, self.start))
                end = instant_in(self.zone, datetime.combine(over, self.end))
                if start < end:
                    yield start, end
            following = _next(day)
            if following is None:
                return
            day = following


def instant_in(zone: tzinfo, local: datetime) -> datetime:
    """Return the instant at which clocks of a zone first show a time, or jump over it."""
    early, late = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # Where clocks go forward the offset of before is too late an instant, and that of after too
    # early: the change lies between them. Else the first is the one.
    return early if early <= late else _change_between(zone, late, early)


def _change_between(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """Return the first instant that has the offset of ``high``, which ``low`` has not yet."""
    offset = high.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if middle.astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return high


def _next(day: date) -> date | None:
    return None if day == date.max else day + _DAY
