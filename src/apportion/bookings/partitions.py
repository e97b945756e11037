"""Booking a whole GPU, every unit of it, to change what it is cut into: the atom rule.

A constraint on names cannot see that an instance and its parent are the same silicon; one on units
can, so a change takes every unit and clashes with whatever is there. It commits only where nothing
of the GPU is booked in its window, and keeps anything new off the GPU until it is let go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from apportion.errors import NotFoundError
from apportion.placement.offers import PARTITION
from apportion.quantities.windows import Window, format_instant
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.bookings")


@dataclass(frozen=True, slots=True)
class Booked:
    """A GPU that is kept for a change: the booking, and the change's name."""

    booking_id: int
    partition_id: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Something of the GPU is booked: from when on the window that was asked for would be free.

    ``free_from`` is None where nobody can say: ``open_ended`` then names those without an end.
    """

    free_from: datetime | None
    open_ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveBooking:
    """What is held of a GPU now or later; ``end`` is None where it has none.

    ``holder`` is a reservation's id, or a partition change's name.
    """

    id: int
    gpu_id: int
    holder: str
    start: datetime
    end: datetime | None

    @property
    def is_partition(self) -> bool:
        """Whether a change of the GPU's cut holds it, and no reservation."""
        return self.holder.startswith(PARTITION)


async def book_partition_change(
    connection: Connection, gpu_id: str, during: Window
) -> Booked | Conflict:
    """Keep every unit of a GPU (its UUID) for a window, without an end where that has none.

    Holds the GPU's row, as those do who book units of it. Raises NotFoundError for an unknown GPU.
    """
    parameters: dict[str, Any] = {"uuid": gpu_id, "start": during.start, "end": during.end}
    cursor = await connection.execute(_QUERIES["hold_gpu"], parameters)
    gpu = await cursor.fetchone()
    if gpu is None:
        raise NotFoundError("no such GPU", field="gpu_id", given=gpu_id)
    partition_id = f"{PARTITION}{gpu_id}:{format_instant(during.start)}"
    cursor = await connection.execute(
        _QUERIES["insert_partition"], {**parameters, **gpu, "partition_id": partition_id}
    )
    row = await cursor.fetchone()
    if row is not None:
        return Booked(row["id"], partition_id)
    return _conflict(await live_on(connection, [gpu["gpu_id"]], during.start), during)


async def release_partition_change(connection: Connection, booking_id: int, now: datetime) -> bool:
    """Let a GPU go: a change that has begun ends at ``now``, one that has not is voided.

    Returns False, with nothing done, where it was let go before. Raises NotFoundError for what is
    no booking of a partition change.
    """
    cursor = await connection.execute(_QUERIES["find_partition"], {"id": booking_id})
    if await cursor.fetchone() is None:
        raise NotFoundError("no such partition change", field="booking_id", given=booking_id)
    cursor = await connection.execute(_QUERIES["release_partition"], {"id": booking_id, "now": now})
    return await cursor.fetchone() is not None


async def live_on(
    connection: Connection, gpu_ids: Sequence[int], since: datetime
) -> list[LiveBooking]:
    """Return what is held of some GPUs at an instant or later, gaps for cleaning up included.

    Where the GPUs' rows are held, nothing is added to it.
    """
    cursor = await connection.execute(_QUERIES["live_on"], {"gpus": list(gpu_ids), "since": since})
    return [LiveBooking(**row) for row in await cursor.fetchall()]


def _conflict(held: Sequence[LiveBooking], during: Window) -> Conflict:
    """Find the first stretch, from the window's start on, in which nothing of the GPU is held."""
    free_from = during.start
    for each in sorted(held, key=lambda booking: booking.start):
        if _fits(free_from, during.duration, each.start):
            break
        if each.end is None:
            open_ended = {each.holder for each in held if each.end is None}
            return Conflict(None, tuple(sorted(open_ended)))
        free_from = max(free_from, each.end)
    return Conflict(free_from)


def _fits(start: datetime, length: timedelta | None, until: datetime) -> bool:
    return length is not None and until - start >= length
