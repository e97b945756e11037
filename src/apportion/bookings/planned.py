"""What is to be booked: pieces of GPUs, and host resources."""

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from apportion.bookings.changes import BookingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBooking:
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
