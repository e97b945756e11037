"""What a decision costs, and how that grows with the fleet.

A decision is one call of `PoolIndex.place` and noting what it gave, so that the next one sees it.
Before anything is timed, fleets are filled and then stirred: what is held is let go at random and
other things are placed, so that no fleet is in the order in which it was filled. Small and large
fleets are timed in turns, in one process, whose memory is kept as a server keeps it.
"""

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from apportion.placement import (
    FOREVER,
    Ask,
    AtomState,
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
from apportion.reservations.memory import gather
from bench.replay.ours import ask as ask_of
from bench.replay.report import QUICK, show
from bench.replay.trace import Node, arrivals, capacity, nodes, tasks

PROFILES: Final = (
    # name, slices, where it may start
    ("1g.10gb", 1, range(7)),
    ("1g.20gb", 2, (0, 2, 4, 6)),
    ("2g.20gb", 2, (0, 2, 4)),
    ("3g.40gb", 4, (0, 4)),
    ("4g.40gb", 4, (0,)),
    ("7g.80gb", 8, (0,)),
)
SLICES: Final = 8
ANY_SIZE: Final = range(len(PROFILES))
LARGEST: Final = ANY_SIZE[-1:]
KINDS: Final = 20
"""Attribute classes: GPUs of as many models, eight a node."""
SMALL: Final = 1_000
LARGE: Final = 8_000 if QUICK else 1_000_000
AHEAD: Final = 2_000 if QUICK else 100_000
BOOKED: Final = 20
"""Future bookings of each GPU."""
TIMES: Final = 3 if QUICK else 83
"""How many times the trace's 1,213 nodes make 100,000."""
ROUNDS: Final = 10
SEED: Final = 20
HOUR: Final = 3600 * 1_000_000
PAGE: Final = 4096

Figures = Iterator[tuple[str, float]]


@dataclass(slots=True)
class Timings:
    """Microseconds of each decision, by its answer."""

    accepted: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])

    @property
    def every(self) -> list[float]:
        """All of them."""
        return self.accepted + self.refused


class Pool:
    """A fleet that is asked, and what is held of it."""

    def __init__(self, fleet: list[NodeState], asks: Callable[[random.Random], Ask]) -> None:
        self.index = PoolIndex(fleet)
        self.rng = random.Random(SEED)
        self.asks = asks
        self.timings = Timings()
        self.held: list[tuple[str, Offer]] = []
        self.units = 0
        self._number = 0

    def decide(self, ask: Ask, start: int = 0, end: int = FOREVER) -> Offer | None:
        """Place one ask, hold what it gets, and note how long that took."""
        self._number += 1
        holder = f"r{self._number}"
        index = self.index
        begun = time.perf_counter()
        answer = index.place(ask, start, end, 0)
        if isinstance(answer, Offer):
            for number, piece in enumerate(answer.pieces):
                index.book(piece.gpu, (holder, number), Held(start, end, piece.units))
            if ask.vcpu_milli or ask.memory_mib:
                host = HostHeld(start, end, ask.vcpu_milli, ask.memory_mib)
                index.book_host(answer.node, holder, host)
        took = (time.perf_counter() - begun) * 1e6
        if not isinstance(answer, Offer):
            self.timings.refused.append(took)
            return None
        self.timings.accepted.append(took)
        self.held.append((holder, answer))
        self.units += _units(answer)
        return answer

    def release(self) -> None:
        """Let go of something that is held, at random."""
        at = self.rng.randrange(len(self.held))
        self.held[at], self.held[-1] = self.held[-1], self.held[at]
        holder, offer = self.held.pop()
        self.units -= _units(offer)
        for number, piece in enumerate(offer.pieces):
            self.index.free(piece.gpu, (holder, number))
        self.index.free_host(offer.node, holder)

    def fill(self, units: int) -> None:
        """Ask until so many units are held, or hardly anything finds room."""
        refused = 0
        while self.units < units and refused < 1_000:
            refused = 0 if self.decide(self.asks(self.rng)) else refused + 1

    def stir(self, count: int) -> None:
        """Let go and ask again, so many times."""
        for _ in range(count):
            self.release()
            self.decide(self.asks(self.rng))


def _units(offer: Offer) -> int:
    return sum(piece.units.bit_count() for piece in offer.pieces)


def memory() -> int:
    """Return the bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE


def fleet(gpus: int, split: str) -> list[NodeState]:
    """Build nodes of eight GPUs, of `KINDS` models."""
    known = {name: {"migProfile": name} for name, _, _ in PROFILES}
    places = [(name, size, start) for name, size, starts in PROFILES for start in starts]

    def gpu(number: int) -> GpuState:
        group = {"gpuModel": f"M{number // 8 % KINDS}"}
        own = {"node": f"n{number // 8}", "gpuIndex": number % 8}
        if split != "mig":
            return GpuState(number, "slots", SLICES, group, own)
        atoms = (
            AtomState(number * len(places) + at, ((1 << size) - 1) << start, name, known[name])
            for at, (name, size, start) in enumerate(places)
        )
        return GpuState(number, "mig", SLICES, group, own, atoms=tuple(atoms))

    return [
        NodeState(node, f"n{node}", 0, 0, tuple(gpu(8 * node + at) for at in range(8)))
        for node in range(gpus // 8)
    ]


def asks_for(split: str, sizes: range = ANY_SIZE) -> Callable[[random.Random], Ask]:
    """Return what draws asks: half of them for one model, half for any."""
    made: dict[tuple[int, int], Ask] = {}

    def draw(rng: random.Random) -> Ask:
        kind, size = rng.randrange(2 * KINDS), rng.choice(sizes)
        found = made.get((kind, size))
        if found is None:
            model = (Expression("gpuModel", "In", (f"M{kind}",)),) if kind < KINDS else ()
            profile = Expression("migProfile", "In", (PROFILES[size][0],))
            device = (
                DeviceAsk("gpu.mig", selector=Selector((*model, profile)))
                if split == "mig"
                else DeviceAsk("gpu.slot", 1, PROFILES[size][1], Selector(model))
            )
            found = made[kind, size] = Ask((device,))
        return found

    return draw


def in_turns(pools: dict[int, Pool], each: int) -> None:
    """Stir the pools in turns, timing only this; the collector of garbage runs only here."""
    gc.freeze()
    gc.enable()
    for pool in pools.values():
        pool.timings = Timings()
    for _ in range(ROUNDS):
        for pool in pools.values():
            pool.stir(each)
    gc.disable()


def by_size(split: str) -> Figures:
    """Time windows that start now, in a small and a large fleet, half full and then 95 % full."""
    gc.disable()
    name = "mig" if split == "mig" else "slot"
    memory_of = f"decision.{name}.memory_bytes_per_gpu"
    pools: dict[int, Pool] = {SMALL: Pool(fleet(SMALL, split), asks_for(split))}
    before = memory()
    built = fleet(LARGE, split)
    given = memory()
    pools[LARGE] = Pool(built, asks_for(split))
    yield f"{memory_of}.given", (given - before) / LARGE
    yield f"{memory_of}.index", (memory() - given) / LARGE
    for kind, percent in ((f"{name}.half", 50), (name, 95)):
        for gpus, pool in pools.items():
            pool.fill(gpus * SLICES * percent // 100)
            pool.stir(min(gpus * 4, 100_000))
            pool.timings = Timings()
        gather()
        yield f"decision.{kind}.bookings_per_gpu", len(pools[LARGE].held) / LARGE
        yield f"decision.{kind}.memory_bytes_per_gpu", (memory() - before) / LARGE
        in_turns(pools, 200 if QUICK else 2_000)
        accepted = {gpus: pool.timings.accepted for gpus, pool in pools.items()}
        yield from _by_fleet(f"decision.{kind}.", accepted)
    # What hardly any GPU has room for any more is refused, each time after something was let go.
    for gpus, pool in pools.items():
        pool.asks = asks_for(split, LARGEST)
        pool.fill(gpus * SLICES)
    in_turns(pools, 200 if QUICK else 2_000)
    refused = {gpus: pool.timings.refused for gpus, pool in pools.items()}
    yield from _by_fleet(f"decision.{name}.refused_", refused)


def _by_fleet(kind: str, times: dict[int, list[float]]) -> Figures:
    """Tell the median in each fleet, and how it grows from the small to the large one."""
    medians = {gpus: statistics.median(each) for gpus, each in times.items()}
    for gpus, median in medians.items():
        yield f"{kind}median_us.{gpus}", median
    yield f"{kind}growth", medians[LARGE] / medians[SMALL]


def ahead(split: str) -> Figures:
    """Time windows of the week to come, where each GPU has bookings all over it."""
    rng = random.Random(SEED)
    pool = Pool(fleet(AHEAD, split), asks_for(split))
    for node in pool.index.nodes.values():
        for gpu in node.gpus:
            at = rng.randrange(6 * HOUR)
            for number in range(BOOKED):
                start = at + rng.randrange(HOUR // 2, 8 * HOUR)
                at = start + rng.randrange(HOUR, 10 * HOUR)
                units = 0xFF if rng.randrange(2) else 0x0F
                pool.index.book(gpu.id, (f"b{gpu.id}", number), Held(start, at, units))
    gc.freeze()

    def decide(count: int) -> None:
        for _ in range(count):
            start = rng.randrange(180 * HOUR)
            hours = rng.choice((1, 2, 4, 8, 24, 72, 168))
            pool.decide(pool.asks(rng), start, start + hours * HOUR)

    # The first decisions find the calendars closed: a cost of starting, told apart.
    name = "mig" if split == "mig" else "slot"
    begun = time.perf_counter()
    decide(100)
    yield f"decision.{name}.future20_opening_s.{AHEAD}", time.perf_counter() - begun
    pool.timings = Timings()
    decide(300 if QUICK else 3_000)
    timings = pool.timings
    yield f"decision.{name}.future20_ms.{AHEAD}", statistics.median(timings.every) / 1e3
    for answer, times in (("accepted", timings.accepted), ("refused", timings.refused)):
        if len(times) > ROUNDS:
            yield f"decision.{name}.future20_{answer}_ms.{AHEAD}", statistics.median(times) / 1e3


def trace_fleet(times: int) -> tuple[list[NodeState], list[Node]]:
    """Build the public trace's fleet, so many times, each GPU cut into free hundredths."""
    built: list[NodeState] = []
    listed = list(nodes()) * times
    gpu = 0
    for number, node in enumerate(listed):
        group = {"gpuModel": node.model, "sharing": "mps", "shares": 100}
        states = tuple(
            GpuState(gpu + at, "shares", 100, group, {"node": str(number)})
            for at in range(node.gpus)
        )
        gpu += node.gpus
        built.append(NodeState(number, str(number), node.cpu, node.memory, states))
    return built, listed


def hosts() -> Figures:
    """Time the trace's own tasks, with their CPU and memory, until 130 % is asked for."""
    for key, distinct in (("1213", False), ("distinct", True)):
        built, listed = trace_fleet(1)
        rng = random.Random(SEED)
        pool = Pool(built, lambda rng: ask_of(rng.choice(tasks("default"))))
        coming = [ask_of(task) for task in arrivals(tasks("default"), capacity(listed), rng)]
        if distinct:
            # No two are alike in CPU and memory.
            coming = [
                replace(ask, vcpu_milli=ask.vcpu_milli + at % 97, memory_mib=ask.memory_mib + at)
                for at, ask in enumerate(coming)
            ]
        for ask in coming:
            pool.decide(ask)
        every = pool.timings.every
        yield f"decision.host.per_second.{key}", len(every) / sum(every) * 1e6
        yield f"decision.host.median_us.{key}", statistics.median(every)


def hosts_by_size() -> Figures:
    """Time the same tasks as they come and go, in the trace's fleet and in one of 100,000 nodes."""
    pools: dict[int, Pool] = {}
    asks = [ask_of(task) for task in tasks("default")]
    for times in (1, TIMES):
        built, listed = trace_fleet(times)
        pools[len(listed)] = pool = Pool(built, lambda rng: rng.choice(asks))
        pool.fill(sum(100 * node.gpus for node in listed) * 9 // 10)
        pool.stir(min(4 * len(pool.held), 100_000))
    gather()
    in_turns(pools, 100 if QUICK else 500)
    means = {size: statistics.fmean(pool.timings.every) for size, pool in pools.items()}
    for size, mean in means.items():
        yield f"decision.host.mean_us.{size}", mean
    small, large = means
    yield "decision.host.growth", means[large] / means[small]


def run() -> dict[str, float]:
    """Return all figures, and print them."""
    figures: dict[str, float] = {}
    for split in ("mig", "slots"):
        figures.update(_alone(by_size, split))
        figures.update(_alone(ahead, split))
    figures.update(_alone(hosts))
    figures.update(_alone(hosts_by_size))
    show("What a decision costs", ("figure", ""), sorted(figures.items()))
    return figures


def _alone(measure: Callable[..., Figures], *given: object) -> dict[str, float]:
    """Measure in a process of its own: memory that was given back stays with a process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "w") as out:
            for key, value in measure(*given):
                out.write(f"{key} {value}\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = dict(line.split() for line in lines)
    os.waitpid(child, 0)
    return {key: float(value) for key, value in found.items()}
