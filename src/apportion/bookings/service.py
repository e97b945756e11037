"""Writing and reading bookings of GPU units and of host resources.

Everything here runs in the caller's transaction. The order of locks is the same everywhere: nodes,
GPUs, bookings by (GPU, units), and last, elsewhere, quotas.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from psycopg.errors import ExclusionViolation

from apportion.bookings.changes import (
    BookingKey,
    GpuChange,
    HostChange,
    Since,
    changes,
    gpu_change,
    horizon,
    live,
)
from apportion.bookings.holding import (
    Holding,
    Plan,
    ask_for_hosts,
    ask_to_hold,
    hold,
    hold_gpus,
    hold_nodes,
)
from apportion.bookings.partitions import (
    Booked,
    Conflict,
    LiveBooking,
    book_partition_change,
    live_on,
    release_partition_change,
)
from apportion.bookings.planned import NewBooking, NewHostBooking, rows_of
from apportion.bookings.views import (
    Allocation,
    BookingView,
    CalendarRow,
    PieceHeld,
    Places,
    allocated,
    calendar,
    of_reservations,
    pieces_of,
    places_of,
    shown_attributes,
    unheard_usage,
    usage,
)
from apportion.errors import ConflictError
from apportion.placement import Held, Move
from apportion.placement.asks import Split
from apportion.placement.offers import PARTITION
from apportion.quantities.units import to_multirange
from apportion.store.connections import Connection
from apportion.store.errors import Violation, guards, register
from apportion.store.sql import load

__all__ = [
    "ENDLESS",
    "PARTITION",
    "Allocation",
    "Booked",
    "BookingKey",
    "BookingView",
    "CalendarRow",
    "Conflict",
    "GpuChange",
    "HeldGpu",
    "Holding",
    "HostChange",
    "LiveBooking",
    "NewBooking",
    "NewHostBooking",
    "PieceHeld",
    "Places",
    "Plan",
    "PoolHeld",
    "Since",
    "allocated",
    "ask_for_hosts",
    "ask_to_hold",
    "book_partition_change",
    "booked_atoms",
    "calendar",
    "changes",
    "end_at",
    "end_host_at",
    "finish",
    "give_up",
    "held_in_pool",
    "hold",
    "hold_gpus",
    "hold_gpus_of",
    "hold_nodes",
    "hold_over",
    "horizon",
    "host_peaks",
    "insert",
    "insert_host",
    "let_go",
    "live",
    "live_on",
    "lock_gpus_of",
    "lock_gpus_under",
    "of_reservations",
    "on_gpus",
    "pieces_of",
    "places_of",
    "put_off",
    "redeal",
    "release_partition_change",
    "shown_attributes",
    "unheard_usage",
    "usage",
    "withdraw",
]

ENDLESS: Final = datetime(9989, 1, 1, tzinfo=UTC)
"""Who has something to then or longer has it without an end, and nobody can say when it is free."""

_QUERIES: Final = load("apportion.bookings")


def _taken(violation: Violation) -> ConflictError:
    return ConflictError(
        "somebody else has booked units of this GPU in this window",
        hint="Ask again: what is free has changed",
        details={"key": violation.detail},
    )


register(
    {
        "bookings_no_overlap": _taken,
        **guards(
            "bookings_class_known",
            "bookings_one_holder",
            "bookings_units_not_empty",
            "bookings_whole_is_every_unit",
            "bookings_mig_lies_on_atom",
            "bookings_during_half_open",
            "bookings_planned_within_during",
            "bookings_share_range",
            "bookings_void_before_start",
            "bookings_due_back_before_the_end",
            "host_bookings_reservation_key",
            "host_bookings_amount",
            "host_bookings_during_half_open",
            "host_bookings_void_before_start",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU whose row is held; ``bookable`` as it was cut for the reservation that has it."""

    id: int
    uuid: str
    split: Split
    ruler: int
    bookable: bool


@dataclass(frozen=True, slots=True)
class PoolHeld:
    """What is held in a pool now or later; ``free_from`` is None when nobody can say."""

    bookings: int
    gpus: int
    free_from: datetime | None


async def insert(connection: Connection, bookings: Sequence[NewBooking]) -> set[BookingKey]:
    """Book on GPUs that are held, and return the keys of those that won.

    The others clash with what somebody else has.
    """
    if not bookings:
        return set()
    parameters = {"rows": rows_of(bookings)}
    cursor = await connection.execute(_QUERIES["insert_those_free"], parameters)
    return {(row["reservation_id"], row["piece"]) for row in await cursor.fetchall()}


async def insert_host(connection: Connection, bookings: Sequence[NewHostBooking]) -> set[int]:
    """Book host resources and return the nodes that are overfull by it: nothing on those may stay.

    The nodes are held, because what fits over time no constraint on a row can tell.
    """
    if not bookings:
        return set()
    async with connection.pipeline():
        asked = await ask_for_hosts(connection, bookings)
    return await asked.overfull()


async def withdraw(connection: Connection, reservation_ids: Collection[str]) -> None:
    """Take back what this very transaction wrote for reservations that lost a clash."""
    if reservation_ids:
        await connection.execute(_QUERIES["withdraw"], {"ids": sorted(reservation_ids)})
        await connection.execute(_QUERIES["withdraw_host"], {"ids": sorted(reservation_ids)})


async def finish(connection: Connection, reservation_ids: Sequence[str], now: datetime) -> None:
    """End at ``now``: what has begun is shortened, what has not is voided, what has ended stays.

    What is held for cleaning up after its end is held as long after this one.
    """
    parameters = {"ids": sorted(reservation_ids), "now": now}
    for name in ("shorten", "void", "shorten_host", "void_host"):
        await connection.execute(_QUERIES[name], parameters)


async def redeal(connection: Connection, moves: Sequence[Move], now: datetime) -> bool:
    """Give bookings that have not begun other units of their GPU, which is held.

    Returns False, with nothing to keep, when one of them has begun or changed meanwhile. Two
    bookings may swap units, which no single statement can do under an immediate constraint: all
    are voided first and put back then.
    """
    if not moves:
        return True
    parameters = {
        "reservation_ids": [move.key[0] for move in moves],
        "pieces": [move.key[1] for move in moves],
        "units": [to_multirange(move.units) for move in moves],
        "now": now,
    }
    cursor = await connection.execute(_QUERIES["lift"], parameters)
    lifted = [row["id"] for row in await cursor.fetchall()]
    if len(lifted) != len(moves):
        return False
    # Those alone: one that was moved to another GPU left a voided row with the same key behind.
    await connection.execute(_QUERIES["put_back"], {**parameters, "ids": lifted})
    return True


async def hold_gpus_of(connection: Connection, reservation_id: str) -> list[HeldGpu]:
    """Hold the GPUs of a reservation, as those do who book on them; precedes `on_gpus`."""
    cursor = await connection.execute(_QUERIES["hold_gpus_of"], {"id": reservation_id})
    return [HeldGpu(**row) for row in await cursor.fetchall()]


async def on_gpus(
    connection: Connection, gpu_ids: Sequence[int], now: datetime
) -> dict[int, dict[BookingKey, Held]]:
    """Return what is held on some GPUs now or later; where they are held, nothing is added."""
    cursor = await connection.execute(_QUERIES["on_gpus"], {"gpus": list(gpu_ids), "now": now})
    found: dict[int, dict[BookingKey, Held]] = {each: {} for each in gpu_ids}
    for change in map(gpu_change, await cursor.fetchall()):
        if change.held is not None:
            found[change.gpu_id][change.key] = change.held
    return found


async def hold_over(connection: Connection, booking_ids: Sequence[int], until: datetime) -> None:
    """Keep the units of bookings that are over from others until then, where nobody has them yet.

    Somebody is still on them. Locks their GPUs. Whoever books them at the same moment was first.
    """
    if not booking_ids:
        return
    await lock_gpus_of(connection, booking_ids)
    with suppress(ExclusionViolation):
        async with connection.transaction():
            parameters = {"ids": list(booking_ids), "until": until}
            await connection.execute(_QUERIES["hold_over"], parameters)


async def let_go(connection: Connection, booking_ids: Sequence[int], now: datetime) -> None:
    """Give back what was kept from others by `hold_over`: nobody is on it any more.

    What is kept for cleaning up after the end stays so. Locks their GPUs.
    """
    if booking_ids:
        await lock_gpus_of(connection, booking_ids)
        parameters = {"ids": list(booking_ids), "now": now}
        await connection.execute(_QUERIES["let_go"], parameters)


async def lock_gpus_of(connection: Connection, booking_ids: Sequence[int]) -> None:
    """Hold the GPUs that bookings lie on; precedes any change of the bookings."""
    if booking_ids:
        await connection.execute(_QUERIES["lock_gpus_of_bookings"], {"ids": list(booking_ids)})


async def give_up(connection: Connection, reservation_ids: Sequence[str]) -> set[str]:
    """Take back what reservations that are over never had, because somebody did not leave it.

    Returns those of which there is any. Their nodes are held.
    """
    if not reservation_ids:
        return set()
    cursor = await connection.execute(_QUERIES["give_up"], {"ids": list(reservation_ids)})
    return {row["reservation_id"] for row in await cursor.fetchall()}


async def lock_gpus_under(connection: Connection, reservation_ids: Sequence[str]) -> None:
    """Hold the GPUs that reservations lie on; precedes `put_off`."""
    if reservation_ids:
        parameters = {"ids": list(reservation_ids)}
        await connection.execute(_QUERIES["lock_gpus_of_reservations"], parameters)


async def put_off(connection: Connection, until: Mapping[str, datetime]) -> None:
    """Let all that reservations have begin later, each before its end; their GPUs are held.

    That nobody has been given any of it, which may have begun by the clock, is the caller's to see.
    """
    parameters = {"ids": list(until), "until": list(until.values())}
    await connection.execute(_QUERIES["put_off"], parameters)
    await connection.execute(_QUERIES["put_off_host"], parameters)


async def end_at(connection: Connection, reservation_id: str, end: datetime) -> None:
    """Let all pieces of a reservation end at another instant; their GPUs are held."""
    await connection.execute(_QUERIES["end_at"], {"id": reservation_id, "end": end})


async def end_host_at(
    connection: Connection, reservation_id: str, old_end: datetime, end: datetime
) -> datetime | None:
    """Let a reservation's host resources end at another instant, which precedes all of its GPUs.

    Returns from when on a node is overfull by it, where one is: then nothing of it may stay.
    """
    parameters = {"id": reservation_id, "end": end}
    cursor = await connection.execute(_QUERIES["lock_nodes_of"], parameters)
    nodes = [row["id"] for row in await cursor.fetchall()]
    if not nodes:
        return None
    await connection.execute(_QUERIES["end_host_at"], parameters)
    if end <= old_end:
        return None
    window = {"nodes": nodes, "start": old_end, "end": end}
    cursor = await connection.execute(_QUERIES["host_full_from"], window)
    [row] = await cursor.fetchall()
    return row["full_from"]


async def held_in_pool(connection: Connection, pool_id: str, now: datetime) -> PoolHeld:
    """Return how much of a pool's GPUs is held now or later, and when the last of it ends."""
    cursor = await connection.execute(_QUERIES["held_in_pool"], {"pool_id": pool_id, "now": now})
    return PoolHeld(**(await cursor.fetchall())[0])


async def host_peaks(
    connection: Connection, node_ids: Sequence[int], now: datetime
) -> dict[int, tuple[int, int]]:
    """Return the most (vcpu in thousandths, memory in MiB) booked at one instant from now on."""
    parameters = {"ids": list(node_ids), "start": now, "end": None}
    cursor = await connection.execute(_QUERIES["host_peaks"], parameters)
    return {row["node_id"]: (row["vcpu"], row["memory"]) for row in await cursor.fetchall()}


async def booked_atoms(connection: Connection, atom_ids: Sequence[int], now: datetime) -> set[int]:
    """Return those of some atoms that somebody has, now or later."""
    cursor = await connection.execute(_QUERIES["booked_atoms"], {"ids": list(atom_ids), "now": now})
    return {row["atom_id"] for row in await cursor.fetchall()}
