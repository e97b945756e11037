"""The reservations table and the events of reservations."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller
from apportion.events.service import Event, append
from apportion.quantities.windows import format_instant
from apportion.reservations.plan import Placed, Waiting
from apportion.store.batches import as_rows
from apportion.store.connections import Connection
from apportion.store.errors import guards, register
from apportion.store.sql import load

QUERIES: Final = load("apportion.reservations")

register(
    guards(
        "reservations_state_known",
        "reservations_reason_coded",
        "reservations_candidates_given",
        "reservations_pool_is_candidate",
        "reservations_live_has_window",
        "reservations_window_forward",
        "reservations_asks_for_time",
        "reservations_asks_for_something",
        "reservations_host_not_negative",
    )
)


async def lock_pending(connection: Connection, ids: Collection[str]) -> set[str]:
    """Lock those that are pending and that nobody else is placing now."""
    if not ids:
        return set()
    cursor = await connection.execute(QUERIES["lock_pending"], {"ids": sorted(ids)})
    return {row["id"] for row in await cursor.fetchall()}


async def existing(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those ids that are there already."""
    if not ids:
        return set()
    cursor = await connection.execute(QUERIES["existing"], {"ids": sorted(ids)})
    return {row["id"] for row in await cursor.fetchall()}


async def hashes(connection: Connection, ids: Collection[str]) -> dict[str, bytes]:
    """Return what each of some reservations was asked with, as a hash."""
    if not ids:
        return {}
    cursor = await connection.execute(QUERIES["hashes"], {"ids": sorted(ids)})
    return {row["id"]: bytes(row["request_hash"]) for row in await cursor.fetchall()}


async def write(
    connection: Connection, placed: Sequence[Placed], waiting: Sequence[Waiting], now: datetime
) -> None:
    """Write new reservations, and what became of waiting ones."""
    new = [*placed, *waiting]
    await _insert(connection, [each for each in new if not each.draft.waiting], now)
    tried = [each for each in placed if each.draft.waiting]
    if tried:
        await connection.execute(
            QUERIES["place_pending"],
            {
                "ids": [each.draft.id for each in tried],
                "pool_ids": [each.pool.id for each in tried],
                "states": [_state(each, now) for each in tried],
                "starts": [each.start for each in tried],
                "ends": [each.end for each in tried],
                "charges": [Jsonb(_charges(each)) for each in tried],
                "now": now,
            },
        )
    still = [
        each
        for each in waiting
        if each.draft.waiting and _codes(each.reason) != _codes(each.draft.reason)
    ]
    if still:
        await connection.execute(
            QUERIES["keep_pending"],
            {
                "ids": [each.draft.id for each in still],
                "reasons": [Jsonb(each.reason) for each in still],
                "now": now,
            },
        )


def _codes(reason: Mapping[str, Any]) -> list[str]:
    """Return what a reason says but for its counts: those change with every booking of others."""
    return [reason["code"], *(each["code"] for each in reason.get("reasons", ()))]


async def tell(
    connection: Connection,
    caller: Caller,
    now: datetime,
    placed: Sequence[Placed],
    waiting: Sequence[Waiting],
) -> None:
    """Append what happened; a waiting one that goes on waiting is no news."""
    events = [
        Event(
            "reservation.placed",
            each.draft.tenant_id,
            each.draft.id,
            {
                "pool_id": each.pool.id,
                "state": _state(each, now),
                "start": format_instant(each.start),
                "end": format_instant(each.end),
                "charges": _charges(each),
            },
        )
        for each in placed
    ]
    events += [
        Event("reservation.pending", each.draft.tenant_id, each.draft.id, each.reason)
        for each in waiting
        if not each.draft.waiting
    ]
    await append(connection, caller, now, events)


async def _insert(
    connection: Connection, decisions: Sequence[Placed | Waiting], now: datetime
) -> None:
    if not decisions:
        return
    rows = [_row(each, now) for each in decisions]
    await connection.execute(QUERIES["insert"], {"rows": as_rows(rows), "now": now})


def _row(decision: Placed | Waiting, now: datetime) -> dict[str, object]:
    draft = decision.draft
    placed = decision if isinstance(decision, Placed) else None
    return {
        "id": draft.id,
        "tenant_id": draft.tenant_id,
        "caller": draft.caller,
        "name": draft.name,
        "pool_id": None if placed is None else placed.pool.id,
        "candidates": draft.candidates,
        "state": "pending" if placed is None else _state(placed, now),
        "reason": decision.reason if isinstance(decision, Waiting) else _placed_in(decision),
        "devices": draft.devices,
        "vcpu_milli": draft.ask.vcpu_milli,
        "memory_mib": draft.ask.memory_mib,
        "asked_start": draft.asked_start,
        "asked_end": draft.asked_end,
        "duration": draft.duration,
        "starts_at": None if placed is None else placed.start,
        "ends_at": None if placed is None else placed.end,
        "pending_until": draft.pending_until,
        "charges": {} if placed is None else _charges(placed),
        "charged_tenant_id": None if placed is None else draft.tenant_id,
        "request_hash": draft.request_hash,
        "created_at": draft.created_at,
    }


def _state(placed: Placed, now: datetime) -> str:
    """Return where a placed one stands: a window that has begun is active at once."""
    return "active" if placed.start <= now else "placed"


def _placed_in(placed: Placed) -> dict[str, str]:
    return {"code": "placed", "message": f"placed in {placed.pool.name}"}


def _charges(placed: Placed) -> dict[str, str]:
    return {key: f"{amount:f}" for key, amount in placed.draft.charges.items()}


def read_charges(charges: Mapping[str, Any]) -> dict[str, Decimal]:
    """Read back what a reservation was charged."""
    return {resource: Decimal(amount) for resource, amount in charges.items()}
