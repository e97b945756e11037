"""What nodes are asked to hand out: written when a window begins, withdrawn when it ends.

Both happen in the transaction of what they follow from, and raise the generation of the node's
spec, so that a spec never says two things under one number. Every row is written under its node's
lock, which is taken before those of GPUs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import SYSTEM
from apportion.bookings.service import hold_over, let_go
from apportion.events.service import Event, append
from apportion.nodes.allocations import AllocationReleased
from apportion.nodes.devices import (
    ASKED,
    OVER,
    OVERRUN,
    Assigned,
    Seen,
    Words,
    allocation_id,
    said,
    see,
    see_leaving,
    words_of,
)
from apportion.nodes.schemas import NodeReport
from apportion.quantities.units import from_multirange
from apportion.store.batches import as_rows
from apportion.store.connections import Connection
from apportion.store.errors import guards, register
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")
_TOLD: Final = {
    "ready": "reservation.device_ready",
    "missing": "reservation.device_missing",
}
_SETTLED: Final = ("device_released",)
KEPT: Final = timedelta(minutes=2)
"""How long at a time units are kept for whoever has not left them; renewed while half is left.

So long may all servers be away before others could book them; none takes work before it has
renewed them. When they are given back the rest of it is given up.
"""


register(
    guards(
        "assignments_state_known",
        "assignments_reason_coded",
        "assignments_generation_counted",
        "assignments_bound_by_report",
        "assignments_released_by_report",
        "assignments_released_is_withdrawn",
    )
)


async def hold_nodes_of(connection: Connection, reservation_ids: Sequence[str]) -> None:
    """Hold the nodes with an agent on which some reservations lie; precedes their GPUs."""
    if reservation_ids:
        await connection.execute(_QUERIES["hold_nodes_of"], {"ids": list(reservation_ids)})


async def assign(connection: Connection, reservation_ids: Sequence[str], now: datetime) -> None:
    """Ask the nodes of reservations whose window has begun for what they have, once.

    The nodes are held. Where nobody follows a node's spec, nobody is asked.
    """
    if reservation_ids:
        parameters = {"ids": list(reservation_ids), "now": now}
        reasons = {"asked": Jsonb(ASKED), "over": Jsonb(OVER)}
        await connection.execute(_QUERIES["assign"], parameters | reasons)


async def withdraw(
    connection: Connection, reservation_ids: Sequence[str], now: datetime
) -> dict[str, list[int]]:
    """Ask nobody any more for what reservations had that are over; their nodes are held.

    Returns the bookings that somebody may still be on, by reservation: their nodes have handed them
    out, and have to say that they were taken back.
    """
    if not reservation_ids:
        return {}
    parameters = {"ids": list(reservation_ids), "now": now, "over": Jsonb(OVER)}
    await connection.execute(_QUERIES["withdraw"], parameters)
    cursor = await connection.execute(_QUERIES["in_hands"], parameters)
    held: dict[str, list[int]] = {}
    for row in await cursor.fetchall():
        held.setdefault(row["reservation_id"], []).append(row["booking_id"])
    return held


async def unask(connection: Connection, reservation_ids: Sequence[str]) -> None:
    """Forget that nodes, which are held, were asked for what reservations have: it begins later.

    They can be asked again. No node has said that it handed any of it out.
    """
    if reservation_ids:
        await connection.execute(_QUERIES["unask"], {"ids": list(reservation_ids)})


async def keep_in_hands(connection: Connection, now: datetime) -> None:
    """Keep what somebody may still be on from others for longer, as far as nobody else has it.

    A node that says nothing keeps what it has as well: nobody can say that it is free.
    """
    cursor = await connection.execute(_QUERIES["to_keep"], {"before": now + KEPT / 2})
    due = [row["booking_id"] for row in await cursor.fetchall()]
    await hold_over(connection, due, now + KEPT)


async def leavers(connection: Connection, node_id: int) -> list[str]:
    """Return who may still be on what they had of a held node, nobody's window on which goes on."""
    cursor = await connection.execute(_QUERIES["leavers"], {"node_id": node_id})
    return [row["reservation_id"] for row in await cursor.fetchall()]


async def ask_anew(connection: Connection, reservation_id: str) -> None:
    """Tell the nodes of a reservation that its window ends at another instant; they are held."""
    await connection.execute(_QUERIES["ask_anew"], {"ids": [reservation_id]})


async def assign_missing(connection: Connection, node_ids: Sequence[int], now: datetime) -> None:
    """Ask some nodes, which are held, for all that began on them and they were not asked for.

    That is what began before there was an agent on them.
    """
    parameters = {"node_ids": list(node_ids), "now": now}
    cursor = await connection.execute(_QUERIES["unassigned"], parameters)
    await assign(connection, [row["reservation_id"] for row in await cursor.fetchall()], now)


async def assigned_to(connection: Connection, node_id: int) -> list[Assigned]:
    """Return what a node is asked to hand out, by GPU."""
    cursor = await connection.execute(_QUERIES["assigned"], {"node_id": node_id})
    found: list[Assigned] = []
    for row in await cursor.fetchall():
        share = Fraction(row.pop("share_num"), row.pop("share_den"))
        units = from_multirange(row.pop("units"))
        found.append(Assigned(**row, share=share, units=units))
    return found


async def gpus_there(connection: Connection, node_id: int) -> list[str]:
    """Return the UUIDs of a node's GPUs, in the node's order."""
    cursor = await connection.execute(_QUERIES["gpus_there"], {"node_id": node_id})
    return [row["uuid"] for row in await cursor.fetchall()]


async def note_devices(
    connection: Connection, assigned: Iterable[Assigned], report: NodeReport, now: datetime
) -> None:
    """Write what a report, which was taken in, says of what its node was asked for."""
    words = words_of(report)
    changed = [
        (each, seen)
        for each in assigned
        for seen in (see(each, report, words),)
        if Seen(each.state, each.reason, each.device, each.bound) != seen
    ]
    if not changed:
        return
    rows = [
        {
            "booking_id": each.booking_id,
            "state": seen.state,
            "reason": seen.reason,
            "device": seen.device,
            "bound": seen.bound,
        }
        for each, seen in changed
    ]
    await connection.execute(_QUERIES["note_devices"], {"rows": as_rows(rows), "now": now})
    events = [event for each, seen in changed for event in _there(each, seen)]
    await append(connection, SYSTEM, now, events)


async def note_leaving(
    connection: Connection, node_id: int, report: NodeReport, now: datetime
) -> None:
    """Write how what was withdrawn is given back, as a report says that was taken in.

    Who is still on it keeps its units, as far as nobody else has them; what is given back others
    can have at once.
    """
    words = words_of(report)
    if words is None:
        return
    names = [name for name, word in words.items() if word.state in ("ending", "released")]
    cursor = await connection.execute(_QUERIES["leaving"], {"node_id": node_id, "names": names})
    changed: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for row in await cursor.fetchall():
        word = words.get(allocation_id(row["reservation_id"], row["piece"]))
        reason = see_leaving(word, knows=report.observed_generation >= row["generation"])
        if reason is not None and reason != row["reason"]:
            changed.append((row, reason))
    if not changed:
        return
    written = [
        {
            "booking_id": row["booking_id"],
            "reason": reason,
            "since": row["reason"].get("code") != reason["code"],
            "released": _released(row, report, words) if reason["code"] in _SETTLED else None,
        }
        for row, reason in changed
    ]
    still = [row["booking_id"] for row, reason in changed if reason["code"] not in _SETTLED]
    await hold_over(connection, still, now + KEPT)
    free = [row["booking_id"] for row, reason in changed if reason["code"] in _SETTLED]
    await let_go(connection, free, now)
    await connection.execute(_QUERIES["note_leaving"], {"rows": as_rows(written), "now": now})
    told = [
        event
        for (row, reason), new in zip(changed, written, strict=True)
        for event in _left(row, reason, new["released"])
    ]
    await append(connection, SYSTEM, now, told)


def _released(row: Mapping[str, Any], report: NodeReport, words: Words) -> Mapping[str, Any]:
    """Return the node's word that something was taken back, with the report that says so.

    It has no instant and no device where the node knows nothing of it any more.
    """
    word = words.get(allocation_id(row["reservation_id"], row["piece"]))
    if not isinstance(word, AllocationReleased):
        return {"report": report.sequence, "at": None, "device": None}
    return said(word, report)


def _left(
    row: Mapping[str, Any], reason: Mapping[str, Any], released: Mapping[str, Any] | None
) -> Iterator[Event]:
    """Tell that a holder does not leave, once, and that its device was released."""
    before, code = row["reason"].get("code"), reason["code"]
    if code == before or (code in OVERRUN and before in OVERRUN):
        return
    facts = {
        "pool_id": row["pool_id"],
        "allocation_id": allocation_id(row["reservation_id"], row["piece"]),
        "gpu_id": row["gpu"],
        "reason": reason,
    }
    if code in OVERRUN:
        yield Event("reservation.overrun", row["tenant_id"], row["reservation_id"], facts)
    elif released is not None:
        yield Event(
            "reservation.device_released",
            row["tenant_id"],
            row["reservation_id"],
            facts | {**released},
        )


def _there(each: Assigned, seen: Seen) -> Iterator[Event]:
    """Tell that a device was handed out, once, and whether it is there."""
    facts = {"pool_id": each.pool_id, "allocation_id": each.allocation_id, "gpu_id": each.gpu}
    if seen.bound is not None and each.bound is None:
        bound = facts | {**seen.bound}
        yield Event("reservation.device_bound", each.tenant_id, each.reservation_id, bound)
    if each.state != seen.state and seen.state in _TOLD:
        device = {"reason": seen.reason, "device": seen.device}
        yield Event(_TOLD[seen.state], each.tenant_id, each.reservation_id, facts | device)
