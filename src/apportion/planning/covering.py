"""The fewest GPUs that hold what is wanted, by CP-SAT on graphs of what one GPU can hold.

A GPU is a path through its graph, and GPUs are never told apart: how many go along each arc is one
whole number. That is the arc-flow formulation of bin packing (Valério de Carvalho, 1999): its
linear bound is nearly always the answer, and its size does not grow with how many are packed.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from apportion.planning.patterns import END, Patterns
from apportion.solving import Solved, minimise, new_model

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Counts = tuple[int, ...]
"""How many of each kind."""


class Sort(NamedTuple):
    """GPUs split in one way: what one can hold, what is wanted, and a known way to fill some.

    All that is wanted needs ``least`` GPUs by volume alone.
    """

    patterns: Patterns[Any]
    wanted: Counts
    known: Sequence[Counts]
    least: int


class Whole(NamedTuple):
    """Asks for ``size`` whole GPUs each: how many are wanted, how many can surely be placed."""

    size: int
    wanted: int
    known: int


class Covering(NamedTuple):
    """The best that was found: what each GPU of each sort holds, how many of each size of whole.

    No answer that places as many uses fewer GPUs than ``bound``.
    """

    sorts: tuple[tuple[Counts, ...], ...]
    wholes: Counts
    optimal: bool
    bound: int


def cover(
    sorts: Sequence[Sort], wholes: Sequence[Whole], gpu_count: int, time_limit: timedelta
) -> Covering | None:
    """Place as many pieces as can be on ``gpu_count`` GPUs, then on as few of these as can be.

    None where the time was over before anything was found, the known way included.
    """
    model = _Model(sorts, wholes, gpu_count)
    solved = minimise(model.model, time_limit)
    return None if solved is None else model.read(solved)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Of one sort: how many GPUs, and at each node how many take one more or go on without."""

    gpus: "cp_model.IntVar"
    taking: dict[int, "cp_model.IntVar"]
    passing: dict[int, "cp_model.IntVar"]
    placed: list["cp_model.IntVar"]


class _Model:
    def __init__(self, sorts: Sequence[Sort], wholes: Sequence[Whole], gpu_count: int) -> None:
        self.model = new_model()
        self._sorts = sorts
        self._gpu_count = gpu_count
        wanted = sum(sum(sort.wanted) for sort in sorts) + sum(each.wanted for each in wholes)
        known = sum(sum(map(sum, sort.known)) for sort in sorts)
        self._all_fit = known + sum(each.known for each in wholes) == wanted
        self._flows = [self._flow(sort) for sort in sorts]
        self._wholes = [self._placed(each.wanted, each.known) for each in wholes]
        gpus = sum(flow.gpus for flow in self._flows)
        gpus += sum(each.size * count for each, count in zip(wholes, self._wholes, strict=True))
        placed = sum(self._wholes) + sum(sum(flow.placed) for flow in self._flows)
        self.model.add(gpus <= gpu_count)
        self.model.minimize(gpus - self._price * placed)

    @property
    def _price(self) -> int:
        """What it costs not to place an ask: more than every GPU."""
        return self._gpu_count + 1

    def read(self, solved: Solved) -> Covering:
        value = solved.values
        placed = [value[each.index] for flow in self._flows for each in flow.placed]
        wholes = tuple(value[each.index] for each in self._wholes)
        filled = zip(self._sorts, self._flows, strict=True)
        return Covering(
            tuple(_filled(sort, flow, solved) for sort, flow in filled),
            wholes,
            solved.optimal,
            solved.bound + self._price * (sum(placed) + sum(wholes)),
        )

    def _flow(self, sort: Sort) -> _Flow:
        nodes = sort.patterns.nodes
        taken: Counter[int] = Counter()
        passed: Counter[int] = Counter()
        for counts in sort.known:
            for number, takes in sort.patterns.path(counts):
                (taken if takes else passed)[number] += 1
        gpus = self._number(self._gpu_count, len(sort.known), least=self._all_fit * sort.least)
        taking = {number: self._number(self._gpu_count, taken[number]) for number in nodes}
        passing = {number: self._number(self._gpu_count, passed[number]) for number in nodes}
        entering: defaultdict[int, list[cp_model.IntVar]] = defaultdict(list)
        entering[sort.patterns.start].append(gpus)
        pieces: list[list[cp_model.IntVar]] = [[] for _ in sort.wanted]
        for number, node in nodes.items():
            entering[node.taken].append(taking[number])
            entering[node.passed].append(passing[number])
            pieces[node.kind].append(taking[number])
        for number in nodes:
            self.model.add(sum(entering[number]) == taking[number] + passing[number])
        placed: list[cp_model.IntVar] = []
        for kind, wanted in enumerate(sort.wanted):
            placed.append(self._placed(wanted, sum(counts[kind] for counts in sort.known)))
            # There may be room for more of a kind than are wanted: it stays empty.
            self.model.add(sum(pieces[kind]) >= placed[kind])
        return _Flow(gpus, taking, passing, placed)

    def _placed(self, wanted: int, known: int) -> "cp_model.IntVar":
        return self._number(wanted, known, least=wanted if self._all_fit else 0)

    def _number(self, most: int, known: int, *, least: int = 0) -> "cp_model.IntVar":
        number = self.model.new_int_var(least, most, "")
        self.model.add_hint(number, known)
        return number


def _filled(sort: Sort, flow: _Flow, solved: Solved) -> tuple[Counts, ...]:
    """Follow one GPU after the other along the arcs, and drop what was not wanted."""
    value = solved.values
    left = [value[each.index] for each in flow.placed]
    taking = {number: value[each.index] for number, each in flow.taking.items()}
    passing = {number: value[each.index] for number, each in flow.passing.items()}
    gpus: list[Counts] = []
    for _ in range(value[flow.gpus.index]):
        counts = [0] * len(left)
        at = sort.patterns.start
        while at != END:
            node = sort.patterns.nodes[at]
            takes = taking[at] > 0
            (taking if takes else passing)[at] -= 1
            if takes and left[node.kind]:
                left[node.kind] -= 1
                counts[node.kind] += 1
            at = node.taken if takes else node.passed
        gpus.append(tuple(counts))
    return tuple(gpus)
