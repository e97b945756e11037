"""Who holds what of a pool's GPUs now: read from the server, for pictures and for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from apportion.cli.listing import data_of
from apportion.cli.pictures import label, picture, profile_there, title

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import AtomView, GpuView
    from apportion.pools.schemas import PoolView
    from apportion.reservations.window_schemas import CalendarWindow

_PAGE = 1000
_OTHERS: Final = {"reserved": "reserved", "partition": "a change of its cut"}
"""What holds units, where that is no reservation that the caller may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpu:
    """A GPU, its atoms, and the windows of those who have a part of it now."""

    gpu: "GpuView"
    atoms: "Sequence[AtomView]"
    windows: "Sequence[CalendarWindow]"
    now: datetime

    def lines(self) -> list[str]:
        """Draw it under its title."""
        labels = {
            each.units: label(profile_there(self.atoms, each.units), _holder(each, self.now))
            for each in self.windows
        }
        return [title(self.gpu), *picture(self.gpu, self.atoms, labels, free="free")]

    def data(self) -> Mapping[str, object]:
        """Give the GPU's fields, and its holders."""
        holders = [
            {
                "units": each.units,
                "what": each.what,
                "reservation_id": each.reservation_id,
                "name": each.name,
            }
            for each in self.windows
        ]
        return {**data_of(self.gpu), "holders": holders}


def held_gpus(
    client: "Client", pool: "PoolView", *, node: str | None, limit: int
) -> Iterator[HeldGpu]:
    """Give at most so many of the pool's GPUs, by node and index, with who holds what now.

    Their calendars tell it, which know of everybody: reservations are listed of one tenant alone.
    """
    for gpu in first_gpus(client, pool, node=node, limit=limit):
        calendar = client.get_gpu_calendar(gpu.id)
        held = [each for each in calendar.windows if each.start <= calendar.start]
        yield HeldGpu(gpu=gpu, atoms=atoms_of(client, gpu), windows=held, now=calendar.start)


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


def _holder(window: "CalendarWindow", now: datetime) -> str:
    """Say who has it; one whose window is over keeps it, or is cleaned up after."""
    who = window.name or window.reservation_id or _OTHERS[window.what]
    return who if window.end is None or now < window.end else f"{who} (over)"
