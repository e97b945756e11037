"""A published rule at work on a fleet.

For every kind of task a row holds the points of all nodes, so that a choice is the first highest
entry of a row. What a rule says of a state is kept: nodes come through equal states again and
again, in one run and in the next.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from bench.replay.rooms import Lease, Rooms
from bench.replay.rules import Need, Random, Rule, State, fits
from bench.replay.trace import Node, Task

_CANNOT: Final = 0


class Placer(Protocol):
    """Places tasks on a fleet of its own, and lets them go."""

    rooms: Rooms

    def place(self, task: Task) -> Lease | None:
        """Give a task its node and GPUs, if there is room."""
        ...

    def free(self, lease: Lease) -> None:
        """Take a task away."""
        ...


class Points:
    """What a rule says of nodes for every kind of task in a list; kept from run to run."""

    def __init__(self, rule: Rule, listed: Iterable[Task]) -> None:
        self.rule = rule
        self.kinds = list(dict.fromkeys(map(kind_of, listed)))
        self._needs = [Need(task.cpu, task.gpus, task.milli) for task in self.kinds]
        self._most_memory = max(kind.memory for kind in self.kinds)
        self._of: dict[State, bytes] = {}

    def column(self, state: State, memory: int) -> bytes:
        """Return a node's points for every kind: one more than the rule's, 0 where it cannot."""
        found = self._of.get(state)
        if found is None:
            found = self._of[state] = self._judge(state)
        if memory >= self._most_memory:
            return found
        pairs = zip(found, self.kinds, strict=True)
        return bytes(p if kind.memory <= memory else _CANNOT for p, kind in pairs)

    def _judge(self, state: State) -> bytes:
        of_need = {
            need: 1 + self.rule.points(state, need) if fits(state, need) else _CANNOT
            for need in set(self._needs)
        }
        return bytes(
            of_need[need] if not kind.models or state.model in kind.models else _CANNOT
            for kind, need in zip(self.kinds, self._needs, strict=True)
        )


class RulePlacer:
    """One rule on one fleet."""

    def __init__(self, points: Points, fleet: Sequence[Node], rng: random.Random) -> None:
        self.rooms = Rooms(fleet)
        self._points = points
        self._rng = rng
        self._row_of = {kind: row for row, kind in enumerate(points.kinds)}
        columns = [self._column(node) for node in range(len(fleet))]
        self._rows = [bytearray(row) for row in zip(*columns, strict=True)]

    def place(self, task: Task) -> Lease | None:
        """Give a task the node with most points, the first of equals."""
        node = self._choose(self._rows[self._row_of[kind_of(task)]])
        if node is None:
            return None
        gpus: tuple[int, ...] = ()
        if task.gpus:
            need = Need(task.cpu, task.gpus, task.milli)
            free = self._points.rule.choose(self.rooms.state(node), need, self._rng)
            gpus = self.rooms.find(node, task, free)
        lease = Lease(task, node, gpus)
        self.rooms.take(lease)
        self._changed(node)
        return lease

    def free(self, lease: Lease) -> None:
        """Take a task away."""
        self.rooms.give(lease)
        self._changed(lease.node)

    def _choose(self, row: bytearray) -> int | None:
        best = max(row)
        if best == _CANNOT:
            return None
        if isinstance(self._points.rule, Random):
            return self._rng.choice([node for node, points in enumerate(row) if points])
        return row.index(best)

    def _changed(self, node: int) -> None:
        for row, points in zip(self._rows, self._column(node), strict=True):
            row[node] = points

    def _column(self, node: int) -> bytes:
        return self._points.column(self.rooms.state(node), self.rooms.memory[node])


def kind_of(task: Task) -> Task:
    """Return a task without how long it runs, which no rule may know."""
    return replace(task, seconds=0) if task.seconds else task
