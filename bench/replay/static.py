"""One run of the experiment: tasks come, none goes; what does not fit is dropped.

For every kind of task a row holds the points of all nodes, so that a choice is the first highest
entry of a row. What a rule says of a state is kept: nodes come through equal states again and
again, in one run and in the next.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from bench.replay.rules import Need, Random, Rule, State, after, fits
from bench.replay.trace import WHOLE, Node, Task, capacity

Allocated = dict[int, float]
"""Percent of the GPUs allocated, by the percent asked for."""
_CANNOT: Final = 0


class Meter:
    """What is allocated at each whole percent of demand: the mean over the tasks in it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._asked = 0
        self._held = 0
        self._at: defaultdict[int, list[int]] = defaultdict(list)

    def note(self, task: Task, *, placed: bool) -> None:
        """Take up one arrival."""
        self._asked += task.gpu_milli
        self._held += task.gpu_milli if placed else 0
        self._at[round(100 * self._asked / self._total)].append(self._held)

    def allocated(self) -> Allocated:
        """Return the means."""
        return {at: 100 * sum(h) / len(h) / self._total for at, h in self._at.items()}


class Replay:
    """One rule on one list of tasks, for any number of runs."""

    def __init__(self, rule: Rule, listed: Sequence[Task]) -> None:
        self._rule = rule
        self._kinds = sorted({_kind(task) for task in listed}, key=repr)
        self._rows_of = {kind: row for row, kind in enumerate(self._kinds)}
        self._needs = [Need(task.cpu, task.gpus, task.milli) for task in self._kinds]
        self._most_memory = max(kind.memory for kind in self._kinds)
        self._points: dict[State, bytes] = {}

    def run(self, fleet: Sequence[Node], arriving: Sequence[Task], rng: random.Random) -> Allocated:
        """Place the tasks one after the other on nodes in this order."""
        states = [State(n.model, n.cpu, (WHOLE,) * n.gpus) for n in fleet]
        memory = [node.memory for node in fleet]
        columns = [self._column(*free) for free in zip(states, memory, strict=True)]
        rows = [bytearray(row) for row in zip(*columns, strict=True)]
        meter = Meter(capacity(fleet))
        for task in arriving:
            row = self._rows_of[_kind(task)]
            at = self._choose(rows[row], rng)
            meter.note(task, placed=at is not None)
            if at is None:
                continue
            states[at] = self._taken(states[at], self._needs[row], rng)
            memory[at] -= task.memory
            for each, points in zip(rows, self._column(states[at], memory[at]), strict=True):
                each[at] = points
        return meter.allocated()

    def _choose(self, row: bytearray, rng: random.Random) -> int | None:
        best = max(row)
        if best == _CANNOT:
            return None
        if isinstance(self._rule, Random):
            return rng.choice([at for at, points in enumerate(row) if points])
        return row.index(best)

    def _taken(self, state: State, need: Need, rng: random.Random) -> State:
        free = self._rule.choose(state, need, rng) if need.gpus else 0
        return State(state.model, state.cpu - need.cpu, after(state.gpus, need, free))

    def _column(self, state: State, memory: int) -> bytes:
        """Return a node's points for every kind: one more than the rule's, 0 where it cannot."""
        found = self._points.get(state)
        if found is None:
            of_need: dict[Need, int] = {}
            for need in self._needs:
                if need not in of_need:
                    can = fits(state, need)
                    of_need[need] = 1 + self._rule.points(state, need) if can else _CANNOT
            found = bytes(
                of_need[need] if not kind.models or state.model in kind.models else _CANNOT
                for kind, need in zip(self._kinds, self._needs, strict=True)
            )
            self._points[state] = found
        if memory >= self._most_memory:
            return found
        pairs = zip(found, self._kinds, strict=True)
        return bytes(p if kind.memory <= memory else _CANNOT for p, kind in pairs)


def _kind(task: Task) -> Task:
    return Task(task.cpu, task.memory, task.gpus, task.milli, task.models)
