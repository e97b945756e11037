"""The end of reservations: over at once, or ending until nobody is on what they had.

A node with an agent that has handed something out has to say that it was taken back. Until then
the reservation is ``ending``: it is charged, its units are nobody else's, and the reason for which
it ends is on it already. Quotas are given back when it is over: they are the last lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import SYSTEM, Caller
from apportion.bookings import service as bookings
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.pools.service import QuotaKey, charge, close_gates_of
from apportion.quantities.windows import format_instant
from apportion.reservations import rows
from apportion.reservations.ends import end_text
from apportion.reservations.making_way import missed
from apportion.reservations.schemas import LIVE, State
from apportion.store.connections import Connection
from apportion.tenants.service import on_delete

Row = Mapping[str, Any]

_EXPIRED: Final = {"code": "expired", "message": "its window has ended"}
_TOLD: Final[Mapping[State, str]] = {
    "ending": "reservation.ending",
    "ended": "reservation.ended",
    "failed": "reservation.failed",
}
_INSTANT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a reservation that was locked, and why.

    ``held`` where somebody is still on it, ``missed`` where it never began.
    """

    row: Row
    reason: Mapping[str, Any]
    held: bool
    missed: bool = False

    @property
    def state(self) -> State:
        """What it is from now on."""
        if self.missed:
            return "failed"
        return "ending" if self.held else "ended"


async def end_now(
    connection: Connection, caller: Caller, found: Sequence[Row], now: datetime, why: str
) -> None:
    """End locked reservations that wait or live; ``why`` says by or with whom.

    What has begun is shortened to now, what has not is voided. One that is ending goes on to.
    """
    going = [row for row in found if row["state"] != "ending"]
    held = await _withdraw(connection, going, now)
    await _give_up(connection, going)
    # Somebody is on it, so its window has begun, whatever the clock of this server says.
    begun = [row["starts_at"] + _INSTANT for row in going if row["id"] in held]
    at = max([now, *begun])
    await bookings.finish(connection, [row["id"] for row in going], at)
    await _keep(connection, held, at)
    ends = [_End(row, _reason(row, at, why), row["id"] in held) for row in going]
    await _end(connection, caller, ends, at)


async def end_due(connection: Connection, now: datetime, limit: int) -> int:
    """End the windows that are over by the clock, so many at most; returns how many.

    What never had anything because somebody else did not leave has failed, and is not billed.
    """
    parameters = {"now": now, "limit": limit}
    cursor = await connection.execute(rows.QUERIES["due_to_end"], parameters)
    due = await cursor.fetchall()
    held = await _withdraw(connection, due, now)
    failed = await _give_up(connection, due)
    await _keep(connection, held, now)
    ends = [
        _End(row, missed(row), held=False, missed=True)
        if row["id"] in failed
        else _End(row, _EXPIRED, row["id"] in held)
        for row in due
    ]
    await _end(connection, SYSTEM, ends, now)
    return len(due)


async def settle_due(connection: Connection, now: datetime, limit: int) -> int:
    """Let those be over that were ending, and that nobody is on any more; returns how many."""
    parameters = {"limit": limit}
    cursor = await connection.execute(rows.QUERIES["given_back"], parameters)
    due = await cursor.fetchall()
    await _settle(connection, SYSTEM, due, now)
    return len(due)


async def _withdraw(
    connection: Connection, going: Sequence[Row], now: datetime
) -> dict[str, list[int]]:
    """Ask nodes no more for what is over; returns the bookings that somebody may still be on."""
    live = [row["id"] for row in going if row["state"] in LIVE]
    await nodes.hold_nodes_of(connection, live)
    held = await nodes.withdraw(connection, live, now)
    await bookings.lock_gpus_of(connection, [each for ids in held.values() for each in ids])
    return held


async def _give_up(connection: Connection, going: Sequence[Row]) -> set[str]:
    """Take back what was booked and never had, because somebody is still on it.

    It would else lie between them and what keeps it for them from now on. Returns which of the
    reservations, whose windows have begun, had nothing at all.
    """
    live = [row["id"] for row in going if row["state"] in LIVE]
    gave_up = await bookings.give_up(connection, live)
    placed = [row["id"] for row in going if row["state"] == "placed"]
    if not placed:
        return set()
    parameters = {"ids": placed, "gave_up": sorted(gave_up)}
    cursor = await connection.execute(rows.QUERIES["never_given"], parameters)
    missed = {row["id"] for row in await cursor.fetchall()}
    for row in going:
        if row["id"] in missed:
            await bookings.finish(connection, [row["id"]], row["starts_at"])
    return missed


async def _keep(connection: Connection, held: Mapping[str, Sequence[int]], now: datetime) -> None:
    kept = [each for ids in held.values() for each in ids]
    await bookings.hold_over(connection, kept, now + nodes.KEPT)


async def _end(connection: Connection, caller: Caller, ends: Sequence[_End], now: datetime) -> None:
    """Write that reservations are over, or are ending; what is over is charged no more."""
    if not ends:
        return
    parameters = {
        "ids": [end.row["id"] for end in ends],
        "states": [end.state for end in ends],
        "reasons": [Jsonb(end.reason) for end in ends],
        "now": now,
    }
    cursor = await connection.execute(rows.QUERIES["end"], parameters)
    at = {row["id"]: row["ends_at"] for row in await cursor.fetchall()}
    over = [end.row for end in ends if not end.held and end.row["state"] in LIVE]
    await append(connection, caller, now, [_event(end, at[end.row["id"]]) for end in ends])
    await give_back(connection, over)


async def _settle(
    connection: Connection, caller: Caller, ending: Sequence[Row], now: datetime
) -> None:
    """Let locked reservations that are ending be over, for the reason for which they ended."""
    if not ending:
        return
    parameters = {"ids": [row["id"] for row in ending], "now": now}
    cursor = await connection.execute(rows.QUERIES["settle"], parameters)
    reasons = {row["id"]: row["reason"] for row in await cursor.fetchall()}
    told = [
        Event(
            "reservation.ended",
            row["tenant_id"],
            row["id"],
            _facts(row, reasons[row["id"]]),
            before={"state": "ending"},
            after={"state": "ended"},
        )
        for row in ending
    ]
    await append(connection, caller, now, told)
    await give_back(connection, ending)


async def give_back(connection: Connection, ended: Sequence[Row]) -> None:
    """Give back what ended reservations were charged to the quotas that they were charged to.

    Whose quota it would be by now does not matter: offers come and go while work runs. What is
    charged for a series, its peak, the next that lives of it takes over.
    """
    amounts: dict[QuotaKey, Decimal] = {}
    for row in ended:
        if row["series_id"] is not None and await _hand_over(connection, row):
            continue
        for resource, amount in rows.read_charges(row["charges"]).items():
            key = (row["charged_tenant_id"], row["pool_id"], resource)
            amounts[key] = amounts.get(key, Decimal(0)) - amount
    await charge(connection, amounts)


async def _hand_over(connection: Connection, ended: Row) -> bool:
    """Charge the next of a series with what one that ended was; False where none is left."""
    cursor = await connection.execute(rows.QUERIES["lock_heir"], ended)
    heir = await cursor.fetchone()
    if heir is None:
        return False
    charges = rows.read_charges(heir["charges"])
    for resource, amount in rows.read_charges(ended["charges"]).items():
        charges[resource] = charges.get(resource, Decimal(0)) + amount
    shown = {resource: f"{amount:f}" for resource, amount in charges.items()}
    parameters = {"id": heir["id"], "charges": Jsonb(shown)}
    await connection.execute(rows.QUERIES["set_charges"], parameters)
    return True


async def end_those_of(
    connection: Connection, caller: Caller, tenant_id: str, now: datetime
) -> Mapping[str, Sequence[str] | int]:
    """End whatever a tenant that is being deleted has or waits for.

    Nobody is left whom it could be charged to: it is over at once, though nobody else gets the
    units before its nodes say that they are free.
    """
    of = {"tenant_id": tenant_id}
    cursor = await connection.execute(rows.QUERIES["lock_unended"], of)
    found = await cursor.fetchall()
    await end_now(connection, caller, found, now, "with its tenant, which was deleted")
    cursor = await connection.execute(rows.QUERIES["lock_unended"], of)
    await _settle(connection, caller, await cursor.fetchall(), now)
    return {"ended_reservations": len(found)}


async def _wait_for_placers(
    connection: Connection, _caller: Caller, tenant_id: str, _now: datetime
) -> Mapping[str, Sequence[str] | int]:
    """Let what is placed for a tenant now be placed, so that it is ended too, and nothing after.

    The gates of its pools are closed with its own: they come before all other locks.
    """
    await close_gates_of(connection, tenant_id)
    return {}


on_delete(0, _wait_for_placers)
on_delete(10, end_those_of)


def _reason(row: Row, now: datetime, why: str) -> dict[str, str]:
    if row["state"] in LIVE and row["ends_at"] <= now:
        # The clock was first, though no tick has said so yet.
        return _EXPIRED
    begun = row["state"] in LIVE and row["starts_at"] < now
    code = "released" if begun else "cancelled"
    return {"code": code, "message": f"{code} {why}"}


def _event(end: _End, at: datetime | None) -> Event:
    row = end.row
    return Event(
        _TOLD[end.state],
        row["tenant_id"],
        row["id"],
        _facts(row, end.reason),
        before={"state": row["state"], "end": end_text(row)},
        after={"state": end.state, "end": None if at is None else format_instant(at)},
    )


def _facts(row: Row, reason: Mapping[str, Any]) -> dict[str, object]:
    return {
        "pool_id": row["pool_id"],
        "reason": reason,
        "charges": rows.show_charges(row["charges"]),
    }
