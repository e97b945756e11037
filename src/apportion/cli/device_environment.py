"""The environment that makes a process see what a reservation has, and no other GPU."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import BookingOut, ReservationView

VISIBLE: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""What a container runtime reads, and what CUDA itself does."""

_JOINED: Final = (*VISIBLE, "APPORTION_ALLOCATION")
MISSING: Final = "device-missing"
"""How a refusal begins that says only that the node is not ready yet."""


def environment_of(
    client: "Client", view: "ReservationView", *, node: str | None = None
) -> Mapping[str, str]:
    """Return the variables for a process on the node that a running reservation lies on.

    ``node`` names one where a gang lies on several. What the agent of this machine has written for
    its pieces counts, else what the server knows. Raises InvalidStateError before it runs, where an
    instance does not exist yet (``device-missing``), and where only the node knows what is needed;
    NotFoundError for a node that it has nothing on.
    """
    now = datetime.now(UTC)
    if view.state != "active":
        comes = view.state in ("pending", "placed")
        raise InvalidStateError(
            f"it has no devices while it is {view.state}: {view.reason.get('message')}",
            given=view.state,
            allowed="active",
            hint=f"`apportion reservation wait {view.id}` waits until it has" if comes else None,
        )
    held = [each for each in view.bookings if each.covers(now)]
    where = the_node(view.id, held, node)
    pieces = [_piece(client, view, each) for each in held if each.node == where]
    return _together(pieces) | {"APPORTION_RESERVATION": view.id}


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


def _piece(client: "Client", view: "ReservationView", booking: "BookingOut") -> Mapping[str, str]:
    """Return the variables of one piece."""
    variables: dict[str, str] = {**dict.fromkeys(VISIBLE, _device(booking))}
    if booking.allocation is None:
        return variables
    path = _agent_state() / "env" / f"{booking.allocation.id}.env"
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        shared = booking.class_ in ("gpu.slot", "gpu.share")
        if shared and view.pool_id is not None and client.get_pool(view.pool_id).sharing == "mps":
            raise InvalidStateError(
                "what a process needs to reach MPS is known on its node alone",
                given=booking.node,
                hint=f"There it is in {path}, for who may read that",
            ) from None
        return {**variables, "APPORTION_ALLOCATION": booking.allocation.id}
    return dict(line.split("=", 1) for line in lines)


def _together(pieces: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Join the variables of all pieces; a process reaches one MPS daemon and no more."""
    found: dict[str, str] = {}
    for piece in pieces:
        for name, value in piece.items():
            known = found.setdefault(name, value)
            if value in known.split(","):
                continue
            if name in _JOINED:
                found[name] = f"{known},{value}"
            else:
                raise InvalidStateError(
                    "its pieces lie on several GPUs, and one process reaches the MPS of one",
                    field=name,
                    hint="Start a process for each piece, with the file that its node has for it",
                )
    return found


def _agent_state() -> Path:
    return Path(os.environ.get("APPORTION_AGENT_STATE") or "/var/lib/apportion-agent")


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
