"""Which of several free places is taken: one small policy for each wish.

A policy ranks what it would do to a GPU in a given state on a host with a given level by a whole
number, its tier: the lowest wins, and of equal ones that which comes first in the fleet's fixed
order. It never sees a node, so a tier is worked out once a state and request, not once a decision.

``first``          the first place in the fleet's order. The plainest, and a baseline.
``best``           the GPU that keeps the fewest units free. Packs tightly; blind to hosts.
``spread``         the emptiest GPU, on the node with the most GPUs idle: a failed GPU or node takes
                   as few holders with it as can be, and neighbours share as little as can be.
``fragmentation``  the GPU whose use takes the least from what requests to come could use (see
                   `models`), its node's other GPUs included when the host runs short. The default.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from apportion.placement.models import State

PolicyName = Literal["first", "best", "spread", "fragmentation"]
DEFAULT: Final[PolicyName] = "fragmentation"

_GRAIN: Final = 40
"""Thousandths of a GPU that are told apart: finer, and chance decides instead of order."""
_IDLE_MOST: Final = 63


class Policy(ABC):
    """Ranks places.

    ``weighs_hosts`` says that what a host has left after changes the rank, ``in_order`` that of
    equal places it has to be the very first.
    """

    weighs_hosts: ClassVar[bool] = False
    in_order: ClassVar[bool] = False

    @abstractmethod
    def tier(self, before: State, after: State, pieces: int, host: int, idle: int) -> int:
        """Rank taking ``pieces`` GPUs from one state to another, of a node with ``idle`` such."""

    def part_rank(self, before: State, after: State, part: int) -> tuple[int, int]:
        """Rank the instances of one GPU that would do, by what can be used of it after."""
        return before.worths[-1] - after.worths[-1], part

    def grains(self, before: State, loss: int) -> int:
        """Round a loss to what is told apart."""
        del before, loss
        return 0


class First(Policy):
    """The first place in the fleet's order."""

    in_order = True

    def tier(self, before: State, after: State, pieces: int, host: int, idle: int) -> int:
        """Rank all alike."""
        del before, after, pieces, host, idle
        return 0

    def part_rank(self, before: State, after: State, part: int) -> tuple[int, int]:
        """Rank by the order of the instances."""
        del before, after
        return part, 0


class Best(Policy):
    """The tightest GPU."""

    def tier(self, before: State, after: State, pieces: int, host: int, idle: int) -> int:
        """Rank by the units that stay free."""
        del before, pieces, host, idle
        return after.free


class Spread(Policy):
    """The emptiest GPU of the emptiest node."""

    def tier(self, before: State, after: State, pieces: int, host: int, idle: int) -> int:
        """Rank by the units that are held already, then by how few GPUs of the node are idle."""
        del after, pieces, host
        return before.model.ruler - before.free << 6 | _IDLE_MOST - min(idle, _IDLE_MOST)


class Fragmentation(Policy):
    """The least loss of what can still be used."""

    weighs_hosts = True

    def tier(self, before: State, after: State, pieces: int, host: int, idle: int) -> int:
        """Rank by the loss, in grains; of MIG exactly."""
        del idle
        loss = pieces * (before.worths[host] - after.worths[host])
        return self.grains(before, loss)

    def grains(self, before: State, loss: int) -> int:
        """Round a loss to what is told apart."""
        return max(0, loss) if before.model.split == "mig" else max(0, loss) // _GRAIN


POLICIES: Final[Mapping[PolicyName, Policy]] = {
    "first": First(),
    "best": Best(),
    "spread": Spread(),
    "fragmentation": Fragmentation(),
}
