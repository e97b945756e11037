"""What changed of bookings, for those who keep pictures of who has what."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apportion.placement import FOREVER, Held
from apportion.placement.state import HostHeld
from apportion.quantities.units import from_multirange
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.bookings")


@dataclass(frozen=True, slots=True)
class Since:
    """Up to where somebody knows of all: a position, and of some transactions after it."""

    position: str
    own: Collection[str] = ()


BookingKey = tuple[str, int]
"""(reservation or partition id, piece)."""


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A booking as it stands now; ``held`` is None when it holds nothing any more."""

    pool_id: str
    gpu_id: int
    key: BookingKey
    held: Held | None


@dataclass(frozen=True, slots=True)
class HostChange:
    """A host booking as it stands now; ``held`` is None when it holds nothing any more."""

    pool_id: str
    node_id: int
    holder: str
    held: HostHeld | None


async def horizon(connection: Connection) -> str:
    """Return a position such that whatever changes later is at or after it."""
    cursor = await connection.execute(_QUERIES["horizon"])
    return _position(await cursor.fetchone())


def _position(row: Mapping[str, Any] | None) -> str:
    return str(row["xmin"]) if row is not None else "0"


async def changes(
    connection: Connection, since: Since, now: datetime
) -> tuple[str, list[GpuChange], list[HostChange]]:
    """Return a new `horizon`, and all bookings that may have changed since one, as they stand."""
    parameters = {"since": since.position, "own": list(since.own), "now": now}
    # One trip for all three, the horizon first: what commits meanwhile is read again next time.
    async with connection.pipeline():
        horizon = await connection.execute(_QUERIES["horizon"])
        gpus = await connection.execute(_QUERIES["changed"], parameters)
        hosts = await connection.execute(_QUERIES["changed_host"], parameters)
    return (
        _position(await horizon.fetchone()),
        [gpu_change(row) for row in await gpus.fetchall()],
        [host_change(row) for row in await hosts.fetchall()],
    )


async def live(
    connection: Connection, pool_id: str, now: datetime
) -> tuple[list[GpuChange], list[HostChange]]:
    """Return everything held in a pool now or later."""
    parameters = {"pool_id": pool_id, "now": now}
    gpus = await connection.execute(_QUERIES["live"], parameters)
    gpu_changes = [gpu_change(row) for row in await gpus.fetchall()]
    hosts = await connection.execute(_QUERIES["live_host"], parameters)
    return gpu_changes, [host_change(row) for row in await hosts.fetchall()]


def gpu_change(row: Mapping[str, Any]) -> GpuChange:
    """Read a row of what is held of a GPU."""
    held = None
    if row["live"]:
        end = FOREVER if row["end_us"] is None else row["end_us"]
        held = Held(row["start_us"], end, from_multirange(row["units"]))
    return GpuChange(row["pool_id"], row["gpu_id"], (row["holder"], row["piece"]), held)


def host_change(row: Mapping[str, Any]) -> HostChange:
    """Read a row of what is held of a host."""
    held = None
    if row["live"]:
        end = FOREVER if row["end_us"] is None else row["end_us"]
        held = HostHeld(row["start_us"], end, row["vcpu_milli"], row["memory_mib"])
    return HostChange(row["pool_id"], row["node_id"], row["holder"], held)
