"""How fast one process decides: a fleet shaped like the public trace, filled past its capacity.

A decision is one call of `PoolIndex.place` and, when accepted, noting its bookings, so that the
next decision sees them. Asks are drawn from the trace's own mix (CPU alone, shares, one and several
whole GPUs) by a fixed seed until 130 % of the fleet's GPUs have been asked for: at the end nearly
all are refused. Every ask has a window of its own, so no refusal is answered from memory.
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
    NodeState,
    Offer,
    PoolIndex,
    Verdict,
)
from apportion.placement.state import HostHeld

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
DEMAND: Final = 1.3
SECOND: Final = 1_000_000
SEED: Final = 20


@dataclass(slots=True)
class Timings:
    """Microseconds of each decision, by its answer."""

    accepted: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])


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


def draw(rng: random.Random) -> tuple[Ask, float]:
    """Draw an ask of the trace's mix, and how many GPUs it wants."""
    gpus = rng.choices([g for g, _ in GPUS], [weight for _, weight in GPUS])[0]
    if gpus is None:
        units = rng.choices([units for units, _ in SHARES], [weight for _, weight in SHARES])[0]
        cpus = rng.choice((2, 4, 6, 6, 8, 12))
        return Ask((DeviceAsk("gpu.share", 1, units),), cpus * 1000, cpus * 2048), units / 100
    cpus = rng.choice((4, 8, 11, 12, 12, 16)) * min(max(gpus, 1), 4)
    devices = (DeviceAsk("gpu.share", gpus, 100),) if gpus else ()
    return Ask(devices, cpus * 1000, cpus * 2048), gpus


def decide(index: PoolIndex, number: int, ask: Ask, start: int) -> Offer | Verdict:
    """Place one ask and note what it got."""
    answer = index.place(ask, start, FOREVER, start)
    if isinstance(answer, Offer):
        holder = f"task-{number}"
        for at, piece in enumerate(answer.pieces):
            index.book(piece.gpu, (holder, at), Held(start, FOREVER, piece.units))
        host = HostHeld(start, FOREVER, ask.vcpu_milli, ask.memory_mib)
        index.book_host(answer.node, holder, host)
    return answer


def fill(index: PoolIndex, rng: random.Random, gpus: int) -> tuple[Timings, float]:
    """Decide until ``DEMAND`` times the fleet is asked for; return timings and GPUs handed out."""
    timings = Timings()
    asked = placed = 0.0
    number = 0
    while asked < DEMAND * gpus:
        ask, wanted = draw(rng)
        begun = time.perf_counter()
        answer = decide(index, number, ask, number * SECOND)
        took = (time.perf_counter() - begun) * 1e6
        (timings.accepted if isinstance(answer, Offer) else timings.refused).append(took)
        asked += wanted
        placed += wanted if isinstance(answer, Offer) else 0
        number += 1
    return timings, placed


def run() -> dict[str, float]:
    """Return the figures of one fill; times are in microseconds."""
    nodes = fleet()
    gpus = sum(len(node.gpus) for node in nodes)
    timings, placed = fill(PoolIndex(nodes), random.Random(SEED), gpus)
    every = timings.accepted + timings.refused
    figures = {
        "decision.count": float(len(every)),
        "decision.per_second": len(every) / sum(every) * 1e6,
        "decision.gpus_allocated_percent": 100 * placed / gpus,
    }
    for name, times in (
        ("", every),
        ("accepted_", timings.accepted),
        ("refused_", timings.refused),
    ):
        figures[f"decision.{name}median_us"] = statistics.median(times)
        figures[f"decision.{name}p99_us"] = statistics.quantiles(times, n=100)[98]
    figures["decision.refused"] = float(len(timings.refused))
    return figures
