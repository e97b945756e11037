"""The fragmentation measure of FGD: how much free GPU the usual tasks cannot use.

The usual tasks are the most frequent kinds that make up 95 % of a list, each weighted by how often
it comes. To one that a node cannot run, or that wants no GPU, all of the node's free GPU is lost;
to any other, what is free on GPUs that have less than it wants of one. A node's fragmentation is
the weighted mean of what is lost; memory does not count.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from bench.replay.trace import Task

USUAL: Final = 95
"""Percent of the tasks that the usual kinds make up."""

Gpus = tuple[int, ...]
"""What is free on each GPU of a node, in thousandths, sorted."""
Kind = tuple[int, int, int, frozenset[str]]
"""CPU, GPUs, thousandths of each, models."""
Table = tuple[int, list[int], list[float]]
"""All free GPU; steps of free CPU; what is usable once the first so many steps are reached."""


def usual(tasks: Iterable[Task]) -> dict[Kind, float]:
    """Return the usual kinds with their weights, which sum to 1."""
    counts = Counter((task.cpu, task.gpus, task.milli, task.models) for task in tasks)
    wanted = USUAL * counts.total() / 100
    kept: dict[Kind, int] = {}
    for kind, count in counts.most_common():
        if sum(kept.values()) >= wanted:
            break
        kept[kind] = count
    total = sum(kept.values())
    return {kind: count / total for kind, count in kept.items()}


class Fragmentation:
    """The measure for one set of usual kinds; what was worked out is kept."""

    def __init__(self, weights: dict[Kind, float]) -> None:
        self._weights = sorted(weights.items(), key=lambda item: item[0][0])
        self._tables: dict[tuple[str, Gpus], Table] = {}

    def of(self, model: str, cpu: int, gpus: Gpus) -> float:
        """Return the fragmentation of a node, in thousandths of a GPU."""
        free, steps, usable = self.table(model, gpus)
        return free - usable[bisect_right(steps, cpu)]

    def table(self, model: str, gpus: Gpus) -> Table:
        """Return what is usable of a node's free GPU, by its free CPU."""
        found = self._tables.get((model, gpus))
        if found is None:
            runs = [
                (kind[0], weight * _usable(kind, gpus))
                for kind, weight in self._weights
                if not kind[3] or model in kind[3]
            ]
            steps = [cpu for cpu, _ in runs]
            found = (sum(gpus), steps, list(accumulate((u for _, u in runs), initial=0.0)))
            self._tables[model, gpus] = found
        return found


def _usable(kind: Kind, gpus: Gpus) -> int:
    """Return the free GPU that a kind could use if CPU were no matter."""
    _, count, milli, _ = kind
    large = gpus[bisect_left(gpus, milli) :]
    return sum(large) if count and len(large) >= count else 0
