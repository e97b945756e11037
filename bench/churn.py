"""The public trace as a stream: requests come, stay as long as the trace ran them, and go.

Played at its own times the trace fills 1 % of its fleet, so arrivals are drawn anew: tasks from
the default list with replacement, each with its own lifetime (those that never ran are left out,
and none stays longer than `LONGEST`: the longest 5 % would need weeks to settle), at a rate that
asks for a set share of the fleet's GPU time. The fleet is every eighth node of each kind. What
does not fit is lost; with slack, a request waits as long as that times its length.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.replay.churn import Arrival, Churn
from bench.replay.ours import OurPlacer
from bench.replay.placers import Points, RulePlacer, kind_of
from bench.replay.report import QUICK, show, spread
from bench.replay.rules import rule_named
from bench.replay.trace import WHOLE, Node, Task, capacity, nodes, tasks

RULES: Final = ("random", "bestfit", "fgd", "firstfit", "ours")
LOADS: Final = (70, 85, 100, 120)
"""Percent of the fleet's GPU time that is asked for."""
SLACKS: Final = (10, 50, 100, 400)
"""Percent of its length that a request can wait; at a load of 100."""
LONGEST: Final = 4 * 3600
SHARE_OF_FLEET: Final = 32 if QUICK else 8
SEEDS: Final = range(1 if QUICK else 5)
SIZES: Final[Mapping[str, Callable[[Task], bool]]] = {
    "cpu": lambda task: task.gpus == 0,
    "shared": lambda task: task.gpus == 1 and task.milli < WHOLE,
    "one": lambda task: task.gpus == 1 and task.milli == WHOLE,
    "several": lambda task: task.gpus > 1,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One rule, one load, one slack, one seed."""

    rule: str
    load: int
    slack: int
    seed: int

    @property
    def case(self) -> str:
        """What the seeds of it have in common."""
        slack = f".slack_{self.slack}" if self.slack else ""
        return f"churn.{self.rule}.load_{self.load}{slack}"


def run() -> dict[str, float]:
    """Run everything, print the tables, and return the figures."""
    cases = [(load, 0) for load in LOADS] + [(100, slack) for slack in SLACKS]
    jobs = [Job(rule, *case, seed) for rule in RULES for case in cases for seed in SEEDS]
    found: dict[str, list[float]] = {}
    for job, figures in zip(jobs, spread(measure, jobs), strict=True):
        for key, value in figures.items():
            found.setdefault(f"{job.case}.{key}", []).append(value)
    means = {key: statistics.mean(values) for key, values in found.items()}
    _show(means)
    return means


def measure(job: Job) -> dict[str, float]:
    """Do one job: the longest lifetime to settle, as much again to count; then arrivals go on."""
    listed = [task for task in tasks("default") if task.seconds]
    rng = random.Random(f"{job.load} {job.seed}")
    fleet = _fleet(rng)
    arrivals = _stream(listed, capacity(fleet), job, rng)
    if job.rule == "ours":
        placer = OurPlacer(fleet)
    else:
        points = Points(rule_named(job.rule, listed), listed)
        placer = RulePlacer(points, fleet, random.Random(job.seed))
    rooms = placer.rooms
    churn = Churn(placer, lambda lease, task: rooms.takes(lease.node, task))
    starts = churn.run(arrivals)
    counted = [
        (arrival, start is not None)
        for arrival, start in zip(arrivals, starts, strict=True)
        if LONGEST <= arrival.at < 2 * LONGEST
    ]
    return _accepted(counted)


def _fleet(rng: random.Random) -> list[Node]:
    kinds = sorted(nodes(), key=lambda node: (node.model, node.gpus, node.cpu, node.memory))
    some = kinds[::SHARE_OF_FLEET]
    return rng.sample(some, len(some))


def _stream(
    listed: Sequence[Task], total: int, job: Job, rng: random.Random
) -> list[Arrival[Task]]:
    lengths = [min(task.seconds, LONGEST) for task in listed]
    work = sum(t.gpu_milli * s for t, s in zip(listed, lengths, strict=True)) / len(listed)
    rate = job.load * total / work / 100
    arrivals: list[Arrival[Task]] = []
    now = rng.expovariate(rate)
    while now < 3 * LONGEST:
        at = rng.randrange(len(listed))
        patience = job.slack * lengths[at] / 100
        arrivals.append(Arrival(now, kind_of(listed[at]), lengths[at], patience))
        now += rng.expovariate(rate)
    return arrivals


def _accepted(counted: Sequence[tuple[Arrival[Task], bool]]) -> dict[str, float]:
    """Return percents accepted: of the requests, of their GPU time, and of each size."""

    def percent(weight: Callable[[Arrival[Task]], float]) -> float:
        asked = sum(weight(arrival) for arrival, _ in counted)
        return 100 * sum(weight(arrival) for arrival, got in counted if got) / max(asked, 1)

    return {
        "accepted": percent(lambda _: 1),
        "accepted_gpu_time": percent(lambda arrival: arrival.what.gpu_milli * arrival.length),
        **{
            f"accepted_{name}": percent(lambda arrival, of=of: of(arrival.what))
            for name, of in SIZES.items()
        },
    }


def _show(figures: Mapping[str, float]) -> None:
    keys = ("accepted", "accepted_gpu_time", *(f"accepted_{name}" for name in SIZES))
    cases = [f"load_{load}" for load in LOADS] + [f"load_100.slack_{each}" for each in SLACKS]
    for case in cases:
        show(
            f"Percent accepted: {case.replace('.', ', ').replace('_', ' ')}",
            ("rule", *(key.removeprefix("accepted_") for key in keys)),
            ((rule, *(figures[f"churn.{rule}.{case}.{key}"] for key in keys)) for rule in RULES),
        )
