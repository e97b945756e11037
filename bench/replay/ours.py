"""Apportion's engine on the public experiment: one pool of free shares, its default policy."""

from collections.abc import Sequence
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
from bench.replay.static import Allocated, Meter
from bench.replay.trace import WHOLE, Node, Task, capacity

SHARES: Final = 100
"""A GPU is cut into hundredths; the trace asks for whole hundredths only."""


def index(fleet: Sequence[Node]) -> PoolIndex:
    """Build the picture of a fleet; nodes are numbered in the order given."""
    states: list[NodeState] = []
    gpu = 0
    for number, node in enumerate(fleet):
        group = {"gpuModel": node.model, "sharing": "mps", "shares": SHARES}
        gpus = tuple(
            GpuState(gpu + at, "shares", SHARES, group, {"node": node.name, "gpuIndex": at})
            for at in range(node.gpus)
        )
        gpu += node.gpus
        states.append(NodeState(number, node.name, node.cpu, node.memory, gpus))
    return PoolIndex(states)


def ask(task: Task) -> Ask:
    """Say a task in the engine's words."""
    models = (Expression("gpuModel", "In", tuple(sorted(task.models))),) if task.models else ()
    units = task.milli * SHARES // WHOLE
    share = DeviceAsk("gpu.share", task.gpus, units, Selector(models))
    return Ask((share,) if task.gpus else (), task.cpu, task.memory)


def take(pool: PoolIndex, holder: str, wanted: Ask, *, start: int, end: int, now: int) -> bool:
    """Place an ask and hold what it got; tell whether it got anything."""
    answer = pool.place(wanted, start, end, now)
    if not isinstance(answer, Offer):
        return False
    gpus = {gpu.id: gpu for gpu in pool.nodes[answer.node].gpus}
    for move in answer.moves:
        moved = gpus[move.gpu].held[move.key]
        pool.book(move.gpu, move.key, Held(moved.start, moved.end, move.units))
    for at, piece in enumerate(answer.pieces):
        pool.book(piece.gpu, (holder, at), Held(start, end, piece.units))
    host = HostHeld(start, end, wanted.vcpu_milli, wanted.memory_mib)
    pool.book_host(answer.node, holder, host)
    return True


def run(fleet: Sequence[Node], arriving: Sequence[Task]) -> Allocated:
    """Place the tasks one after the other, for ever."""
    pool = index(fleet)
    meter = Meter(capacity(fleet))
    asks = {task: ask(task) for task in set(arriving)}
    for number, task in enumerate(arriving):
        placed = take(pool, str(number), asks[task], start=0, end=FOREVER, now=0)
        meter.note(task, placed=placed)
    return meter.allocated()
