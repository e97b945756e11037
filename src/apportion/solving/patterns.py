"""All that one GPU can hold, as a graph in which every path is one way to fill it. Pure.

Kinds of pieces come in a fixed order. A node asks: one more piece of this kind, or none of it any
more? Nodes from which the same can follow are one node, so a graph is small where the sets that it
stands for are millions.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)

END: Final = 0
"""The node from which nothing more is taken."""
_STATES_MAX: Final = 50_000


class Node(NamedTuple):
    """Take one more of ``kind`` and stand at ``taken``, or go on at ``passed`` without it."""

    kind: int
    taken: int
    passed: int


class TooManyPatternsError(Exception):
    """The sizes are so many and so fine that their sums cannot be gone through."""


class Patterns(Generic[State]):
    """The graph of what one GPU can hold of ``kinds`` kinds, numbered from 0.

    ``take(state, kind)`` gives the state after one more piece, or None where it has no room.
    `nodes` has every node by its number, each after those that it leads to; `END` is none of them.
    `starts` has the node at which a GPU in each of the states ``starts`` stands.
    """

    def __init__(
        self, kinds: int, starts: Iterable[State], take: Callable[[State, int], State | None]
    ) -> None:
        self.nodes: dict[int, Node] = {}
        self._kinds = kinds
        self._take = take
        self._numbers: dict[Node, int] = {}
        self._seen: dict[tuple[int, State], int] = {}
        self.starts = tuple(self._grow(start) for start in starts)

    def path(self, start: int, counts: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Yield (node, is one taken?) along the way that takes so many pieces of each kind."""
        left = list(counts)
        at = start
        while at != END:
            kind, taken, passed = self.nodes[at]
            takes = left[kind] > 0
            left[kind] -= takes
            yield at, takes
            at = taken if takes else passed

    def _grow(self, start: State) -> int:
        """Give numbers to the nodes that can be reached, to each after those that it leads to.

        It keeps its own stack: a GPU may hold more than Python has frames.
        """
        stack: list[tuple[int, State]] = [(0, start)]
        while stack:
            kind, state = at = stack[-1]
            if at in self._seen or kind == self._kinds:
                stack.pop()
                continue
            after = self._take(state, kind)
            passed = self._known((kind + 1, state))
            taken = END if after is None else self._known((kind, after))
            if passed is None:
                stack.append((kind + 1, state))
            elif taken is None and after is not None:
                stack.append((kind, after))
            else:
                stack.pop()
                self._seen[at] = passed if after is None else self._number(kind, taken, passed)
                if len(self._seen) > _STATES_MAX:
                    raise TooManyPatternsError
        return self._seen.get((0, start), END)

    def _known(self, at: tuple[int, State]) -> int | None:
        return END if at[0] == self._kinds else self._seen.get(at)

    def _number(self, kind: int, taken: int | None, passed: int) -> int:
        node = Node(kind, taken or END, passed)
        number = self._numbers.setdefault(node, len(self._numbers) + 1)
        self.nodes[number] = node
        return number
