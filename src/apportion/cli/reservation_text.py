"""A reservation for people: where it stands and why, its window on a line, its GPUs drawn."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.connection import PoolNames
from apportion.cli.holding import atoms_of
from apportion.cli.output import table
from apportion.cli.pictures import label, picture, title
from apportion.cli.times import NO_END, both_zones, can_draw_windows, window_lines

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import BookingOut, ReservationView

LIVE: Final = ("placed", "active", "ending")

TOGETHER: Final = {
    "node": "",
    "gpu": "all on one GPU",
    "numa": "on GPUs of one NUMA node",
    "nvlink": "on GPUs of one NVLink domain",
}
"""What pieces can be asked to share, in words."""

_DRAWN_MAX = 8
_SETTLED: Final = ("device_there", "window_over", "device_released")
"""Reasons of allocations of which there is nothing more to say."""


def reservation_lines(client: "Client", view: "ReservationView", now: datetime) -> list[str]:
    """Write all that is to say of a reservation."""
    pools = PoolNames(client)
    lines = [head(view, pools), *(f"  {line}" for line in why(view))]
    lines.append(f"  asks for {'; '.join(_asked(view))}")
    if view.start is not None and view.end is not None:
        drawn = window_lines(view.start, view.end, now, boxes=can_draw_windows())
        lines += ["", *(f"  {line}" for line in drawn)]
    elif view.start is not None and view.open_ended:
        lines += ["", f"  from  {both_zones(view.start)}", f"  until {NO_END}"]
    if view.bookings:
        lines += ["", _bookings(view), *_pictures(client, view)]
    return lines


def head(view: "ReservationView", pools: PoolNames) -> str:
    """Say in one line which it is and where it stands."""
    name = f"{view.id} {view.name}" if view.name else view.id
    if view.pool_id is not None and view.state in LIVE:
        nodes = ", ".join(dict.fromkeys(booking.node for booking in view.bookings))
        return f"{name}: {view.state} in {pools.name(view.pool_id)}" + (
            f" on {nodes}" if nodes else ""
        )
    candidates = ", ".join(str(pools.name(pool_id)) for pool_id in view.candidates)
    return f"{name}: {view.state} ({candidates})"


def why(view: "ReservationView") -> Iterator[str]:
    """Give the reason as it stands; of what waits also what would help, and until when."""
    if not says_no_more(view):
        yield f"{view.reason['code']}: {view.reason.get('message')}"
    if view.reason.get("code") == "blocked_by_overrun" and view.delayed_from is not None:
        yield from _put_off(view, view.delayed_from)
    if held := view.reason.get("held"):
        yield f"{held['code']}: {held['message']} ({held['allocation_id']} on {held['on']})"
    if view.end_before is not None and view.state == "pending":
        yield f"it is to be over by {both_zones(view.end_before)}"
    if hint := view.reason.get("hint"):
        yield f"what would help: {hint}"
    if view.state != "pending":
        return
    yield f"it is tried again whenever something frees, until {both_zones(view.pending_until)}"


def says_no_more(view: "ReservationView") -> bool:
    """Tell whether its reason is that it is placed, which its state and its pool say already."""
    return view.reason.get("code") in (None, "placed")


def _put_off(view: "ReservationView", delayed_from: datetime) -> Iterator[str]:
    """Say when it was to begin, and when it begins at the soonest where nothing changes."""
    yield f"it was to begin {both_zones(delayed_from)}"
    if view.state == "placed" and view.start is not None:
        yield f"its place is kept for it, and not free before {both_zones(view.start)}"


def missing(view: "ReservationView") -> Iterator[str]:
    """Say of each piece that its holder cannot use now, or has not let go of, why not."""
    for each in view.bookings:
        standing = each.allocation
        if standing is None or standing.reason["code"] in _SETTLED:
            continue
        yield f"{each.gpu_id} on {each.node}: {standing.state}, {_reason_text(standing.reason)}"


def _reason_text(reason: Mapping[str, Any]) -> str:
    """Write a reason, and in the node's own words what stands behind it."""
    text = f"{reason['code']}: {reason['message']}"
    node = reason.get("node")
    return text if node is None else f"{text} ({node['reason']}: {node['message']})"


def _asked(view: "ReservationView") -> Iterator[str]:
    for device in view.devices:
        yield device_text(device)
    host = [
        f"{amount} {what}"
        for amount, what in (
            (view.resources.vcpu, "vcpu"),
            (view.resources.memory_gib, "GiB of host memory"),
        )
        if amount != "0"
    ]
    if host:
        yield " and ".join(host)
    yield from _where(view)


_LINKS: Final = {
    "same_gpu": "one GPU",
    "nvlink": "NVLink",
    "pcie": "a PCIe root complex",
    "numa": "a NUMA node",
    "node": "the machine only",
}


def _where(view: "ReservationView") -> Iterator[str]:
    if view.gang is not None:
        apart = ", each on a node of its own" if view.gang.apart else ""
        yield f"for each of {view.gang.members} members{apart}"
    if words := TOGETHER[view.placement.together]:
        yield words
    if view.placement.apart:
        yield "each piece on a GPU of its own"
    if view.placement.policy is not None:
        yield f"placed by {view.placement.policy}"
    if view.topology is not None:
        yield f"its GPUs share {_LINKS[view.topology.link]} ({view.topology.score} of 4)"


def device_text(device: Mapping[str, Any]) -> str:
    """Write a device request in few words: ``2 gpu.mig 3g.40gb``, ``gpu.share 25, numaNode In 0``.

    The number before the class counts pieces, the one behind it the units of each.
    """
    words = [str(device["count"])] if device["count"] != 1 else []
    words.append(device["class"])
    if device.get("units", 1) != 1:
        words.append(str(device["units"]))
    conditions: list[str] = []
    for each in device.get("selector", {}).get("matchExpressions", []):
        values = [str(value) for value in each.get("values", [])]
        if each["key"] == "migProfile" and each["op"] == "In":
            words.append("|".join(values))
        else:
            conditions.append(" ".join([each["key"], each["op"], *values]))
    return ", ".join([" ".join(words), *conditions])


def _standing(booking: "BookingOut") -> str | None:
    """Say whether a piece is there for its holder, and why not."""
    if booking.allocation is None:
        return None
    state = booking.allocation.state
    return state if state == "ready" else f"{state} ({booking.allocation.reason['code']})"


def _bookings(view: "ReservationView") -> str:
    """List what it has; a gang's by member."""
    headers: tuple[str, ...] = ("device", "class", "units", "share", "node", "gpu")
    rows: list[tuple[object, ...]] = [
        (each.device, each.class_, each.units, str(each.share), each.node, each.gpu_id)
        for each in view.bookings
    ]
    if any(each.allocation or "migUuid" in each.attributes for each in view.bookings):
        headers = (*headers, "is there", "instance")
        rows = [
            (*row, _standing(each), each.attributes.get("migUuid"))
            for row, each in zip(rows, view.bookings, strict=True)
        ]
    if view.gang is None:
        return table(headers, rows)
    members = [each.member for each in view.bookings]
    return table(("member", *headers), [(at, *row) for at, row in zip(members, rows, strict=True)])


def _pictures(client: "Client", view: "ReservationView") -> Iterator[str]:
    """Draw the GPUs that it has something of; whoever else is on them was not looked at."""
    if view.state not in LIVE or view.pool_id is None:
        return
    ours: dict[str, dict[str, str]] = {}
    for booking in view.bookings:
        words = label(booking.attributes.get("migProfile"), view.name or "this reservation")
        ours.setdefault(booking.gpu_id, {})[booking.units] = words
    for node in dict.fromkeys(booking.node for booking in view.bookings):
        gpus = client.list_gpus(pool_id=view.pool_id, node=node, limit=1000).items
        held = sorted((gpu for gpu in gpus if gpu.id in ours), key=lambda gpu: gpu.index)
        for gpu in held[:_DRAWN_MAX]:
            yield ""
            yield title(gpu)
            yield from picture(gpu, atoms_of(client, gpu), ours[gpu.id], free=None)
        if len(held) > _DRAWN_MAX:
            yield f"(and {len(held) - _DRAWN_MAX} more GPUs)"
