"""GPUs on their way through a graph of what one can hold: one whole number for each arc.

That is the arc-flow formulation of bin packing (Valério de Carvalho, 1999). GPUs are never told
apart, so its size does not grow with how many there are, and its linear bound is nearly always the
answer.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from apportion.solving.patterns import END, Patterns

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from apportion.solving import Solved

Counts = tuple[int, ...]
"""How many of each kind."""


class Filling(NamedTuple):
    """What one GPU holds, of those that begin at the start of this number."""

    start: int
    counts: Counts


class Flow:
    """The numbers of one graph: ``gpus`` by where they begin, ``placed`` by kind.

    Of each start there are ``most`` GPUs, and of each kind ``wanted`` pieces; with ``all_fit`` that
    many are placed, and the GPUs are at least ``least``. ``known`` is where the search begins.
    """

    def __init__(
        self,
        model: "cp_model.CpModel",
        patterns: Patterns[Any],
        most: Sequence[int],
        wanted: Counts,
        known: Sequence[Filling],
        *,
        all_fit: bool,
        least: int = 0,
    ) -> None:
        self._model = model
        self._patterns = patterns
        starting = Counter(filling.start for filling in known)
        self.gpus = [self._number(limit, starting[at]) for at, limit in enumerate(most)]
        self._taking, self._passing = self._arcs(sum(most), known)
        self._keep()
        self.placed = [
            self._number(count, sum(each.counts[kind] for each in known), count if all_fit else 0)
            for kind, count in enumerate(wanted)
        ]
        pieces: list[list[cp_model.IntVar]] = [[] for _ in wanted]
        for number, node in patterns.nodes.items():
            pieces[node.kind].append(self._taking[number])
        for numbers, placed in zip(pieces, self.placed, strict=True):
            # There may be room for more of a kind than are wanted: it stays empty.
            model.add(sum(numbers) >= placed)
        if all_fit:
            model.add(sum(self.gpus) >= least)

    def filled(self, solved: "Solved") -> list[Filling]:
        """Follow one GPU after the other along the arcs, and drop what was not wanted."""
        value = solved.values
        left = [value[each.index] for each in self.placed]
        taking = {number: value[each.index] for number, each in self._taking.items()}
        passing = {number: value[each.index] for number, each in self._passing.items()}
        fillings: list[Filling] = []
        for start, gpus in enumerate(self.gpus):
            for _ in range(value[gpus.index]):
                counts = [0] * len(left)
                at = self._patterns.starts[start]
                while at != END:
                    node = self._patterns.nodes[at]
                    takes = taking[at] > 0
                    (taking if takes else passing)[at] -= 1
                    if takes and left[node.kind]:
                        left[node.kind] -= 1
                        counts[node.kind] += 1
                    at = node.taken if takes else node.passed
                fillings.append(Filling(start, tuple(counts)))
        return fillings

    def _arcs(
        self, most: int, known: Sequence[Filling]
    ) -> tuple[dict[int, "cp_model.IntVar"], dict[int, "cp_model.IntVar"]]:
        """Make the numbers of GPUs that take one more at each node, and that go on without."""
        taken: Counter[int] = Counter()
        passed: Counter[int] = Counter()
        for filling in known:
            start = self._patterns.starts[filling.start]
            for number, takes in self._patterns.path(start, filling.counts):
                (taken if takes else passed)[number] += 1
        nodes = self._patterns.nodes
        return (
            {number: self._number(most, taken[number]) for number in nodes},
            {number: self._number(most, passed[number]) for number in nodes},
        )

    def _keep(self) -> None:
        """Let as many GPUs leave each node as come to it."""
        coming: defaultdict[int, list[cp_model.IntVar]] = defaultdict(list)
        for start, gpus in zip(self._patterns.starts, self.gpus, strict=True):
            coming[start].append(gpus)
        for number, node in self._patterns.nodes.items():
            coming[node.taken].append(self._taking[number])
            coming[node.passed].append(self._passing[number])
        for number in self._patterns.nodes:
            self._model.add(sum(coming[number]) == self._taking[number] + self._passing[number])

    def _number(self, most: int, known: int, least: int = 0) -> "cp_model.IntVar":
        number = self._model.new_int_var(least, most, "")
        self._model.add_hint(number, known)
        return number
