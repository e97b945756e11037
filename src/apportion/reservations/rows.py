"""The reservations table and the events of reservations."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from psycopg.types.json import Jsonb

from apportion.bookings.service import BookingView
from apportion.events.service import Event, append, append_all
from apportion.pools.schemas import Quantity, QuotaResource
from apportion.pools.service import QuotaKey, show_amount
from apportion.quantities.windows import format_instant
from apportion.reservations.moved import moved_event
from apportion.reservations.plan import Decision, Placed
from apportion.reservations.reasons import Gone, Waiting
from apportion.reservations.told import ReasonThen
from apportion.store.batches import as_rows
from apportion.store.connections import Connection
from apportion.store.errors import guards, register
from apportion.store.sql import load

QUERIES: Final = load("apportion.reservations")

REASONS_KEPT: Final = 100
"""The most rows of one reservation's story: the first, and the last ones."""
_AFTER_WAITING: Final = {"code": "placed", "message": "placed after waiting"}
_WAITED: Final = {"state": "pending"}

register(
    guards(
        "reservations_state_known",
        "reservations_reason_coded",
        "reservations_candidates_given",
        "reservations_pool_is_candidate",
        "reservations_live_has_window",
        "reservations_live_is_charged",
        "reservations_window_forward",
        "reservations_asks_for_time",
        "reservations_asks_for_something",
        "reservations_host_not_negative",
        "reservations_slack_has_length",
        "reservations_members_counted",
        "reservations_placement_is_object",
        "reservations_topology_scored",
        "reservations_waiting_ends",
        "reservations_delayed_begins_later",
        "reservations_series_fkey",
        "series_recurrence_is_object",
        "reservation_reasons_reservation_fkey",
        "reservation_reasons_coded",
    )
)


async def lock_pending(connection: Connection, ids: Collection[str]) -> set[str]:
    """Lock those that are pending and that nobody else is placing now."""
    if not ids:
        return set()
    cursor = await connection.execute(QUERIES["lock_pending"], {"ids": sorted(ids)})
    return {row["id"] for row in await cursor.fetchall()}


async def lock_reserved(
    connection: Connection, ids: Collection[str], now: datetime
) -> dict[str, dict[str, Any]]:
    """Lock those whose start is reserved and still to come, and that nobody else changes now."""
    parameters = {"ids": sorted(ids), "now": now}
    cursor = await connection.execute(QUERIES["lock_reserved"], parameters)
    return {row["id"]: row for row in await cursor.fetchall()}


async def began_waiting(connection: Connection, since: str) -> bool:
    """Tell whether any that still wait may have begun to, or for something else, since then."""
    cursor = await connection.execute(QUERIES["began_waiting"], {"since": since})
    return await cursor.fetchone() is not None


async def history(connection: Connection, reservation_id: str) -> list[ReasonThen]:
    """Return what a reservation has waited for, the first reason first."""
    cursor = await connection.execute(QUERIES["reasons"], {"id": reservation_id})
    return [ReasonThen(**row) for row in await cursor.fetchall()]


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


async def write(connection: Connection, kept: Sequence[Decision], now: datetime) -> None:
    """Write new reservations, and what became of waiting ones."""
    placed = [each for each in kept if isinstance(each, Placed)]
    waiting = [each for each in kept if isinstance(each, Waiting)]
    gone = [each for each in kept if isinstance(each, Gone)]
    new = [*placed, *waiting]
    await _insert(connection, [each for each in new if not each.draft.waiting])
    tried = [each for each in placed if each.draft.waiting]
    if tried:
        found = [_found(each) for each in tried]
        await connection.execute(QUERIES["place_pending"], {"rows": as_rows(found), "now": now})
    await _keep_reasons(connection, waiting, now)
    reserved = [(each.draft, _reserved(each)) for each in tried if _is_reserved(each)]
    news = [(each.draft, each.reason) for each in waiting if each.is_news]
    told = [(draft.id, draft.tenant_id, reason) for draft, reason in (*news, *reserved)]
    await note_reasons(connection, told, now)
    if gone:
        await connection.execute(
            QUERIES["fail_pending"],
            {
                "ids": [each.draft.id for each in gone],
                "reasons": [Jsonb(each.reason) for each in gone],
                "now": now,
            },
        )


def _found(placed: Placed) -> dict[str, object]:
    """Return what one that waited has by now."""
    reserved = _is_reserved(placed)
    return {
        "id": placed.draft.id,
        "pool_id": placed.pool.id,
        "state": placed.state,
        "reason": _reserved(placed) if reserved else _AFTER_WAITING,
        "starts": placed.start,
        "ends": placed.end,
        "told": placed.tell_end_at,
        "charges": _stored(placed),
        "topology": _topology(placed),
        "charged": placed.pool.quota_tenant_id,
        "reserved": reserved,
    }


def _is_reserved(placed: Placed) -> bool:
    return placed.draft.reserving and placed.start > placed.at


def _reserved(placed: Placed) -> dict[str, Any]:
    draft, start = placed.draft, format_instant(placed.start)
    message = f"it waited long enough to have its start reserved: {start}"
    if draft.sooner_than is not None:
        message = (
            f"its reserved start came forward from {format_instant(draft.sooner_than)} to {start}"
        )
    return {
        "code": "reserved_start",
        "message": message,
        "since": draft.reason.get("since"),
        "changes": draft.reason.get("changes", 0) + 1,
        "reserved_at": draft.reason.get("reserved_at", format_instant(placed.at)),
    }


async def _keep_reasons(connection: Connection, waiting: Sequence[Waiting], now: datetime) -> None:
    still = [
        {"id": each.draft.id, "reason": each.reason, "waits_for": each.waits_for}
        for each in waiting
        if each.draft.waiting and each.is_news
    ]
    if still:
        await connection.execute(QUERIES["keep_pending"], {"rows": as_rows(still), "now": now})


async def note_reasons(
    connection: Connection, told: Sequence[tuple[str, str, Mapping[str, Any]]], now: datetime
) -> None:
    """Keep the story of reservations: (id, tenant, reason) whenever the codes of it change.

    Counts, which always do, are no change.
    """
    if not told:
        return
    noted = [
        {"id": own_id, "tenant_id": tenant_id, "reason": reason}
        for own_id, tenant_id, reason in told
    ]
    await connection.execute(QUERIES["note_reasons"], {"rows": as_rows(noted), "now": now})
    long = [own_id for own_id, _, reason in told if reason["changes"] >= REASONS_KEPT]
    if long:
        await connection.execute(QUERIES["forget_reasons"], {"ids": long, "most": REASONS_KEPT})


async def lie_elsewhere(connection: Connection, moved: Sequence[Placed], now: datetime) -> None:
    """Write how well the GPUs reach each other that reservations were moved to."""
    if moved:
        found = [{"id": each.draft.id, "topology": _topology(each)} for each in moved]
        await connection.execute(QUERIES["set_topology"], {"rows": as_rows(found), "now": now})


async def charged_of_series(
    connection: Connection, series_id: str, tenant_id: str, pool_id: str, charged_tenant_id: str
) -> dict[str, Decimal]:
    """Return what the live reservations of a series are charged in a pool, all together."""
    parameters = {
        "tenant_id": tenant_id,
        "series_id": series_id,
        "pool_id": pool_id,
        "charged_tenant_id": charged_tenant_id,
    }
    cursor = await connection.execute(QUERIES["charged_of_series"], parameters)
    return {row["resource"]: row["amount"] for row in await cursor.fetchall()}


def charged(row: Mapping[str, Any]) -> dict[QuotaKey, Decimal]:
    """Return what a live reservation is charged, and to whom."""
    return {
        (row["charged_tenant_id"], row["pool_id"], resource): amount
        for resource, amount in read_charges(row["charges"]).items()
    }


async def tell_sooner(
    connection: Connection, placed: Placed, before: Sequence[BookingView], now: datetime
) -> None:
    """Tell that a reserved start came forward, and that it runs, where it does so at once."""
    draft = placed.draft
    events = [moved_event(placed, draft.id, before)]
    if placed.state == "active":
        facts = {"pool_id": placed.pool.id}
        started = Event(
            "reservation.started",
            draft.tenant_id,
            draft.id,
            facts,
            before={"state": "placed"},
            after={"state": "active"},
        )
        events.append(started)
    await append(connection, draft.by, now, events)


async def tell(connection: Connection, now: datetime, kept: Sequence[Decision]) -> None:
    """Append what happened; a waiting one that goes on waiting is no news."""
    events = [(each.draft.by, event) for each in kept if (event := _event(each)) is not None]
    await append_all(connection, now, events)


def _event(decision: Decision) -> Event | None:
    draft = decision.draft
    match decision:
        case Placed():
            # One that had its place before is told of as moved: see `tell_sooner`.
            return None if draft.sooner_than is not None else _placed_event(decision)
        case Gone():
            return Event(
                "reservation.failed",
                draft.tenant_id,
                draft.id,
                {"reason": decision.reason},
                before=_WAITED,
                after={"state": "failed"},
            )
        case Waiting() if not draft.waiting:
            return Event(
                "reservation.pending",
                draft.tenant_id,
                draft.id,
                decision.reason,
                after=_WAITED,
            )
        case _:
            return None


def _placed_event(placed: Placed) -> Event:
    draft, state = placed.draft, placed.state
    return Event(
        "reservation.placed",
        draft.tenant_id,
        draft.id,
        {
            "pool_id": placed.pool.id,
            "state": state,
            "start": format_instant(placed.start),
            "end": None if draft.open_ended else format_instant(placed.end),
            "charged_tenant_id": placed.pool.quota_tenant_id,
            "charges": {of: _shown(of, amount) for of, amount in placed.charges.items()},
        },
        before=_WAITED if draft.waiting else None,
        # No more than that: the facts stand beside it, and the ask in the reservation, for good.
        after={"state": state},
    )


@lru_cache(maxsize=4096)
def _shown(resource: str, amount: Decimal) -> Quantity:
    """Write an amount for people; few are as many as there are reservations."""
    return show_amount(resource, amount)


async def _insert(connection: Connection, decisions: Sequence[Placed | Waiting]) -> None:
    if not decisions:
        return
    rows = [row_of(each) for each in decisions]
    await connection.execute(QUERIES["insert"], {"rows": as_rows(rows)})


def row_of(decision: Placed | Waiting) -> dict[str, Any]:
    """Return the row of a new reservation; ``updated_at`` is when it was decided."""
    draft = decision.draft
    placed = decision if isinstance(decision, Placed) else None
    return {
        "id": draft.id,
        "tenant_id": draft.tenant_id,
        "caller": draft.caller,
        "name": draft.name,
        "pool_id": None if placed is None else placed.pool.id,
        "candidates": draft.candidates,
        "state": "pending" if placed is None else placed.state,
        "reason": decision.reason if isinstance(decision, Waiting) else _placed_in(decision),
        "devices": draft.devices,
        "vcpu_milli": draft.ask.vcpu_milli,
        "memory_mib": draft.ask.memory_mib,
        "asked_start": draft.asked_start,
        "asked_end": draft.asked_end,
        "duration": draft.duration,
        "starts_at": None if placed is None else placed.start,
        "ends_at": None if placed is None else placed.end,
        "tell_end_at": None if placed is None else placed.tell_end_at,
        "pending_until": draft.pending_until,
        "charges": {} if placed is None else _stored(placed),
        "charged_tenant_id": None if placed is None else placed.pool.quota_tenant_id,
        "request_hash": draft.request_hash,
        "created_at": draft.created_at,
        "updated_at": decision.at,
        "placement": draft.placement,
        "members": draft.members,
        "end_before": draft.end_before,
        "open_ended": draft.open_ended,
        "series_id": draft.series_id,
        "priority": draft.priority,
        "waits_for": decision.waits_for if isinstance(decision, Waiting) else (),
        "reserve_at": decision.reserve_at if isinstance(decision, Waiting) else None,
        "topology": None if placed is None else _topology(placed),
        "delayed_from": None,
    }


def _topology(placed: Placed) -> dict[str, object] | None:
    found = placed.topology
    return None if found is None else {"score": found.score, "link": found.link}


def _placed_in(placed: Placed) -> dict[str, str]:
    return {"code": "placed", "message": f"placed in {placed.pool.name}"}


def _stored(placed: Placed) -> dict[str, str]:
    return {resource: f"{amount:f}" for resource, amount in placed.charges.items()}


def read_charges(charges: Mapping[str, Any]) -> dict[str, Decimal]:
    """Read back what a reservation was charged."""
    return {resource: Decimal(amount) for resource, amount in charges.items()}


def show_charges(charges: Mapping[str, Any]) -> dict[QuotaResource, Quantity]:
    """Write what a reservation was charged for people: equivalents as parts of a GPU."""
    return {
        cast("QuotaResource", of): _shown(of, amount)
        for of, amount in read_charges(charges).items()
    }
