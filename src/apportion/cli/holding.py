"""Who holds what of a pool's GPUs now: read from the server, for pictures and for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import TYPE_CHECKING

from apportion.cli.listing import data_of
from apportion.cli.pictures import label, picture, title

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import AtomView, GpuView
    from apportion.pools.schemas import PoolView

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A reservation that has units of a GPU now."""

    units: str
    reservation_id: str
    name: str | None
    attributes: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpu:
    """A GPU, its atoms and its holders."""

    gpu: "GpuView"
    atoms: "Sequence[AtomView]"
    holders: Sequence[Holder]

    def lines(self) -> list[str]:
        """Draw it under its title."""
        labels = {
            each.units: label(each.attributes, each.name or each.reservation_id)
            for each in self.holders
        }
        return [title(self.gpu), *picture(self.gpu, self.atoms, labels, free="free")]

    def data(self) -> Mapping[str, object]:
        """Give the GPU's fields, and its holders."""
        holders = [
            {"units": each.units, "reservation_id": each.reservation_id, "name": each.name}
            for each in self.holders
        ]
        return {**data_of(self.gpu), "holders": holders}


def held_gpus(
    client: "Client", pool: "PoolView", now: datetime, *, node: str | None, limit: int
) -> Iterator[HeldGpu]:
    """Give at most so many of the pool's GPUs, by node and index, with who holds what now.

    Reads all live reservations of the pool, page by page, and keeps what concerns these GPUs.
    """
    gpus = first_gpus(client, pool, node=node, limit=limit)
    holders = _holders(client, pool, now, {gpu.id for gpu in gpus})
    for gpu in gpus:
        atoms = atoms_of(client, gpu)
        yield HeldGpu(gpu=gpu, atoms=atoms, holders=holders.get(gpu.id, ()))


def first_gpus(
    client: "Client", pool: "PoolView", *, node: str | None, limit: int
) -> "list[GpuView]":
    """Return at most so many of the pool's GPUs, the first by node and index.

    The server lists them by UUID: what is drawn of a large pool would be a few of each node.
    """
    found = client.list_gpus(pool_id=pool.id, node=node, limit=_PAGE).all()
    return nsmallest(limit, found, key=lambda gpu: (gpu.node, gpu.index))


def atoms_of(client: "Client", gpu: "GpuView") -> "list[AtomView]":
    """Return the instances that a GPU is cut into; slots and shares are all alike."""
    if gpu.split != "mig":
        return []
    return list(client.list_atoms(gpu_id=gpu.id, class_="gpu.mig", limit=_PAGE).all())


def _holders(
    client: "Client", pool: "PoolView", now: datetime, gpu_ids: set[str]
) -> dict[str, list[Holder]]:
    holders: dict[str, list[Holder]] = {}
    live = client.list_reservations(
        pool_id=pool.id, states=["placed", "active", "ending"], limit=_PAGE
    )
    for view in live.all():
        for booking in view.bookings:
            if booking.gpu_id in gpu_ids and booking.covers(now):
                holder = Holder(
                    units=booking.units,
                    reservation_id=view.id,
                    name=view.name,
                    attributes=booking.attributes,
                )
                holders.setdefault(booking.gpu_id, []).append(holder)
    return holders
