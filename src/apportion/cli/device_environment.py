"""The environment that makes a process see what a reservation has, and no other GPU."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError

if TYPE_CHECKING:
    from apportion.reservations.schemas import BookingOut, ReservationView

VISIBLE: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""What a container runtime reads, and what CUDA itself does."""

MISSING: Final = "device-missing"
"""How a refusal begins that says only that the node is not ready yet."""


def environment_of(view: "ReservationView", *, node: str | None = None) -> Mapping[str, str]:
    """Return the variables for a process on the node that a running reservation lies on.

    ``node`` names one where a gang lies on several. Raises InvalidStateError before it runs and
    where an instance does not exist yet (``device-missing``), NotFoundError for a node that it has
    nothing on.
    """
    now = datetime.now(UTC)
    if view.state not in ("active", "ending"):
        raise InvalidStateError(
            f"it has no devices while it is {view.state}: {view.reason.get('message')}",
            given=view.state,
            allowed="active",
            hint=f"`apportion reservation wait {view.id}` waits until it has",
        )
    held = [each for each in view.bookings if each.covers(now)]
    where = the_node(view.id, held, node)
    devices = [_device(each) for each in held if each.node == where]
    seen = ",".join(dict.fromkeys(devices))
    return {**dict.fromkeys(VISIBLE, seen), "APPORTION_RESERVATION": view.id}


def the_node(reservation_id: str, held: "Sequence[BookingOut]", node: str | None) -> str:
    """Return the one node of these bookings, or the one asked for among several."""
    nodes = list(dict.fromkeys(each.node for each in held))
    if not nodes:
        raise InvalidStateError(
            "it has no devices", given=reservation_id, hint="It asked for host resources alone"
        )
    if node is None and len(nodes) > 1:
        raise InvalidInputError(
            "needed: its members lie on several nodes", field="--node", allowed=", ".join(nodes)
        )
    if node is not None and node not in nodes:
        raise NotFoundError(
            "it has nothing there", field="--node", given=node, allowed=", ".join(nodes)
        )
    return node or nodes[0]


def _device(booking: "BookingOut") -> str:
    """Return what CUDA knows a piece by: the UUID of its GPU, or of its MIG instance."""
    uuid = booking.gpu_id if booking.class_ != "gpu.mig" else booking.attributes.get("migUuid")
    allocation = booking.allocation
    if uuid is None or (allocation is not None and allocation.state != "ready"):
        why = "its node has not reported it"
        if allocation is not None:
            why = f"{allocation.reason.get('code')}: {allocation.reason.get('message')}"
        raise InvalidStateError(
            f"{MISSING}: what it has on {booking.node} is not there yet ({why})",
            hint="The node is making it, and reports when it is there; try again",
        )
    return str(uuid)
