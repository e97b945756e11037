"""Ending reservations before their time, and giving back what they were charged."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.pools.service import QuotaKey, charge, close_gates_of
from apportion.quantities.windows import format_instant
from apportion.reservations import rows
from apportion.reservations.ends import end_text
from apportion.reservations.schemas import LIVE
from apportion.store.connections import Connection
from apportion.tenants.service import on_delete

Row = Mapping[str, Any]


async def end_now(
    connection: Connection, caller: Caller, found: Sequence[Row], now: datetime, why: str
) -> None:
    """End locked reservations that wait or live; ``why`` says by or with whom.

    What has begun is shortened to now, what has not is voided. Quotas are the last lock.
    """
    if not found:
        return
    live = [row["id"] for row in found if row["state"] in LIVE]
    await nodes.hold_nodes_of(connection, live)
    await nodes.withdraw(connection, live, now)
    await bookings.finish(connection, [row["id"] for row in found], now)
    reasons = {row["id"]: _reason(row, now, why) for row in found}
    cursor = await connection.execute(
        rows.QUERIES["end"],
        {
            "ids": list(reasons),
            "reasons": [Jsonb(reason) for reason in reasons.values()],
            "now": now,
        },
    )
    ends = {row["id"]: row["ends_at"] for row in await cursor.fetchall()}
    await give_back(connection, [row for row in found if row["state"] in LIVE])
    events = [_event(row, reasons[row["id"]], ends[row["id"]]) for row in found]
    await append(connection, caller, now, events)


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
    """End whatever a tenant that is being deleted has or waits for."""
    cursor = await connection.execute(rows.QUERIES["lock_unended"], {"tenant_id": tenant_id})
    found = await cursor.fetchall()
    await end_now(connection, caller, found, now, "with its tenant, which was deleted")
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
        return {"code": "expired", "message": "its window has ended"}
    begun = row["state"] in LIVE and row["starts_at"] < now
    code = "released" if begun else "cancelled"
    return {"code": code, "message": f"{code} {why}"}


def _event(row: Row, reason: Mapping[str, str], end: datetime | None) -> Event:
    return Event(
        "reservation.ended",
        row["tenant_id"],
        row["id"],
        {
            "pool_id": row["pool_id"],
            "reason": reason,
            "charges": rows.show_charges(row["charges"]),
        },
        before={"state": row["state"], "end": end_text(row)},
        after={"state": "ended", "end": None if end is None else format_instant(end)},
    )
