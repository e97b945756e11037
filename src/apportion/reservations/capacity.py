"""What is free in a pool, and the largest request that has room: a sum alone promises too much."""

from collections.abc import Iterable
from datetime import timedelta

from apportion.authority.service import Caller
from apportion.placement import GpuState, PoolIndex
from apportion.placement.asks import CLASSES, AtomClass
from apportion.placement.largest import Largest
from apportion.pools.schemas import StaleNodes
from apportion.pools.service import load_record
from apportion.reservations.fleet import Fleet, instant_of, micros
from apportion.reservations.schemas import FreeOfClass, LargestRequest, PoolCapacity
from apportion.reservations.slack import held_until
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime


async def pool_capacity(
    runtime: Runtime, fleet: Fleet, caller: Caller, pool_id: str, length: timedelta
) -> PoolCapacity:
    """Tell what of a pool is free from now on for so long, and the largest request for it.

    Raises NotFoundError for a pool that is archived, or that the caller may not use. It looks at
    each GPU of the pool once.
    """
    async with transaction(runtime.db) as connection:
        pool = await load_record(connection, caller, pool_id)
        now = runtime.now()
        await fleet.sync(connection, [pool_id], now)
    index = fleet.indexes[pool_id]
    index.advance(micros(now))
    window = micros(now), micros(held_until(now + length, pool))
    gpus = [gpu for node in index.nodes.values() if node.healthy for gpu in node.gpus]
    silent = stale_in(index)
    there = {cls for gpu in gpus for cls in gpu.classes}
    return PoolCapacity(
        pool_id=pool_id,
        at=now,
        until=now + length,
        nodes=len(index.nodes),
        stale_nodes=0 if silent is None else silent.nodes,
        stale_gpus=0 if silent is None else silent.gpus,
        stale_since=None if silent is None else silent.since,
        free=[_free(index, cls, gpus, window) for cls in CLASSES if cls in there],
    )


def stale_in(index: PoolIndex) -> StaleNodes | None:
    """Return the nodes of a picture that nobody hears of; None without one."""
    since = index.stale_since
    if since is None:
        return None
    silent = [node for node in index.nodes.values() if node.stale_since is not None]
    gpus = sum(len(node.gpus) for node in silent)
    return StaleNodes(nodes=len(silent), gpus=gpus, since=instant_of(since))


def _free(
    index: PoolIndex, cls: AtomClass, gpus: Iterable[GpuState], window: tuple[int, int]
) -> FreeOfClass:
    start, end = window
    of_class = [gpu for gpu in gpus if gpu.bookable and cls in gpu.classes]
    largest = shown_largest(index.largest(cls, start, end, start))
    return FreeOfClass(free=_sum(cls, of_class, window), **largest.model_dump(by_alias=True))


def shown_largest(largest: Largest) -> LargestRequest:
    """Show the largest request that was found."""
    cls = largest.cls
    return LargestRequest.model_validate(
        {
            "class": cls,
            "largest_count": largest.count if cls == "gpu" else None,
            "largest_units": largest.units if cls in ("gpu.slot", "gpu.share") else None,
            "largest_profile": largest.profile,
        }
    )


def _sum(cls: AtomClass, gpus: Iterable[GpuState], window: tuple[int, int]) -> int | None:
    """Add up what is free; None where instances are made on demand: how many depends on which."""
    if cls == "gpu":
        return sum(not gpu.busy(*window) for gpu in gpus)
    if cls != "gpu.mig":
        rooms = (gpu.room(*window) for gpu in gpus)
        return sum(units for units, holders in rooms if holders)
    total = 0
    for gpu in gpus:
        parts = [atom.units for atom in gpu.atoms if atom.profile is not None]
        if any(a & b for at, a in enumerate(parts) for b in parts[:at]):
            return None
        total += sum(atom.profile is not None for atom in gpu.free_atoms(*window))
    return total
