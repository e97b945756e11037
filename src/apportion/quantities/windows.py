"""Windows of time, instants and durations. Pure: "now" is always an argument.

Instants are aware datetimes in UTC; a window is half-open, ``[start, end)``. Text is RFC 3339 with
a zone: a time without one has meant the server's zone, the user's and UTC to different tools, so it
is refused.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from functools import lru_cache
from typing import Final

from apportion.errors import InvalidInputError

INSTANT_GRAMMAR: Final = "RFC 3339 with a zone, such as 2026-12-01T09:00:00Z or …T09:00:00+05:30"
DURATION_GRAMMAR: Final = "a duration such as 30s, 90m, 4h, 1d12h, 2w, P1D or PT4H"
LONGEST: Final = timedelta(days=3653)  # ten years, whichever leap days they hold

_INSTANT = (
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_SHORT = r"(?:([0-9]+)w)?(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?"
_ISO = (
    r"P(?=[0-9T])(?:([0-9]+)W)?(?:([0-9]+)D)?"
    r"(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?"
)
_LONGEST_TEXT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A half-open stretch of time, ``[start, end)``; ``end`` None means without an end.

    Both instants are aware and in UTC (ValueError otherwise: a program's mistake). An end that is
    not after the start is InvalidInputError: a person's.
    """

    start: datetime
    end: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse naive and foreign-zone instants, and an empty or backward window."""
        for instant in (self.start, self.end):
            if instant is not None and instant.utcoffset() != timedelta(0):
                raise ValueError(f"not an aware UTC instant: {instant!r}")
        if self.end is not None and self.end <= self.start:
            raise InvalidInputError(
                "a window must end after it starts",
                field="end",
                given=format_instant(self.end),
                allowed=f"later than {format_instant(self.start)}",
            )

    @property
    def duration(self) -> timedelta | None:
        """Give the length; None without an end."""
        return None if self.end is None else self.end - self.start

    def contains(self, instant: datetime) -> bool:
        """Tell whether the instant lies in the window; the end itself does not."""
        return self.start <= instant and (self.end is None or instant < self.end)

    def overlaps(self, other: "Window") -> bool:
        """Tell whether the two share an instant; windows that only touch do not."""
        return (other.end is None or self.start < other.end) and (
            self.end is None or other.start < self.end
        )

    def covers(self, other: "Window") -> bool:
        """Tell whether every instant of the other lies in this one."""
        return self.start <= other.start and (
            self.end is None or (other.end is not None and other.end <= self.end)
        )


def parse_instant(text: str, *, field: str) -> datetime:
    """Read an RFC 3339 instant as an aware UTC datetime; seconds may be left out, the zone may not.

    Raises InvalidInputError for a naive time, a leap second, a date that does not exist, and digits
    finer than a microsecond.
    """
    match = re.fullmatch(_INSTANT, text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise _bad_instant("is not an instant", text, field)
    year, month, day, hour, minute, second, digits, zulu, sign, off_hour, off_minute = (
        match.groups()
    )
    if zulu is None and sign is None:
        raise _bad_instant("has no zone, so it names no instant", text, field)
    if second == "60":
        raise _bad_instant(
            "a leap second is not accepted: the clocks here count 86,400 seconds a day", text, field
        )
    micros = (digits or "").ljust(6, "0")
    if micros[6:].strip("0"):
        raise _bad_instant("is finer than a microsecond", text, field)
    try:
        zone = UTC if zulu else _zone(sign, int(off_hour), int(off_minute))
        local = datetime(
            *(int(part) for part in (year, month, day)),
            hour=int(hour),
            minute=int(minute),
            second=int(second or 0),
            microsecond=int(micros[:6]),
            tzinfo=zone,
        )
        return local.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _bad_instant(f"does not exist ({error})", text, field) from None


@lru_cache(maxsize=1024)
def format_instant(instant: datetime) -> str:
    """Write an aware instant as RFC 3339 in UTC; microseconds only if there are any."""
    if instant.tzinfo is None:
        raise ValueError(f"a naive datetime names no instant: {instant!r}")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def parse_duration(text: str, *, field: str = "duration") -> timedelta:
    """Read a duration: longer than 0, at most ten years, units from large to small, each once.

    ISO 8601's years and months are refused: how long they are depends on the date.
    """
    match = None
    if 0 < len(text) <= _LONGEST_TEXT:
        match = re.fullmatch(_SHORT, text) or re.fullmatch(_ISO, text)
    if match is None:
        raise InvalidInputError(
            "is not a duration", field=field, given=text[:60], allowed=DURATION_GRAMMAR
        )
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < total <= LONGEST.days * 86_400:
        raise InvalidInputError(
            "is out of range",
            field=field,
            given=text,
            allowed="longer than 0, up to ten years (3653d)",
        )
    return timedelta(seconds=total)


def format_duration(duration: timedelta) -> str:
    """Write whole seconds (else ValueError) the short way: ``1d12h``, ``0s``."""
    total, rest = divmod(duration, timedelta(seconds=1))
    if rest or total < 0:
        raise ValueError(f"not a whole number of seconds: {duration!r}")
    parts = ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, total = divmod(total, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def _zone(sign: str, hours: int, minutes: int) -> timezone:
    """Give a fixed offset; one out of range (+24:00, +05:60) is a ValueError."""
    time(hours, minutes)  # bounds both: timedelta would take +05:60
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if sign == "-" else offset)


def _bad_instant(reason: str, text: str, field: str) -> InvalidInputError:
    return InvalidInputError(reason, field=field, given=text[:60], allowed=INSTANT_GRAMMAR)
