"""What stands in the pools, as data: for the table and the picture that `apportion up` shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.demo import mig
from apportion.nodes.schemas import AtomView, GpuView
from apportion.nodes.service import FleetSize, count_fleet, list_atoms, list_gpus
from apportion.pools.service import list_pools
from apportion.quantities.units import from_multirange
from apportion.reservations.service import Reservations
from apportion.store.runtime import Runtime


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool: its size, what is allocated of its GPUs now, exactly, and its live reservations.

    Of its ``gpus``, ``stale_gpus`` are on nodes that nobody hears of.
    """

    name: str
    gpu_model: str
    sharing: str
    nodes: int
    gpus: int
    stale_gpus: int
    allocated: Fraction
    live: int


@dataclass(frozen=True, slots=True)
class GpuPicture:
    """One GPU: its units, and (label, mask) of each atom, who has it now or that it is free."""

    title: str
    units: int
    cells: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Summary:
    """Pools, the reasons of what waits with a count each, and the MIG pool's GPUs."""

    pools: Sequence[PoolLine]
    waiting: Mapping[str, int]
    pictures: Sequence[GpuPicture]


async def summarize(runtime: Runtime, reservations: Reservations, caller: Caller) -> Summary:
    """Read the summary from the database; nothing in it is remembered from the run."""
    pools = await list_pools(runtime, caller, limit=1000)
    standing = await reservations.standing(caller)
    async with runtime.db.connection() as connection:
        allocated = await bookings.allocated(connection, caller.tenant_id, runtime.now())
        sizes = await count_fleet(connection, caller)
    lines = [
        PoolLine(
            name=pool.name,
            gpu_model=pool.gpu_model,
            sharing=pool.sharing,
            nodes=size.nodes,
            gpus=size.gpus,
            stale_gpus=size.stale_gpus,
            allocated=allocated.get(pool.id, Fraction(0)),
            live=standing.live.get(pool.id, 0),
        )
        for pool in sorted(pools, key=lambda pool: pool.name)
        for size in (sizes.get(pool.id, FleetSize()),)
    ]
    mig_pool = next((pool.id for pool in pools if pool.name == mig.POOL), None)
    pictures = [] if mig_pool is None else await _pictures(runtime, reservations, caller, mig_pool)
    return Summary(lines, standing.waiting, pictures)


async def _pictures(
    runtime: Runtime, reservations: Reservations, caller: Caller, pool_id: str
) -> list[GpuPicture]:
    gpus = await list_gpus(runtime, caller, pool_id=pool_id, limit=100)
    atoms = await list_atoms(runtime, caller, pool_id=pool_id, limit=1000)
    live = await reservations.list(
        caller, pool_id=pool_id, states=["placed", "active", "ending"], limit=100
    )
    now = runtime.now()
    held: dict[str, str] = {}
    for view in live:
        for booking in view.bookings:
            if booking.covers(now) and booking.atom is not None:
                held[booking.atom] = view.name or view.id
    return [_picture(gpu, atoms, held) for gpu in sorted(gpus, key=lambda gpu: gpu.index)]


def _picture(gpu: GpuView, atoms: Sequence[AtomView], held: Mapping[str, str]) -> GpuPicture:
    own = [atom for atom in atoms if atom.gpu_id == gpu.id]
    title = f"{gpu.node} GPU {gpu.index} {gpu.product}"
    if gpu.split == "none":
        cells = [(_label("whole GPU", held.get(gpu.id)), 1)]
        return GpuPicture(title, 1, cells)
    cells = [
        (_label(str(atom.attributes["migProfile"]), held.get(atom.id)), from_multirange(atom.units))
        for atom in own
        if atom.class_ == "gpu.mig"
    ]
    return GpuPicture(title, 8, cells)


def _label(what: str, holder: str | None) -> str:
    return f"{what} free" if holder is None else f"{what} {holder}"
