"""Making way for who has not left: what was to begin on units that somebody is on is put off.

Nobody can be on units together. So what begins while its node has not said that the one before has
left begins later: as soon as they have, or there is room elsewhere, and its end stays as it is. Its
place is kept for it, by turns with whoever is still there, so that nobody else gets in between.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

from apportion.authority.service import SYSTEM
from apportion.bookings import service as bookings
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.quantities.windows import format_instant
from apportion.reservations import rows, topics
from apportion.store.batches import as_rows
from apportion.store.connections import Connection

Row = Mapping[str, Any]

OVERRUN: Final = "blocked_by_overrun"
_MESSAGE: Final = "whoever had it before has not let go of it"
_HINT: Final = (
    "it begins by itself when they have, or where there is room; release it to ask for another time"
)
_INSTANT: Final = timedelta(microseconds=1)


async def make_way(connection: Connection, now: datetime, limit: int) -> list[dict[str, Any]]:
    """Put off what has begun where somebody still is, so many at most; return it as it is by then.

    It begins when the units are kept for the one before no longer, or just before its end where
    that is sooner. Of what somebody has been given a part, the rest is theirs to wait for.
    """
    ids = list(_by_reservation(await _in_the_way(connection, None, now)))[:limit]
    if not ids:
        return []
    cursor = await connection.execute(rows.QUERIES["lock_begun"], {"ids": ids, "now": now})
    locked = {row["id"]: row for row in await cursor.fetchall()}
    await nodes.hold_nodes_of(connection, list(locked))
    await bookings.lock_gpus_under(connection, list(locked))
    # Nobody leaves and nothing is handed out while the nodes are held: what is found now is so.
    found = await _in_the_way(connection, list(locked), now)
    blocked = _by_reservation(found)
    until = now + nodes.KEPT
    starts = {one: min(until, locked[one]["ends_at"] - _INSTANT) for one in blocked}
    await nodes.unask(connection, list(starts))
    await bookings.put_off(connection, starts)
    await bookings.hold_over(connection, sorted({each["booking_id"] for each in found}), until)
    return await _delay(connection, [(locked[one], blocked[one]) for one in starts], starts, now)


async def _in_the_way(
    connection: Connection, ids: Sequence[str] | None, now: datetime
) -> list[dict[str, Any]]:
    """Return the pieces that somebody is on, of some reservations or of all."""
    parameters = {"ids": ids, "now": now}
    cursor = await connection.execute(rows.QUERIES["in_the_way"], parameters)
    return await cursor.fetchall()


def _by_reservation(found: Sequence[Row]) -> dict[str, list[Row]]:
    return {
        one: list(pieces) for one, pieces in groupby(found, key=lambda each: each["reservation_id"])
    }


async def _delay(
    connection: Connection,
    put_off: Sequence[tuple[Row, Sequence[Row]]],
    starts: Mapping[str, datetime],
    now: datetime,
) -> list[dict[str, Any]]:
    """Write that reservations begin later, and tell it once, however long that comes to be."""
    if not put_off:
        return []
    reasons = {row["id"]: _reason(row, pieces, starts[row["id"]], now) for row, pieces in put_off}
    delayed = [
        {
            "id": row["id"],
            "starts": starts[row["id"]],
            "waits_for": _waits_for(row),
            "reason": reasons[row["id"]],
        }
        for row, _ in put_off
    ]
    parameters = {"rows": as_rows(delayed), "now": now}
    cursor = await connection.execute(rows.QUERIES["delay"], parameters)
    written = await cursor.fetchall()
    news = [row for row, _ in put_off if row["reason"]["code"] != OVERRUN]
    told = [(row["id"], row["tenant_id"], reasons[row["id"]]) for row in news]
    await rows.note_reasons(connection, told, now)
    events = [_event(row, reasons[row["id"]], starts[row["id"]]) for row in news]
    await append(connection, SYSTEM, now, events)
    return written


def _reason(row: Row, pieces: Sequence[Row], start: datetime, now: datetime) -> dict[str, Any]:
    """Say why it has not begun, since when, and where; who is there where it is of its tenant."""
    before, first = row["reason"], pieces[0]
    again = before["code"] == OVERRUN
    held_by = next((each["held_by"] for each in pieces if each["held_by"]), None)
    return {
        "code": OVERRUN,
        "message": _MESSAGE,
        "since": before["since"] if again else format_instant(now),
        "until": format_instant(start),
        "changes": before.get("changes", -1) + (not again),
        "allocation_id": nodes.allocation_id(row["id"], first["piece"]),
        "gpu_id": first["gpu_id"],
        "on": first["node"],
        "blocked": len({each["piece"] for each in pieces}),
        **({"held_by": held_by} if held_by else {}),
        "hint": _HINT,
    }


def _waits_for(row: Row) -> list[str]:
    """Name what could let it begin: room in its pools, and other nodes of theirs."""
    return sorted(of(each) for each in row["candidates"] for of in (topics.room, topics.fleet))


def _event(row: Row, reason: Mapping[str, Any], start: datetime) -> Event:
    return Event(
        "reservation.delayed",
        row["tenant_id"],
        row["id"],
        {"pool_id": row["pool_id"], "start": format_instant(start), "reason": reason},
        before={"start": format_instant(row["starts_at"])},
        after={"start": format_instant(start)},
    )


def missed(row: Row) -> dict[str, Any]:
    """Say why a reservation fails that somebody was in the way of till the end of its window."""
    told = {"since": format_instant(row["starts_at"]), **row["reason"]}
    kept = ("since", "allocation_id", "gpu_id", "on")
    story = {key: told[key] for key in kept if key in told}
    message = f"its window is over, and {_MESSAGE}"
    return {"code": OVERRUN, "message": message, **story, "hint": "reserve again"}
