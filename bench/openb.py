"""The public fragmentation experiment: 17 task lists, ten seeds, the published rules and ours.

The rules are measured again here, beside what their authors published and beside an upper bound.
The fleet's order is random, as in the paper; on the default list the nodes are then put in order
by name, by GPUs and by CPU per GPU, both ways, and given random names: where a machine stands in a
list is an accident that should cost nothing.
"""

import csv
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.replay.filling import Allocated, fill
from bench.replay.ours import OurPlacer
from bench.replay.placers import Points, RulePlacer
from bench.replay.report import QUICK, show, spread
from bench.replay.rules import rule_named
from bench.replay.trace import DATA, ORDERS, TRACES, arrivals, capacity, nodes, ordered, tasks

SEEDS: Final = (42, 43) if QUICK else tuple(range(42, 52))
LISTS: Final = ("default", "gpuspec33") if QUICK else TRACES
RULES: Final = ("random", "bestfit", "fgd", "firstfit", "ours")
PUBLISHED: Final = ("random", "dotprod", "clustering", "packing", "bestfit", "fgd")
SORTED: Final = tuple(f"{order}{way}" for order in ORDERS for way in ("", "_down"))
UNLUCKY: Final = (*SORTED, "renamed")
ORDER_RULES: Final = ("bestfit", "fgd", "firstfit", "ours")
GATE: Final = 0.3
"""How far a rule measured again may lie from what its authors published, in points."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rule on one list, with the nodes in one order, for all seeds."""

    rule: str
    trace: str
    order: str = "random"


def run() -> dict[str, float]:
    """Replay everything, print the tables, and return the figures."""
    jobs = [Job(rule, trace) for trace in LISTS for rule in RULES]
    jobs += [Job(rule, "default", order) for rule in ORDER_RULES for order in UNLUCKY]
    results = dict(zip(jobs, spread(measure, jobs), strict=True))
    published, bounds = _published(), _bounds()
    figures = {f"openb.bound.{trace}.allocated_100": bounds[trace] for trace in LISTS}
    for (policy, trace), value in published.items():
        figures[f"openb.published.{policy}.{trace}.allocated_100"] = value
    for job in jobs:
        figures.update(_figures(job, results[job]))
    for rule in ORDER_RULES:
        means = [_mean(results[Job(rule, "default", order)]) for order in UNLUCKY]
        figures[f"openb.{rule}.default.worst_order"] = min(means)
    _show(figures)
    return figures


def measure(job: Job) -> list[Allocated]:
    """Do one job; in a hurry, orders other than the paper's have one seed."""
    seeds = SEEDS[:1] if QUICK and job.order != "random" else SEEDS
    listed = tasks(job.trace)
    total = capacity(nodes())
    points = None if job.rule == "ours" else Points(rule_named(job.rule, listed), listed)
    found: list[Allocated] = []
    for seed in seeds:
        fleet = ordered(job.order, random.Random(f"{seed} {job.order}"))
        arriving = arrivals(listed, total, random.Random(seed))
        rng = random.Random(seed)
        placer = OurPlacer(fleet) if points is None else RulePlacer(points, fleet, rng)
        found.append(fill(placer, arriving, total))
    return found


def _mean(runs: Iterable[Allocated], at: int = 100) -> float:
    return statistics.mean(run[at] for run in runs)


def _figures(job: Job, runs: list[Allocated]) -> dict[str, float]:
    name = f"openb.{job.rule}.{job.trace}"
    if job.order != "random":
        return {f"{name}.{job.order}": _mean(runs)}
    return {
        f"{name}.allocated_100": _mean(runs),
        f"{name}.allocated_100_sd": statistics.stdev(run[100] for run in runs),
        f"{name}.allocated_130": _mean(runs, 130),
    }


def _published() -> dict[tuple[str, str], float]:
    rows = list(csv.DictReader((DATA / "openb_published.csv").read_text("utf-8").splitlines()))
    return {
        (policy, trace): statistics.mean(
            float(row["allocated_100"])
            for row in rows
            if (row["policy"], row["trace"]) == (policy, trace)
        )
        for trace in LISTS
        for policy in PUBLISHED
    }


def _bounds() -> dict[str, float]:
    rows = csv.DictReader((DATA / "openb_bounds.csv").read_text("utf-8").splitlines())
    return {row["trace"]: float(row["bound_100"]) for row in rows}


def _show(figures: Mapping[str, float]) -> None:
    show(
        f"Percent of the GPUs allocated when all are asked for, mean of {len(SEEDS)} seeds",
        ("list", *RULES, *(f"{policy}*" for policy in PUBLISHED), "bound"),
        (
            (
                trace,
                *(figures[f"openb.{rule}.{trace}.allocated_100"] for rule in RULES),
                *(
                    figures[f"openb.published.{policy}.{trace}.allocated_100"]
                    for policy in PUBLISHED
                ),
                figures[f"openb.bound.{trace}.allocated_100"],
            )
            for trace in LISTS
        ),
    )
    print("* as the authors published it")
    show(
        "The same on the default list, by the order of the nodes",
        ("order", *ORDER_RULES),
        (
            (order, *(figures[f"openb.{rule}.default.{order}"] for rule in ORDER_RULES))
            for order in ("allocated_100", *UNLUCKY, "worst_order")
        ),
    )
    for rule in ("bestfit", "fgd"):
        off = {
            trace: figures[f"openb.{rule}.{trace}.allocated_100"]
            - figures[f"openb.published.{rule}.{trace}.allocated_100"]
            for trace in LISTS
        }
        worst = max(off, key=lambda trace: abs(off[trace]))
        verdict = "within" if abs(off[worst]) <= GATE else "BEYOND"
        print(f"{rule}: at most {off[worst]:+.2f} points from the published mean ({worst}),")
        print(f"  {verdict} the {GATE} by which this harness is judged")
