"""How well GPUs of one node reach each other, from what its inventory reports.

Two GPUs are graded by the nearest thing that they share: an NVLink domain, a PCIe root complex, a
NUMA node, or only the machine. Pieces of one GPU count as connected by NVLink.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

from apportion.placement.state import GpuState

Link = Literal["same_gpu", "nvlink", "pcie", "numa", "node"]

BEST: Final = 4
"""The highest score."""
_SHARED: Final[tuple[tuple[int, Link, str], ...]] = (
    (BEST, "nvlink", "nvlinkDomain"),
    (3, "pcie", "pcieRoot"),
    (2, "numa", "numaNode"),
)
_SPLITS: Final = 256
"""How many ways to take GPUs from unlike places of a node are weighed: all, on any real one."""

Rank = tuple[int, int, int]


class Topology(NamedTuple):
    """The score of some GPUs, 1 to `BEST`: that of the two that reach each other worst, and why."""

    score: int
    link: Link


def topology(gpus: Sequence[GpuState]) -> Topology:
    """Return the topology of the GPUs of some pieces of one node, each GPU as often as it is used.

    One GPU, or none, has the highest score.
    """
    distinct = list({gpu.id: gpu for gpu in gpus}.values())
    worst = Topology(BEST, "same_gpu")
    for at, gpu in enumerate(distinct):
        for other in distinct[:at]:
            link = _link(gpu, other)
            if link.score < worst.score or worst.link == "same_gpu":
                worst = link
    return worst


def nearest(gpus: Sequence[GpuState], count: int) -> tuple[Rank, tuple[GpuState, ...]]:
    """Return the ``count`` GPUs that reach each other best, and their rank: the highest is best.

    The worst pair counts first, then the sum over all pairs, then that over the pairs of the GPUs
    that are left; among equals those that were given first.
    """
    places: dict[Hashable, list[GpuState]] = {}
    for gpu in gpus:
        places.setdefault(_place(gpu), []).append(gpu)
    grades = _Grades(list(places.values()))
    splits = islice(_splits(grades.sizes, count), _SPLITS)
    rank, split = max(((grades.rank(each), each) for each in splits), key=lambda pair: pair[0])
    taken = (each[:take] for take, each in zip(split, places.values(), strict=True))
    return rank, tuple(gpu for each in taken for gpu in each)


class _Grades:
    """The grades between the places of a node: GPUs of one place are alike."""

    def __init__(self, places: Sequence[Sequence[GpuState]]) -> None:
        self.sizes = [len(each) for each in places]
        self._between = [[_link(one[0], other[-1]).score for other in places] for one in places]

    def rank(self, split: Sequence[int]) -> Rank:
        """Rank taking so many GPUs of each place; the highest is the best."""
        rest = [size - take for size, take in zip(self.sizes, split, strict=True)]
        worst, total = self._pairs(split)
        return worst, total, self._pairs(rest)[1]

    def _pairs(self, split: Sequence[int]) -> tuple[int, int]:
        worst, total = BEST, 0
        for at, take in enumerate(split):
            for other, beside in enumerate(split[: at + 1]):
                pairs = take * (take - 1) // 2 if at == other else take * beside
                if pairs:
                    grade = self._between[at][other]
                    worst = min(worst, grade)
                    total += pairs * grade
        return worst, total


def _splits(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to take ``count`` from places of these sizes, most from the first ones."""
    if not sizes:
        if not count:
            yield ()
        return
    beyond = sum(sizes[1:])
    for take in range(min(sizes[0], count), max(0, count - beyond) - 1, -1):
        for others in _splits(sizes[1:], count - take):
            yield (take, *others)


def _place(gpu: GpuState) -> Hashable:
    return tuple(_shared(gpu, key) for _, _, key in _SHARED)


def _link(one: GpuState, other: GpuState) -> Topology:
    for score, link, key in _SHARED:
        mine = _shared(one, key)
        if mine is not None and mine == _shared(other, key):
            return Topology(score, link)
    return Topology(1, "node")


def _shared(gpu: GpuState, key: str) -> str | int | None:
    found = gpu.attributes.get(key)
    return gpu.group.get(key) if found is None else found
