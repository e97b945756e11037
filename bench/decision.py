"""How fast one process decides: a fleet shaped like the public trace, filled past its capacity.

A decision is one call of `PoolIndex.place` and, when accepted, noting its bookings, so that the
next decision sees them. Asks are drawn from the trace's own mix (CPU alone, shares, one and several
whole GPUs) by a fixed seed until 130 % of the fleet's GPUs have been asked for: at the end nearly
all are refused. Every ask has a window of its own, so no refusal is answered from memory. A second
fleet is booked ahead, where every node has bookings that begin and end at different times.
"""

import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Final

from apportion.placement import (
    FOREVER,
    Ask,
    DeviceAsk,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    Offer,
    PoolIndex,
    Verdict,
)

SHAPES: Final = (
    # nodes, GPUs each, CPUs, memory in GiB, model
    (549, 8, 96, 384, "G2"),
    (387, 2, 104, 512, "T4"),
    (107, 2, 16, 120, "P100"),
    (39, 8, 128, 768, "G3"),
    (28, 4, 32, 128, "V100M16"),
    (22, 2, 64, 256, "P100"),
    (21, 8, 96, 768, "V100M32"),
    (19, 1, 8, 32, "V100M16"),
    (17, 4, 96, 384, "T4"),
    (9, 4, 48, 368, "V100M32"),
    (7, 8, 64, 256, "V100M16"),
    (3, 1, 8, 60, "P100"),
    (2, 2, 8, 60, "P100"),
    (2, 1, 128, 1024, "A10"),
    (1, 8, 82, 336, "V100M16"),
)
SHARES: Final = (
    # hundredths of a GPU, how many tasks ask for them
    *((81, 1078), (47, 750), (32, 328), (65, 253), (23, 140), (46, 128), (59, 75), (16, 74)),
    *((55, 62), (22, 72), (37, 47), (11, 24), (48, 19), (5, 7), (33, 7), (35, 6), (27, 4)),
)
GPUS: Final = ((0, 1088), (1, 3911), (2, 16), (4, 15), (8, 44), (None, 3078))
"""Whole GPUs per task, and how many tasks ask so; None stands for a share of one."""
DEMAND: Final = 130
"""Percent of the fleet's GPUs that are asked for in all."""
AHEAD: Final = 15_000
SECOND: Final = 1_000_000
HOUR: Final = 3600 * SECOND
DAY: Final = 24 * HOUR
SEED: Final = 20


@dataclass(slots=True)
class Timings:
    """Microseconds of each decision, by its answer."""

    accepted: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])

    def take(
        self, index: PoolIndex, number: int, ask: Ask, start: int, end: int
    ) -> Offer | Verdict:
        """Decide, and note how long that took."""
        begun = time.perf_counter()
        answer = decide(index, number, ask, start, end)
        took = (time.perf_counter() - begun) * 1e6
        (self.accepted if isinstance(answer, Offer) else self.refused).append(took)
        return answer


def fleet() -> list[NodeState]:
    """Build the trace's 1,213 nodes with 6,212 GPUs, each GPU cut into 100 free shares."""
    nodes: list[NodeState] = []
    gpu_id = 0
    for count, gpus, cpus, memory_gib, model in SHAPES:
        group = {"gpuModel": model, "sharing": "mps", "shares": 100}
        for _ in range(count):
            node_id = len(nodes)
            states = tuple(
                GpuState(gpu_id + i, "shares", 100, group, {"node": f"node-{node_id:04}"})
                for i in range(gpus)
            )
            gpu_id += gpus
            nodes.append(
                NodeState(node_id, f"node-{node_id:04}", cpus * 1000, memory_gib * 1024, states)
            )
    return nodes


def draw(rng: random.Random) -> Ask:
    """Draw an ask of the trace's mix."""
    gpus = rng.choices([g for g, _ in GPUS], [weight for _, weight in GPUS])[0]
    if gpus is None:
        units = rng.choices([units for units, _ in SHARES], [weight for _, weight in SHARES])[0]
        cpus = rng.choice((2, 4, 6, 6, 8, 12))
        return Ask((DeviceAsk("gpu.share", 1, units),), cpus * 1000, cpus * 2048)
    cpus = rng.choice((4, 8, 11, 12, 12, 16)) * min(max(gpus, 1), 4)
    devices = (DeviceAsk("gpu.share", gpus, 100),) if gpus else ()
    return Ask(devices, cpus * 1000, cpus * 2048)


def hundredths(ask: Ask) -> int:
    """Return how many hundredths of a GPU an ask wants."""
    return sum(device.count * device.units for device in ask.devices)


def decide(index: PoolIndex, number: int, ask: Ask, start: int, end: int) -> Offer | Verdict:
    """Place one ask and note what it got, and what moved for it; asks arrive once a second."""
    answer = index.place(ask, start, end, number * SECOND)
    if isinstance(answer, Offer):
        holder = f"task-{number}"
        gpus = {gpu.id: gpu for gpu in index.nodes[answer.node].gpus}
        for move in answer.moves:
            before = gpus[move.gpu].held[move.key]
            index.book(move.gpu, move.key, Held(before.start, before.end, move.units))
        for at, piece in enumerate(answer.pieces):
            index.book(piece.gpu, (holder, at), Held(start, end, piece.units))
        host = HostHeld(start, end, ask.vcpu_milli, ask.memory_mib)
        index.book_host(answer.node, holder, host)
    return answer


def fill(index: PoolIndex, rng: random.Random, capacity: int) -> tuple[Timings, int]:
    """Ask from now on, without an end, until ``DEMAND`` percent of the fleet is asked for.

    Returns the timings and how many hundredths of GPUs were handed out.
    """
    timings = Timings()
    asked = placed = number = 0
    while 100 * asked < DEMAND * capacity:
        ask = draw(rng)
        answer = timings.take(index, number, ask, number * SECOND, FOREVER)
        asked += hundredths(ask)
        placed += hundredths(ask) if isinstance(answer, Offer) else 0
        number += 1
    return timings, placed


def book_ahead(index: PoolIndex, rng: random.Random) -> Timings:
    """Ask for windows of up to three days that start within a week."""
    timings = Timings()
    for number in range(AHEAD):
        start = number * SECOND + rng.randrange(7 * DAY)
        end = start + rng.randrange(1, 72) * HOUR
        timings.take(index, number, draw(rng), start, end)
    return timings


def run() -> dict[str, float]:
    """Return the figures of one fill and of one week booked ahead; times are in microseconds."""
    nodes = fleet()
    capacity = sum(gpu.ruler for node in nodes for gpu in node.gpus)
    timings, placed = fill(PoolIndex(nodes), random.Random(SEED), capacity)
    every = timings.accepted + timings.refused
    ahead = book_ahead(PoolIndex(fleet()), random.Random(SEED))
    figures = {
        "decision.count": float(len(every)),
        "decision.per_second": len(every) / sum(every) * 1e6,
        "decision.gpus_allocated_percent": 100 * placed / capacity,
        "decision.refused": float(len(timings.refused)),
        "decision.ahead_per_second": AHEAD / sum(ahead.accepted + ahead.refused) * 1e6,
    }
    named = {"": every, "accepted_": timings.accepted, "refused_": timings.refused}
    for name, times in {**named, "ahead_accepted_": ahead.accepted}.items():
        figures[f"decision.{name}median_us"] = statistics.median(times)
        figures[f"decision.{name}p99_us"] = statistics.quantiles(times, n=100)[98]
    return figures
