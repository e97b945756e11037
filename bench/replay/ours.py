"""Apportion's engine as a placer: one pool of free shares, under its default policy."""

from collections.abc import Sequence
from itertools import count
from typing import Final

from apportion.placement import (
    FOREVER,
    Ask,
    DeviceAsk,
    Expression,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    Offer,
    PoolIndex,
    Selector,
)
from bench.replay.rooms import Lease, Rooms
from bench.replay.trace import WHOLE, Node, Task

SHARES: Final = 100
"""A GPU is cut into hundredths; the trace asks for whole hundredths only."""


class OurPlacer:
    """The engine on one fleet; every task is held until it is freed."""

    def __init__(self, fleet: Sequence[Node]) -> None:
        self.rooms = Rooms(fleet)
        self._index, self._position = _index(fleet)
        self._numbers = count()
        self._asks: dict[Task, Ask] = {}

    def place(self, task: Task) -> Lease | None:
        """Ask the engine, and hold what it offers."""
        wanted = self._asks.get(task) or self._asks.setdefault(task, ask(task))
        offer = self._index.place(wanted, 0, FOREVER, 0)
        if not isinstance(offer, Offer):
            return None
        assert not offer.moves, "nothing is booked ahead, so nothing can move"
        gpus = tuple(self._position[piece.gpu] for piece in offer.pieces)
        lease = Lease(task, offer.node, gpus, f"task-{next(self._numbers)}")
        self.rooms.take(lease)
        for number, piece in enumerate(offer.pieces):
            self._index.book(piece.gpu, (lease.holder, number), Held(0, FOREVER, piece.units))
        host = HostHeld(0, FOREVER, task.cpu, task.memory)
        self._index.book_host(offer.node, lease.holder, host)
        return lease

    def free(self, lease: Lease) -> None:
        """Let go of all that a task held."""
        self.rooms.give(lease)
        gpus = self._index.nodes[lease.node].gpus
        for number, at in enumerate(lease.gpus):
            self._index.free(gpus[at].id, (lease.holder, number))
        self._index.free_host(lease.node, lease.holder)


def ask(task: Task) -> Ask:
    """Say a task in the engine's words."""
    models = (Expression("gpuModel", "In", tuple(sorted(task.models))),) if task.models else ()
    share = DeviceAsk("gpu.share", task.gpus, task.milli * SHARES // WHOLE, Selector(models))
    return Ask((share,) if task.gpus else (), task.cpu, task.memory)


def _index(fleet: Sequence[Node]) -> tuple[PoolIndex, dict[int, int]]:
    """Build the picture of a fleet, numbered in its order; also each GPU's place in its node."""
    position: dict[int, int] = {}
    states: list[NodeState] = []
    for number, node in enumerate(fleet):
        group = {"gpuModel": node.model, "sharing": "mps", "shares": SHARES}
        gpus: list[GpuState] = []
        for at in range(node.gpus):
            own = {"node": node.name, "gpuIndex": at}
            gpus.append(GpuState(len(position), "shares", SHARES, group, own))
            position[gpus[-1].id] = at
        states.append(NodeState(number, node.name, node.cpu, node.memory, tuple(gpus)))
    return PoolIndex(states), position
