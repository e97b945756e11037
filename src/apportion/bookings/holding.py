"""Holding nodes and GPUs before booking on them, and what others did there meanwhile.

The order of locks is the same everywhere: nodes, GPUs, bookings.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apportion.bookings.changes import GpuChange, HostChange, Since, gpu_change, host_change
from apportion.bookings.planned import NewBooking, NewHostBooking, host_rows_of, rows_of
from apportion.quantities.units import to_multirange
from apportion.store.connections import Connection, Cursor
from apportion.store.sql import load

_QUERIES: Final = load("apportion.bookings")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be booked, and the nodes that are held for it: those of ``hosts``, and others."""

    bookings: Sequence[NewBooking]
    hosts: Sequence[NewHostBooking]
    nodes: Collection[int]


@dataclass(frozen=True, slots=True)
class Holding:
    """The GPUs that can be booked as planned, and what may stand in the way of that.

    Where nothing does, both lists are empty; else they tell all that has changed since the plan.
    ``xid`` is this transaction; None where no GPU is held.
    """

    gpus: frozenset[int]
    gpu_changes: Sequence[GpuChange]
    host_changes: Sequence[HostChange]
    xid: str | None

    @property
    def tells(self) -> bool:
        """Whether something may stand in the way."""
        return bool(self.gpu_changes or self.host_changes)


@dataclass(frozen=True, slots=True)
class AskedToHold:
    """What was asked for in a pipeline, whose answer is there when that is done."""

    _held: Cursor
    _changed: Cursor

    async def holding(self) -> Holding:
        """Return what is held, and what stands in the way."""
        held = await self._held.fetchall()
        changed = await self._changed.fetchall()
        return Holding(
            frozenset(row["id"] for row in held),
            [gpu_change(row) for row in changed if row["gpu_id"] is not None],
            [host_change(row) for row in changed if row["node_id"] is not None],
            held[0]["xid"] if held else None,
        )


@dataclass(frozen=True, slots=True)
class AskedForHosts:
    """What was asked for in a pipeline, whose answer is there when that is done."""

    _peaks: Cursor

    async def overfull(self) -> set[int]:
        """Return the nodes of whose host more is booked by now than there is."""
        return {
            row["node_id"]
            for row in await self._peaks.fetchall()
            if row["vcpu"] > row["vcpu_capacity"] or row["memory"] > row["memory_capacity"]
        }


async def hold_nodes(connection: Connection, node_ids: Collection[int]) -> None:
    """Hold some nodes to the end of the transaction, in order; precedes `insert_host`."""
    if node_ids:
        await connection.execute(_QUERIES["lock_nodes"], {"ids": sorted(node_ids)})


async def hold_gpus(connection: Connection, bookings: Sequence[NewBooking]) -> set[int]:
    """Wait for those who book the same GPUs, and return the GPUs that can be booked as planned.

    A GPU that was cut otherwise since then, or went, is missing. Precedes `redeal` and `insert`.
    """
    if not bookings:
        return set()
    cursor = await connection.execute(_QUERIES["hold_gpus"], _planned(bookings))
    return {row["id"] for row in await cursor.fetchall()}


async def hold(
    connection: Connection, plan: Plan, since: Since, now: datetime, *, again: bool
) -> Holding:
    """Hold nodes and GPUs in one trip, and tell what of a plan others may have taken meanwhile.

    ``again`` lets go of what this transaction has held by it before: so GPUs are always held in
    one order, whatever a second plan wants.
    """
    async with connection.pipeline():
        asked = await ask_to_hold(connection, plan, since, now, again=again, book=False)
    return await asked.holding()


async def ask_to_hold(
    connection: Connection, plan: Plan, since: Since, now: datetime, *, again: bool, book: bool
) -> AskedToHold:
    """Do as `hold` in a pipeline, and ``book`` the pieces that nothing stands in the way of.

    What it does not foresee, because the plan was made with a picture that is wrong, fails with
    ExclusionViolation; then, and where the answer is not as planned, all of it is to be taken back.
    """
    # Each statement sees what those had done who were waited for by the one before it.
    await connection.execute(_QUERIES["hold_anew" if again else "before_holding"])
    await hold_nodes(connection, plan.nodes)
    held = await connection.execute(_QUERIES["hold_gpus"], _planned(plan.bookings))
    # Put into words while the database waits for those who hold the same GPUs.
    parameters = {
        "since": since.position,
        "own": list(since.own),
        "now": now,
        "rows": rows_of(plan.bookings if book else ()),
        **_hulls(plan.bookings),
        **_sums(plan.hosts),
    }
    changed = await connection.execute(_QUERIES["book_unless_overtaken"], parameters)
    return AskedToHold(held, changed)


async def ask_for_hosts(
    connection: Connection, bookings: Sequence[NewHostBooking]
) -> AskedForHosts:
    """Book host resources, of which there are some, on nodes that are held, in a pipeline."""
    window = {
        "ids": sorted({booking.node_id for booking in bookings}),
        "start": min(booking.start for booking in bookings),
        "end": max(booking.end for booking in bookings),
    }
    await connection.execute(_QUERIES["insert_host"], {"rows": host_rows_of(bookings)})
    return AskedForHosts(await connection.execute(_QUERIES["host_peaks"], window))


def _planned(bookings: Sequence[NewBooking]) -> dict[str, list[int]]:
    planned = {booking.gpu_id: booking.generation for booking in bookings}
    return {"ids": list(planned), "generations": list(planned.values())}


def _hulls(wanted: Sequence[NewBooking]) -> dict[str, list[object]]:
    """Return for each GPU all units that are wanted of it, from the first start to the last end."""
    hulls: dict[int, tuple[int, datetime, datetime]] = {}
    for each in wanted:
        units, start, end = hulls.get(each.gpu_id, (0, each.start, each.held_until))
        hulls[each.gpu_id] = units | each.units, min(start, each.start), max(end, each.held_until)
    return {
        "gpus": list(hulls),
        "units": [to_multirange(units) for units, _, _ in hulls.values()],
        "starts": [start for _, start, _ in hulls.values()],
        "ends": [end for _, _, end in hulls.values()],
    }


def _sums(wanted: Sequence[NewHostBooking]) -> dict[str, list[object]]:
    """Return for each node all that is wanted of its host, from the first start to the last end."""
    sums: dict[int, tuple[int, int, datetime, datetime]] = {}
    for each in wanted:
        vcpu, memory, start, end = sums.get(each.node_id, (0, 0, each.start, each.end))
        sums[each.node_id] = (
            vcpu + each.vcpu_milli,
            memory + each.memory_mib,
            min(start, each.start),
            max(end, each.end),
        )
    return {
        "nodes": list(sums),
        "vcpu": [vcpu for vcpu, _, _, _ in sums.values()],
        "memory": [memory for _, memory, _, _ in sums.values()],
        "host_starts": [start for _, _, start, _ in sums.values()],
        "host_ends": [end for _, _, _, end in sums.values()],
    }
