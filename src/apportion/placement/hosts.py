"""What a host has left, in grades: how much of a GPU it can still serve.

A GPU whose host cannot serve the task is not free. What a task needs beside a GPU is not known
beforehand; the yardstick is three quarters of what the middle GPU of the fleet was built with. A
host's level counts tenths of one GPU by it, up to 10. Grades are finer and go on: hosts of
one grade stand together, and all of a grade at or above an ask's suffice without a look at each.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from apportion.placement.models import HOST_FULL
from apportion.placement.state import NodeState

_ABOVE: Final = (11, 12, 13, 14, 15, 17, 20, 23, 26, 30, 35, 40, 50, 60, 70, 80, 100, 120, 160)
"""Grades above one GPU's worth, in tenths."""
_TENTHS: Final = (*range(1, HOST_FULL + 1), *_ABOVE)

Grade = tuple[int, int]
"""Of CPU and of memory: 0 for less than a tenth of the yardstick."""


class Yardstick:
    """How much CPU and memory a GPU is reckoned to need, and the bounds of grades by it."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        built = [node for node in nodes if node.gpus]
        self.vcpu_milli = _middle((node.vcpu_milli, len(node.gpus)) for node in built)
        self.memory_mib = _middle((node.memory_mib, len(node.gpus)) for node in built)
        self._vcpu = [-(-tenths * self.vcpu_milli // HOST_FULL) for tenths in _TENTHS]
        self._memory = [-(-tenths * self.memory_mib // HOST_FULL) for tenths in _TENTHS]

    def grade(self, vcpu_milli: int, memory_mib: int) -> Grade:
        """Return the grade of a host that has this much free."""
        return bisect_right(self._vcpu, vcpu_milli), bisect_right(self._memory, memory_mib)

    def enough(self, vcpu_milli: int, memory_mib: int) -> Grade:
        """Return the least grade all of whose hosts have at least this much."""
        return (
            bisect_left(self._vcpu, vcpu_milli) + 1 if vcpu_milli > 0 else 0,
            bisect_left(self._memory, memory_mib) + 1 if memory_mib > 0 else 0,
        )

    def level(self, vcpu_milli: int, memory_mib: int) -> int:
        """Return how many tenths of one more GPU a host with this much free can serve."""
        vcpu, memory = self.grade(vcpu_milli, memory_mib)
        return min(vcpu, memory, HOST_FULL)


def _middle(builds: Iterable[tuple[int, int]]) -> int:
    """Return three quarters of the median GPU's part of its host; 0 where hosts are not known."""
    parts = sorted((amount // gpus, gpus) for amount, gpus in builds)
    half = sum(gpus for _, gpus in parts) // 2
    for part, gpus in parts:
        half -= gpus
        if half < 0:
            return part * 3 // 4
    return 0
