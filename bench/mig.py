"""MIG cut on demand: how few GPUs hold a pile of requests, and how full a fleet stays as they go.

Piled up: requests for instances, none of which ends, beside the optimum over the 28 maximal sets
of profiles that a GPU can hold. Churn: 50 GPUs, Poisson arrivals of as much as the fleet has, in
four mixes of profiles; what does not fit is lost. Queue: the published configuration of MIGBench,
8 GPUs and 500 jobs that wait. All rules see the same requests. Slices are memory slices, 8 a GPU.
"""

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.replay.churn import Arrival, Churn, Fleet, used
from bench.replay.mig import (
    PROFILES,
    RULES,
    SIZES,
    SLICES,
    Lease,
    Migrating,
    RuleFleet,
    fewest,
)
from bench.replay.our_mig import MovingFleet, OurFleet
from bench.replay.report import QUICK, show, spread

MIXES: Final[Mapping[str, tuple[int, ...]]] = {
    "uniform": (1, 1, 1, 1, 1, 1),
    "small": (40, 10, 25, 15, 5, 5),
    "big": (5, 5, 15, 25, 25, 25),
    "migbench": (35, 0, 25, 25, 10, 5),
}
"""Weights of the profiles in the order of `PROFILES`."""
ALL: Final = (*RULES, "ours", "ours_moving", "oracle")
GPUS: Final = 50
SEEDS: Final = range(2 if QUICK else 20)
WARMING, COUNTED = (500, 2_000) if QUICK else (2_000, 10_000)
MOVING_SEEDS: Final = SEEDS[:5]
"""Looking for whom to move costs more than placing: a quarter of the seeds has to do."""
PILE: Final = 1_000
PILED: Final = ("firstfit_low", "bestfit", "fragmentation", "ours")
QUEUE_GPUS, JOBS, QUEUE_SEEDS = 8, 500, range(2 if QUICK else 20)


@dataclass(frozen=True, slots=True)
class Job:
    """One rule in one mix; the mix ``queue`` is MIGBench's configuration."""

    rule: str
    mix: str


def run() -> dict[str, float]:
    """Run everything, print the tables, and return the figures."""
    # A queue asks for the same request again and again, and would count each time as an arrival.
    jobs = [
        Job(rule, mix)
        for mix in (*MIXES, "queue")
        for rule in ALL
        if (rule, mix) != ("ours_moving", "queue")
    ]
    figures = _piles()
    uses: dict[Job, list[float]] = {}
    for job, (found, use) in zip(jobs, spread(measure, jobs), strict=True):
        figures.update(found)
        uses[job] = use
    for mix in MIXES:
        pairs = zip(uses[Job("ours", mix)], uses[Job("fragmentation", mix)], strict=True)
        better = [ours - theirs for ours, theirs in pairs]
        figures[f"mig.ours.{mix}.above_fragmentation"] = statistics.mean(better)
        plain, moving, oracle = (
            statistics.mean(uses[Job(rule, mix)][: len(MOVING_SEEDS)])
            for rule in ("ours", "ours_moving", "oracle")
        )
        figures[f"mig.ours_moving.{mix}.gap_closed"] = 100 * (moving - plain) / (oracle - plain)
        error = statistics.stdev(better) / len(better) ** 0.5
        figures[f"mig.ours.{mix}.above_fragmentation_error"] = error
    _show(figures)
    return figures


def measure(job: Job) -> tuple[dict[str, float], list[float]]:
    """Do one job; of churn also return the slice use of each seed."""
    return (_queue(job.rule), []) if job.mix == "queue" else _churn(job.rule, job.mix)


def _fleet(rule: str, gpus: int) -> Fleet[str, Lease]:
    if rule == "ours":
        return OurFleet(gpus)
    if rule == "ours_moving":
        return MovingFleet(gpus)
    if rule == "oracle":
        return Migrating(gpus)
    # Sorted by name, GPU 10 comes before GPU 2; like GPUs make that a matter of names alone.
    return RuleFleet(RULES[rule], gpus)


# -- piled up --------------------------------------------------------------------------------------


def _piles() -> dict[str, float]:
    figures: dict[str, float] = {}
    for mix, weights in MIXES.items():
        pile = random.Random(mix).choices(PROFILES, weights, k=PILE)
        counts = Counter(dict.fromkeys(PROFILES, 0)) + Counter(pile)
        figures[f"mig.optimum.{mix}.gpus"] = fewest({name: counts[name] for name in PROFILES})
        figures[f"mig.volume.{mix}.gpus"] = -(-sum(SIZES[each] for each in pile) // SLICES)
        decreasing = sorted(pile, key=lambda name: -SIZES[name])
        figures[f"mig.decreasing_firstfit.{mix}.gpus"] = _gpus("firstfit_low", decreasing)
        for rule in PILED:
            figures[f"mig.{rule}.{mix}.gpus"] = _gpus(rule, pile)
    return figures


def _gpus(rule: str, pile: Iterable[str]) -> int:
    fleet = _fleet(rule, PILE)
    leases = [fleet.place(profile) for profile in pile]
    return len({lease.gpu for lease in leases if lease is not None})


# -- churn -----------------------------------------------------------------------------------------


def _churn(rule: str, mix: str) -> tuple[dict[str, float], list[float]]:
    use: list[float] = []
    asked, accepted = Counter[str](), Counter[str]()
    for seed in MOVING_SEEDS if rule == "ours_moving" else SEEDS:
        arrivals = _poisson(mix, seed)
        starts = Churn(_fleet(rule, GPUS)).run(arrivals)
        window = (arrivals[WARMING].at, arrivals[-1].at)
        use.append(100 * used(arrivals, starts, SIZES.__getitem__, window) / (GPUS * SLICES))
        for arrival, start in list(zip(arrivals, starts, strict=True))[WARMING:]:
            asked[arrival.what] += 1
            accepted[arrival.what] += start is not None
    name = f"mig.{rule}.{mix}"
    figures = {
        f"{name}.slice_use": statistics.mean(use),
        f"{name}.slice_use_sd": statistics.stdev(use),
        f"{name}.accepted_slices": 100 * _slices(accepted) / _slices(asked),
        **{
            f"{name}.accepted.{profile}": 100 * accepted[profile] / asked[profile]
            for profile in PROFILES
            if asked[profile]
        },
    }
    return figures, use


def _poisson(mix: str, seed: int) -> list[Arrival[str]]:
    """Draw arrivals that ask for as many slices at a time as there are; they stay 1 on average."""
    rng = random.Random(f"{mix} {seed}")
    weights = MIXES[mix]
    mean = sum(w * SIZES[p] for w, p in zip(weights, PROFILES, strict=True)) / sum(weights)
    rate = GPUS * SLICES / mean
    arrivals: list[Arrival[str]] = []
    now = 0.0
    for _ in range(WARMING + COUNTED):
        now += rng.expovariate(rate)
        (profile,) = rng.choices(PROFILES, weights)
        arrivals.append(Arrival(now, profile, rng.expovariate(1)))
    return arrivals


def _slices(counts: Mapping[str, int]) -> int:
    return sum(count * SIZES[profile] for profile, count in counts.items())


# -- queue -----------------------------------------------------------------------------------------


def _queue(rule: str) -> dict[str, float]:
    runs = [_queued(rule, seed) for seed in QUEUE_SEEDS]
    return {f"mig.{rule}.queue.{key}": statistics.mean(run[key] for run in runs) for key in runs[0]}


def _queued(rule: str, seed: int) -> dict[str, float]:
    """Run one seed: a job every 15 s, of 600 s in the median, and none is refused."""
    rng = random.Random(f"queue {seed}")
    arrivals: list[Arrival[str]] = []
    now = 0.0
    for _ in range(JOBS):
        now += rng.expovariate(1 / 15)
        (profile,) = rng.choices(("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"), (35, 25, 25, 5))
        length = rng.lognormvariate(6.3969, 0.8)  # e^6.3969 = 600
        arrivals.append(Arrival(now, profile, length, float("inf")))
    starts = Churn(_fleet(rule, QUEUE_GPUS)).run(arrivals)
    waits: list[float] = []
    ends: list[float] = []
    for arrival, start in zip(arrivals, starts, strict=True):
        assert start is not None, "a job was left waiting on an empty fleet"
        waits.append(start - arrival.at)
        ends.append(start + arrival.length)
    window = (arrivals[50].at, arrivals[-1].at)
    slices = QUEUE_GPUS * SLICES
    return {
        "slice_use": 100 * used(arrivals, starts, SIZES.__getitem__, window) / slices,
        "makespan_s": max(ends),
        "wait_mean_s": statistics.mean(waits),
        "wait_p99_s": statistics.quantiles(waits, n=100)[98],
    }


# -- tables ----------------------------------------------------------------------------------------


def _show(figures: Mapping[str, float]) -> None:
    piles = ("volume", "optimum", "decreasing_firstfit", *PILED)
    show(
        f"GPUs that {PILE} requests take",
        ("mix", *piles),
        ((mix, *(figures[f"mig.{rule}.{mix}.gpus"] for rule in piles)) for mix in MIXES),
    )
    show(
        f"Percent of slices in use, {GPUS} GPUs at load 1.0, mean of {len(SEEDS)} seeds",
        ("rule", *MIXES),
        ((rule, *(figures[f"mig.{rule}.{mix}.slice_use"] for mix in MIXES)) for rule in ALL),
    )
    show(
        "Ours above fragmentation, in points, and the standard error of that",
        ("mix", "points", "error"),
        (
            (mix, *(figures[f"mig.ours.{mix}.above_fragmentation{end}"] for end in ("", "_error")))
            for mix in MIXES
        ),
    )
    show(
        "Part of the way from ours to the oracle that one move a ten arrivals makes, in percent",
        ("mix", "percent"),
        ((mix, figures[f"mig.ours_moving.{mix}.gap_closed"]) for mix in MIXES),
    )
    for mix in MIXES:
        keys = ("accepted_slices", *(f"accepted.{profile}" for profile in PROFILES))
        show(
            f"Percent accepted, by slices and by profile: {mix}",
            ("rule", "slices", *PROFILES),
            _rows(figures, mix, keys),
        )
    keys = ("slice_use", "makespan_s", "wait_mean_s", "wait_p99_s")
    show("MIGBench's configuration, with a queue", ("rule", *keys), _rows(figures, "queue", keys))


def _rows(
    figures: Mapping[str, float], mix: str, keys: Sequence[str]
) -> Iterable[tuple[str | float | None, ...]]:
    return ((rule, *(figures.get(f"mig.{rule}.{mix}.{key}") for key in keys)) for rule in ALL)
