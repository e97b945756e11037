"""The fewest GPUs that hold what is wanted, by CP-SAT on graphs of what one GPU can hold."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from apportion.solving import Solved, minimise, new_model
from apportion.solving.flows import Counts, Filling, Flow
from apportion.solving.patterns import Patterns

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


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


class _Model:
    def __init__(self, sorts: Sequence[Sort], wholes: Sequence[Whole], gpu_count: int) -> None:
        self.model = new_model()
        wanted = sum(sum(sort.wanted) for sort in sorts) + sum(each.wanted for each in wholes)
        known = sum(sum(map(sum, sort.known)) for sort in sorts)
        all_fit = known + sum(each.known for each in wholes) == wanted
        self._flows = [
            Flow(
                self.model,
                sort.patterns,
                [gpu_count],
                sort.wanted,
                [Filling(0, counts) for counts in sort.known],
                all_fit=all_fit,
                least=sort.least,
            )
            for sort in sorts
        ]
        self._wholes: list[cp_model.IntVar] = []
        for each in wholes:
            count = self.model.new_int_var(each.wanted if all_fit else 0, each.wanted, "")
            self.model.add_hint(count, each.known)
            self._wholes.append(count)
        gpus = sum(flow.gpus[0] for flow in self._flows)
        gpus += sum(each.size * count for each, count in zip(wholes, self._wholes, strict=True))
        # Placing one ask more is worth more than all GPUs.
        self._price = gpu_count + 1
        self._placed = [*self._wholes, *(each for flow in self._flows for each in flow.placed)]
        self.model.add(gpus <= gpu_count)
        self.model.minimize(gpus - self._price * sum(self._placed))

    def read(self, solved: Solved) -> Covering:
        return Covering(
            tuple(tuple(filling.counts for filling in flow.filled(solved)) for flow in self._flows),
            tuple(solved.values[each.index] for each in self._wholes),
            solved.optimal,
            solved.bound + self._price * sum(solved.values[each.index] for each in self._placed),
        )
