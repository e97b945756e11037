"""Whose clocks the command line reads and shows: --zone, else APPORTION_ZONE, else the system's."""

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_CHOSEN: Final[ContextVar["ZoneInfo | None"]] = ContextVar("zone", default=None)


def add_zone_argument(parser: argparse.ArgumentParser) -> None:
    """Add --zone, which the command runs in."""
    parser.add_argument(
        "--zone",
        help="whose clocks are read and shown, such as Europe/Berlin "
        "(default: APPORTION_ZONE, else this machine's)",
    )


@contextmanager
def in_zone(name: str, *, field: str) -> Generator[None]:
    """Read and show times by these clocks; InvalidInputError where no zone has the name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInputError(
            "is no time zone", field=field, given=name, allowed="an IANA name such as Europe/Berlin"
        ) from None
    token = _CHOSEN.set(zone)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def chosen_zone() -> "ZoneInfo | None":
    """Return the zone that was named; None where times are this machine's."""
    return _CHOSEN.get()


def local(instant: datetime) -> datetime:
    """Return an aware instant as the user's clocks show it."""
    return instant.astimezone(_CHOSEN.get())
