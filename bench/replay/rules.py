"""The published rules, on nodes without names: a rule sees what is free, and gives points.

The node with the most points wins, and of equal ones the first in the order of nodes; so the
authors' scheduler was made to do. A GPU is told from others by what it has free.
"""

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from bench.replay.fragmentation import Fragmentation, Gpus, Kind, usual
from bench.replay.trace import WHOLE, Task


class State(NamedTuple):
    """What a node has free; nodes of equal states are one to every rule."""

    model: str
    cpu: int
    gpus: Gpus


class Need(NamedTuple):
    """What a task takes of a node but for memory."""

    cpu: int
    gpus: int
    milli: int


def fits(state: State, need: Need) -> bool:
    """Tell whether a node has enough CPU and GPU."""
    enough = len(state.gpus) - bisect_left(state.gpus, need.milli)
    return need.cpu <= state.cpu and (not need.gpus or enough >= need.gpus)


def choices(gpus: Gpus, need: Need) -> Sequence[int]:
    """Return what the GPUs that can take a need have free, tightest first, each once."""
    if need.gpus != 1 or need.milli == WHOLE:
        return (WHOLE,)  # whole GPUs are idle ones: there is no choice
    return sorted(set(gpus[bisect_left(gpus, need.milli) :]))


def after(gpus: Gpus, need: Need, free: int) -> Gpus:
    """Return what is free once a need lies on the GPUs that have ``free`` left."""
    if not need.gpus:
        return gpus
    at = bisect_left(gpus, free)
    taken = (free - need.milli,) * need.gpus
    return tuple(sorted((*gpus[:at], *gpus[at + need.gpus :], *taken)))


class Rule(Protocol):
    """How good a node is for a need that fits, 0 to 100, and on which of its GPUs it goes."""

    def points(self, state: State, need: Need) -> int:
        """Return how good the node is."""
        ...

    def choose(self, state: State, need: Need, rng: random.Random) -> int:
        """Return what the GPU to take has free."""
        ...


class FirstFit:
    """The first node that has room, and its tightest GPU."""

    def points(self, state: State, need: Need) -> int:
        """Return the same for all."""
        del state, need
        return 1

    def choose(self, state: State, need: Need, rng: random.Random) -> int:
        """Return the tightest."""
        del rng
        return choices(state.gpus, need)[0]


class Random(FirstFit):
    """Any node that has room, and any such GPU of it."""

    def choose(self, state: State, need: Need, rng: random.Random) -> int:
        """Return any, each GPU as likely as the next."""
        if len(choices(state.gpus, need)) == 1:
            return choices(state.gpus, need)[0]
        return rng.choice(state.gpus[bisect_left(state.gpus, need.milli) :])


class BestFit(FirstFit):
    """The node with least left of CPU and GPU, compared with the largest node of the fleet."""

    def points(self, state: State, need: Need) -> int:
        """Return 100 less the mean of both shares, in percent."""
        cpu = (state.cpu - need.cpu) / 128_000
        gpu = (sum(state.gpus) - need.gpus * need.milli) / (8 * WHOLE)
        return int(100 * (1 - (cpu + gpu) / 2))


class Fgd:
    """Fragmentation gradient descent: the GPU where fragmentation grows least."""

    def __init__(self, weights: dict[Kind, float]) -> None:
        self.measure = Fragmentation(weights)

    def points(self, state: State, need: Need) -> int:
        """Return the points of the node's best GPU."""
        return self._best(state, need)[0]

    def choose(self, state: State, need: Need, rng: random.Random) -> int:
        """Return the GPU with most points, the tightest of equals."""
        del rng
        return -self._best(state, need)[1]

    def _best(self, state: State, need: Need) -> tuple[int, int]:
        before = self.measure.of(*state)
        cpu = state.cpu - need.cpu
        best = (-1, 0)
        for free in choices(state.gpus, need):
            total, steps, usable = self.measure.table(state.model, after(state.gpus, need, free))
            gain = before - (total - usable[bisect_right(steps, cpu)])
            best = max(best, (int(100 / (1 + math.exp(-gain / 1000))), -free))
        return best


def rule_named(name: str, listed: Iterable[Task]) -> Rule:
    """Return a rule by its name, made for a list of tasks where it needs one."""
    match name:
        case "random":
            return Random()
        case "bestfit":
            return BestFit()
        case "fgd":
            return Fgd(usual(listed))
        case _:
            return FirstFit()
