"""What a reservation waits for beside the clock: devices that its nodes have yet to hand out. Pure.

It is written where it is told, in the assignments of its pieces, and read from there: so the
reservation and its pieces never say two things.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from apportion.bookings.service import Allocation, BookingView
from apportion.nodes.service import allocation_id
from apportion.quantities.windows import format_instant

Reason = Mapping[str, Any]

_HINTS: Final = {
    "device_asked": "its node reads that with its next report",
    "blocked_by_overrun": "its node makes whoever had it leave; release it to ask for another one",
    "gpu_missing": "it is not placed elsewhere by itself: release it and ask again",
    "gpu_failed": "it is not placed elsewhere by itself: release it and ask again",
}
_AT_WORK: Final = "its node is at it; where that does not end, see its units: `apportion node show`"
_SILENT: Final = "nothing is heard of its node: see whether its agent runs"


def reason_of(row: Mapping[str, Any], booked: Sequence[BookingView]) -> dict[str, Any]:
    """Say why a stored reservation stands where it does, with what it waits for.

    Of one whose window has begun, and that is not active yet, that is the first piece that is not
    there, with how many are; of one that is ending, ``held`` is the first that is not given back.
    """
    pieces = [(each, each.allocation) for each in booked if each.allocation is not None]
    reason: dict[str, Any] = row["reason"]
    if row["state"] == "placed":
        waiting = [(each, found) for each, found in pieces if found.state != "ready"]
        counts = {"pieces": len(booked), "ready": len(pieces) - len(waiting)}
        return {**_not_there(waiting), **counts} if waiting else reason
    held = [(each, found) for each, found in pieces if found.in_hands]
    return {**reason, "held": _piece(*held[0])} if row["state"] == "ending" and held else reason


def _not_there(waiting: Sequence[tuple[BookingView, Allocation]]) -> Reason:
    """Say why the first piece is not there: what is missing before what was only just asked for."""
    booking, allocation = min(waiting, key=lambda each: each[1].state == "asked")
    found = _piece(booking, allocation)
    hint = _SILENT if booking.stale_since else _HINTS.get(found["code"], _AT_WORK)
    return {**found, "hint": hint}


def _piece(booking: BookingView, allocation: Allocation) -> dict[str, Any]:
    """Say how a piece stands, since when, and where."""
    silent = booking.stale_since
    return {
        **allocation.reason,
        "since": format_instant(allocation.since),
        "allocation_id": allocation_id(booking.reservation_id, booking.piece),
        "on": booking.node,
        **({} if silent is None else {"stale_since": format_instant(silent)}),
    }
