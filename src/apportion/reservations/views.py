"""Reservations as they are shown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import lru_cache
from typing import Any

from apportion.bookings import service as bookings
from apportion.bookings.service import BookingView
from apportion.nodes.service import allocation_id
from apportion.quantities.shares import exact_text
from apportion.quantities.windows import parse_instant
from apportion.reservations import rows
from apportion.reservations.arrangement import show_gang, show_placement
from apportion.reservations.ends import has_no_end
from apportion.reservations.held_up import reason_of
from apportion.reservations.plan import Placed
from apportion.reservations.reasons import Waiting
from apportion.reservations.schemas import (
    BookingOut,
    BoundNode,
    BoundOut,
    HostOut,
    ReservationView,
)
from apportion.store.connections import Connection


async def show_all(
    connection: Connection, found: Sequence[Mapping[str, Any]]
) -> list[ReservationView]:
    """Return rows of reservations as views, with what each has booked."""
    booked = await bookings.of_reservations(connection, [row["id"] for row in found])
    return [_view(row, booked[row["id"]]) for row in found]


def show_made(decision: Placed | Waiting) -> ReservationView:
    """Return what was just placed, or waits, as it is shown: as `show_all` would read it back."""
    booked = decision.shown if isinstance(decision, Placed) else ()
    return _view(rows.row_of(decision), booked)


def _view(row: Mapping[str, Any], booked: Sequence[BookingView]) -> ReservationView:
    endless = has_no_end(row)
    pieces = sum(device["count"] for device in row["devices"])
    return ReservationView(
        id=row["id"],
        name=row["name"],
        tenant_id=row["tenant_id"],
        pool_id=row["pool_id"],
        candidates=row["candidates"],
        state=row["state"],
        reason=reason_of(row, booked),
        devices=row["devices"],
        resources=_host(row["vcpu_milli"], row["memory_mib"]),
        placement=show_placement(row),
        gang=show_gang(row),
        topology=row["topology"],
        start=row["starts_at"] or row["asked_start"],
        end=None if endless else row["ends_at"] or row["asked_end"],
        delayed_from=row["delayed_from"],
        end_before=row["end_before"],
        open_ended=endless,
        series_id=row["series_id"],
        pending_until=row["pending_until"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        charged_tenant_id=row["charged_tenant_id"],
        charges=rows.show_charges(row["charges"]),
        bound=_bound(booked),
        bookings=[
            BookingOut.model_validate(
                {
                    "gpu_id": each.gpu_id,
                    "node": each.node,
                    "member": each.piece // pieces,
                    "device": each.device,
                    "class": each.cls,
                    "units": each.units,
                    "atom": each.atom,
                    "share": each.share,
                    "start": each.start,
                    "end": None if endless else each.end,
                    "held_until": None if endless else each.held_until,
                    "attributes": each.attributes,
                    "allocation": _allocation(each),
                }
            )
            for each in booked
        ],
    )


def _bound(booked: Sequence[BookingView]) -> BoundOut | None:
    """Say which nodes have handed out all that lies on them, each since its last piece."""
    by_node: dict[str, list[BoundNode]] = {each.node: [] for each in booked}
    for each in booked:
        if each.allocation is not None and (word := each.allocation.bound) is not None:
            since = parse_instant(word["at"], field="at")
            found = BoundNode(node=each.node, since=since, report=word["report"])
            by_node[each.node].append(found)
    if not any(by_node.values()):
        return None
    pieces = Counter(each.node for each in booked)
    whole = [
        max(found, key=lambda one: one.since)
        for node, found in by_node.items()
        if len(found) == pieces[node]
    ]
    since = max(one.since for one in whole) if len(whole) == len(pieces) else None
    return BoundOut(since=since, nodes=whole)


def _allocation(booking: BookingView) -> dict[str, object] | None:
    if booking.allocation is None:
        return None
    name = allocation_id(booking.reservation_id, booking.piece)
    shown = asdict(booking.allocation)
    del shown["in_hands"]
    return {"id": name, **shown}


@lru_cache(maxsize=1024)
def _host(vcpu_milli: int, memory_mib: int) -> HostOut:
    return HostOut.model_validate(
        {
            "vcpu": exact_text(Fraction(vcpu_milli, 1000)),
            "memoryGiB": exact_text(Fraction(memory_mib, 1024), 10),
        }
    )
