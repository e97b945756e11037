"""The public trace: its GPU nodes, its 17 task lists, and the order in which an experiment asks.

The experiment is the authors' own: nodes in a random order, the tasks shuffled, then tasks drawn
again from the list until 130 % of the fleet's GPUs have been asked for. Lists that hold more are
cut. Amounts are thousandths of a CPU, thousandths of a GPU, and MiB.
"""

import csv
import random
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from io import TextIOWrapper
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parents[1] / "data"
TRACES: Final = (
    "default",
    *("cpu050", "cpu100", "cpu200", "cpu250"),
    *("gpushare40", "gpushare60", "gpushare80", "gpushare100"),
    *("gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"),
    *("multigpu20", "multigpu30", "multigpu40", "multigpu50"),
)
DEMAND: Final = 130
"""Percent of the fleet's GPUs that are asked for in all."""
WHOLE: Final = 1000
"""One GPU, in thousandths."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine; ``gpus`` of one model."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Task:
    """``gpus`` GPUs, ``milli`` thousandths of each, of one of ``models`` (none: of any)."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: frozenset[str] = frozenset()
    seconds: int = 0
    """How long the trace ran it, where it says so."""

    @property
    def gpu_milli(self) -> int:
        """All that it takes, in thousandths of a GPU."""
        return self.gpus * self.milli


@cache
def nodes() -> tuple[Node, ...]:
    """Return the 1,213 GPU nodes, by name."""
    text = (files("apportion.demo") / "data" / "openb_nodes.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(sorted(map(_node, rows), key=lambda node: node.name))


@cache
def tasks(trace: str) -> tuple[Task, ...]:
    """Return one list of the trace, in its order."""
    with tarfile.open(DATA / "openb_pods.tar.xz") as archive:
        member = archive.extractfile(f"openb_pod_list_{trace}.csv")
        assert member is not None
        return tuple(map(_task, csv.DictReader(TextIOWrapper(member, "utf-8"))))


def _node(row: Mapping[str, str]) -> Node:
    cpu, memory, gpus = (int(row[key]) for key in ("cpu_milli", "memory_mib", "gpu"))
    return Node(row["sn"], cpu, memory, gpus, row["model"])


def _task(row: Mapping[str, str]) -> Task:
    models = row.get("gpu_spec", "")
    started, ended = row.get("scheduled_time"), row.get("deletion_time")
    return Task(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        int(row["num_gpu"]),
        int(row["gpu_milli"]),
        frozenset(models.split("|")) if models else frozenset(),
        max(1, round(float(ended) - float(started))) if started and ended else 0,
    )


def capacity(fleet: Sequence[Node]) -> int:
    """Return the GPUs of a fleet, in thousandths."""
    return WHOLE * sum(node.gpus for node in fleet)


def arrivals(listed: Sequence[Task], total: int, rng: random.Random) -> list[Task]:
    """Shuffle a list, then draw from it until `DEMAND` percent of ``total`` are asked for."""
    wanted = DEMAND * total // 100
    asked = 0
    found: list[Task] = []
    for task in _endless(listed, rng):
        if asked >= wanted:
            break
        found.append(task)
        asked += task.gpu_milli
    return found


def _endless(listed: Sequence[Task], rng: random.Random) -> Iterator[Task]:
    yield from rng.sample(listed, len(listed))
    while True:
        yield rng.choice(listed)


ORDERS: Final[Mapping[str, Callable[[Node], Fraction | int | str]]] = {
    "by_name": lambda node: node.name,
    "by_gpus": lambda node: node.gpus,
    "by_cpu_per_gpu": lambda node: Fraction(node.cpu, node.gpus),
}
"""The ways to sort the nodes, by name where equal; with ``_down`` each is turned round."""


def ordered(order: str, rng: random.Random) -> list[Node]:
    """Return the nodes in an order: ``random``, ``renamed``, or one of `ORDERS`, either way.

    ``renamed`` gives every node a random name as well, for rules that look at names.
    """
    found = list(nodes())
    if order == "random":
        return rng.sample(found, len(found))
    if order == "renamed":
        shuffled = rng.sample(found, len(found))
        return [replace(node, name=f"{rng.getrandbits(64):016x}") for node in shuffled]
    key = ORDERS[order.removesuffix("_down")]
    found.sort(key=lambda node: (key(node), node.name), reverse=order.endswith("_down"))
    return found
