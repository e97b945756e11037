"""The calendar of a GPU: which of its units are held when, and by whom if the caller may know."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from apportion.authority.service import Caller
from apportion.bookings.service import CalendarRow, calendar
from apportion.errors import InvalidInputError
from apportion.nodes.service import find_gpu
from apportion.quantities.windows import Window, format_instant, parse_instant
from apportion.reservations import rows
from apportion.reservations.window_schemas import CalendarWindow, GpuCalendar
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

WINDOWS_MAX: Final = 1000
"""The most windows of one answer; far more than a GPU can hold at one instant."""

_USUAL: Final = timedelta(hours=24)
_LONGEST: Final = timedelta(days=31)


async def gpu_calendar(
    runtime: Runtime, caller: Caller, gpu_id: str, start: str | None, end: str | None
) -> GpuCalendar:
    """Return what is held on a GPU from ``start`` (now) to ``end`` (24 hours on), 31 days at most.

    Raises NotFoundError for a GPU that the caller cannot book on and does not own, and
    InvalidInputError for instants that are none, or lie too far apart.
    """
    first, last = _span(start, end, runtime.now())
    async with transaction(runtime.db) as connection:
        gpu = await find_gpu(connection, caller, gpu_id)
        held = await calendar(connection, gpu_id, (first, last), limit=WINDOWS_MAX + 1)
        if len(held) > WINDOWS_MAX:
            last = held[-1].start
            held = [each for each in held if each.start < last]
        names = await _names_seen(connection, caller, {each.reservation_id for each in held})
    windows = [_window(each, names) for each in held]
    return GpuCalendar(
        gpu_id=gpu.id,
        pool_id=gpu.pool_id,
        stale_since=gpu.stale_since,
        start=first,
        end=last,
        windows=windows,
    )


def _span(start: str | None, end: str | None, now: datetime) -> tuple[datetime, datetime]:
    first = now if start is None else parse_instant(start, field="start")
    try:
        last = first + _USUAL if end is None else parse_instant(end, field="end")
    except OverflowError:
        raise InvalidInputError("reaches beyond the calendar", field="start", given=start) from None
    Window(start=first, end=last)
    if last - first > _LONGEST:
        raise InvalidInputError(
            "is more than 31 days after the start",
            field="end",
            given=end,
            allowed=f"an instant until {format_instant(first + _LONGEST)}",
        )
    return first, last


async def _names_seen(
    connection: Connection, caller: Caller, ids: Collection[str | None]
) -> dict[str, str | None]:
    """Return the names of those reservations that the caller may know of, by id."""
    wanted = {"ids": [each for each in ids if each is not None], "tenant_id": caller.tenant_id}
    cursor = await connection.execute(rows.QUERIES["names_seen"], wanted)
    return {row["id"]: row["name"] for row in await cursor.fetchall()}


def _window(row: CalendarRow, names: dict[str, str | None]) -> CalendarWindow:
    seen = row.reservation_id if row.reservation_id in names else None
    return CalendarWindow(
        what="partition"
        if row.reservation_id is None
        else "reserved"
        if seen is None
        else "reservation",
        reservation_id=seen,
        name=None if seen is None else names[seen],
        units=row.units,
        start=row.start,
        end=row.end,
        held_until=row.held_until,
    )
