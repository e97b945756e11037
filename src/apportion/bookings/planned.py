"""What is to be booked: pieces of GPUs, and host resources.

The pieces are named tuples, as all of which every reservation makes some: as fixed as a frozen
dataclass, and made in less than half of its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

from apportion.bookings.changes import BookingKey
from apportion.quantities.units import to_multirange
from apportion.store.batches import as_rows


class NewBooking(NamedTuple):
    """One piece: ``units`` is a mask, [start, end) the window, ``share`` what of a GPU it is.

    ``held_until`` is the end, or later: by then it is cleaned up, and others can have it.
    """

    tenant_id: str
    pool_id: str
    gpu_id: int
    reservation_id: str
    piece: int
    device: int
    cls: str
    atom_id: int | None
    generation: int
    units: int
    start: datetime
    end: datetime
    held_until: datetime
    share: Fraction

    @property
    def key(self) -> BookingKey:
        """What tells it from all others."""
        return self.reservation_id, self.piece


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHostBooking:
    """Host resources of one node for a reservation, for [start, end)."""

    tenant_id: str
    node_id: int
    reservation_id: str
    vcpu_milli: int
    memory_mib: int
    start: datetime
    end: datetime


def rows_of(bookings: Sequence[NewBooking]) -> str:
    """Return the rows of pieces, as one parameter of the statements that insert them."""
    return as_rows(
        [
            {
                "tenant_id": b.tenant_id,
                "pool_id": b.pool_id,
                "gpu_id": b.gpu_id,
                "reservation_id": b.reservation_id,
                "piece": b.piece,
                "device": b.device,
                "class": b.cls,
                "atom_id": b.atom_id,
                "generation": b.generation,
                "units": to_multirange(b.units),
                "starts": b.start,
                "ends": b.end,
                "held_until": b.held_until,
                "share_num": b.share.numerator,
                "share_den": b.share.denominator,
            }
            for b in bookings
        ]
    )


def host_rows_of(bookings: Sequence[NewHostBooking]) -> str:
    """Return the rows of host resources, as one parameter of the statement that inserts them."""
    return as_rows(
        [
            {
                "tenant_id": b.tenant_id,
                "node_id": b.node_id,
                "reservation_id": b.reservation_id,
                "vcpu": b.vcpu_milli,
                "memory": b.memory_mib,
                "starts": b.start,
                "ends": b.end,
            }
            for b in bookings
        ]
    )
