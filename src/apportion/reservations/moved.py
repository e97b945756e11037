"""Telling that a reservation lies elsewhere, or at another time, than it did."""

from collections.abc import Sequence

from apportion.bookings.service import BookingView
from apportion.events.service import Event
from apportion.quantities.windows import format_instant
from apportion.reservations.plan import Placed
from apportion.reservations.schemas import PlaceOut


def moved_event(placed: Placed, was: str, before: Sequence[BookingView]) -> Event:
    """Return the event of a move; ``was`` is the id that it had, where it goes on as another."""
    own_id = placed.draft.id
    end = None if placed.draft.open_ended else format_instant(placed.end)
    return Event(
        "reservation.moved",
        placed.draft.tenant_id,
        was,
        {
            "pool_id": placed.pool.id,
            "start": format_instant(placed.start),
            "end": end,
            "successor_id": own_id if own_id != was else None,
        },
        before={"bookings": [_place(each) for each in before]},
        after={"bookings": [_place(each) for each in placed.shown]},
    )


def _place(booking: BookingView) -> dict[str, object]:
    place = PlaceOut(
        gpu_id=booking.gpu_id, node=booking.node, units=booking.units, atom=booking.atom
    )
    return place.model_dump(mode="json")
