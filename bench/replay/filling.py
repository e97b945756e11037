"""The paper's experiment: tasks come, none goes, and what does not fit is dropped."""

from collections import defaultdict
from collections.abc import Iterable

from bench.replay.placers import Placer
from bench.replay.trace import Task

Allocated = dict[int, float]
"""Percent of the GPUs allocated, by the percent asked for."""


def fill(placer: Placer, arriving: Iterable[Task], total: int) -> Allocated:
    """Place the tasks one after the other, and measure as the authors did.

    What is allocated is noted after each task, and the mean is taken at each whole percent of
    ``total`` (in thousandths of a GPU) that has been asked for.
    """
    asked = held = 0
    at: defaultdict[int, list[int]] = defaultdict(list)
    for task in arriving:
        asked += task.gpu_milli
        held += task.gpu_milli if placer.place(task) is not None else 0
        at[round(100 * asked / total)].append(held)
    return {percent: 100 * sum(each) / len(each) / total for percent, each in at.items()}
