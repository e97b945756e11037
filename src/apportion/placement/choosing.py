"""The best place in every window for one request: among states and grades, by a policy's tiers."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from apportion.placement.asks import Ask
from apportion.placement.models import State
from apportion.placement.orders import LAST, Cell, Group, Order, Stock
from apportion.placement.shelves import Shelves, Standing
from apportion.placement.state import GpuState
from apportion.placement.topology import Rank, nearest

_LOOKS: Final = 2
"""How many nodes of one cell are weighed one by one where the level of their host would change."""

_GROUPS: Final = 16
"""How many groups of one tier are compared by their order, where a policy does not need the first.

They rank alike, and a fleet of many kinds of GPUs has many.
"""


_NODES: Final = 4
"""How many nodes are compared by how well their GPUs reach each other."""

Gpus = tuple[GpuState, ...]


class Place(NamedTuple):
    """Where there is room: the node, and the state of the GPU to take a piece of.

    All nodes of ``cell`` are as good; None where only this one was weighed.
    """

    standing: Standing
    state: State
    cell: Cell | None


def best(shelves: Shelves, order: Order, ask: Ask) -> Place | None:
    """Return the best place for the pieces of an order; None where no node has room."""
    if not order.mask:
        return None
    if ask.vcpu_milli or ask.memory_mib:
        return _Search(shelves, ask, order).run()
    groups = order.tiers[(order.mask & -order.mask).bit_length() - 1]
    found: tuple[int, State, Cell] | None = None
    for group in groups if order.policy.in_order else islice(groups, _GROUPS):
        if found is not None and group.least > found[0]:
            continue
        cell = group.first
        place, state = cell.keys.first, group.stock.state
        group.least = place
        if found is not None and place == found[0]:
            # Of one node, the first of its GPUs.
            ahead = shelves.at(place).gpus(state)[0].id < shelves.at(place).gpus(found[1])[0].id
        else:
            ahead = found is None or place < found[0]
        if ahead:
            found = place, state, cell
    assert found is not None  # noqa: S101 - a tier has a group
    return Place(shelves.at(found[0]), found[1], found[2])


def nearest_gpus(shelves: Shelves, order: Order, place: Place) -> tuple[Standing, Gpus]:
    """Take the GPUs that reach each other best, on the place's node or on one of a few as good."""
    standings: Iterable[Standing] = (place.standing,)
    if place.cell is not None and not order.policy.in_order:
        standings = map(shelves.at, islice(place.cell.keys, _NODES))
    best: tuple[Rank, Standing, Gpus] | None = None
    for standing in standings:
        rank, gpus = nearest(standing.gpus(place.state), order.need.pieces)
        if best is None or rank > best[0]:
            best = rank, standing, gpus
    assert best is not None  # noqa: S101 - a cell has a node
    return best[1:]


def best_host(shelves: Shelves, ask: Ask) -> Standing | None:
    """Return the node whose host resources alone cost its GPUs the least."""
    for stock in (shelves.apart, shelves.beside):
        found = _Search(shelves, ask, None).among(stock)
        if found is not None:
            return found
    return None


class _Search:
    """Finds the best place for an ask with host resources.

    A group's tier is the least that any of its nodes can have: it is what the GPU itself loses.
    Where the host's level stays full, it is exact. Elsewhere the node's other GPUs may lose too,
    so a few nodes of each such cell are weighed one by one, until no tier left can be lower.
    """

    def __init__(self, shelves: Shelves, ask: Ask, order: Order | None) -> None:
        yardstick = shelves.yardstick
        self.shelves = shelves
        self.ask = ask
        self.order = order
        self.weighs = order is None or order.policy.weighs_hosts
        self.enough = yardstick.enough(ask.vcpu_milli, ask.memory_mib)
        self.full = self.enough
        if self.weighs:
            self.full = yardstick.enough(
                ask.vcpu_milli + yardstick.vcpu_milli, ask.memory_mib + yardstick.memory_mib
            )
        self.tier = 0
        self.bound = LAST
        """Only places before this one are better, of those that have the tier looked at."""
        self.rank: tuple[int, int] | None = None
        """(tier, place in the fleet's order): the lowest wins."""
        self.state: State | None = None
        self.cell: Cell | None = None

    def run(self) -> Place | None:
        """Return the best place of an order; None where there is none."""
        assert self.order is not None  # noqa: S101 - `among` is for those without
        for tier, groups in self.order.ascending():
            if self.rank is not None:
                if tier > self.rank[0]:
                    break
                self.bound = self.rank[1] if tier == self.rank[0] else LAST
            self.tier = tier
            for group in groups:
                self._look(group)
        if self.rank is None or self.state is None:
            return None
        return Place(self.shelves.at(self.rank[1]), self.state, self.cell)

    def among(self, stock: Stock) -> Standing | None:
        """Return the best node of a stock for the host's part alone."""
        for group in stock.groups.values():
            self._look(group)
        return None if self.rank is None else self.shelves.at(self.rank[1])

    def _look(self, group: Group) -> None:
        """Look at the cells of a group that may have a better place."""
        if group.least >= self.bound:
            return
        ask, (vcpu, memory) = self.ask, self.full
        group.least = LAST
        for grade, cell in group.cells.items():
            first = cell.keys.first
            group.least = min(group.least, first)
            if first >= self.bound:
                continue
            if grade[0] >= vcpu and grade[1] >= memory:
                self._found((self.tier, first), group, cell)
            elif cell.vcpu_most >= ask.vcpu_milli and cell.memory_most >= ask.memory_mib:
                self._weigh(group, cell)

    def _found(self, rank: tuple[int, int], group: Group, cell: Cell | None) -> None:
        self.rank, self.state, self.cell = rank, group.stock.state, cell
        if rank[0] == self.tier:
            self.bound = rank[1]

    def _weigh(self, group: Group, cell: Cell) -> None:
        looks = _LOOKS if self.weighs else 1
        state = group.stock.state
        for standing in self.shelves.having(cell, self.ask, self.enough):
            if standing.place >= self.bound:
                return
            exact = self._tier(self.tier, standing, state) if self.weighs else self.tier
            rank = (exact, standing.place)
            if self.rank is None or rank < self.rank:
                self._found(rank, group, None)
            looks -= 1
            if not looks:
                return

    def _tier(self, tier: int, standing: Standing, state: State) -> int:
        """Rank a node with all that its GPUs lose when its host has less left."""
        node, host = standing.node, standing.host
        level = self.shelves.yardstick.level(
            node.vcpu_free - self.ask.vcpu_milli, node.memory_free - self.ask.memory_mib
        )
        if level == host:
            return tier
        loss = 0
        for each, (gpus, _) in standing.stands.items():
            if not each.model.gathers:
                loss += len(gpus) * (each.worths[host] - each.worths[level])
        if self.order is None:
            return loss
        choice = self.order.choice(state)
        if choice is not None:
            pieces = self.order.need.pieces
            loss += pieces * (state.worths[level] - choice.after.worths[level])
        return self.order.policy.grains(state, loss)
