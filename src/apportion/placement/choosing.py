"""The best place in every window for one request: among states and grades, by a policy's tiers."""

from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from apportion.placement.asks import Ask
from apportion.placement.keys import NO_KEY
from apportion.placement.models import HOST_FULL, State
from apportion.placement.orders import Cell, Group, Order, Stock
from apportion.placement.shelves import Shelves, Standing
from apportion.placement.state import GpuState
from apportion.placement.topology import Rank, nearest

_WEIGHED: Final = 16
"""How many cells are weighed for one ask, of those where the level of their host would change.

The trace's fleet of 1,213 nodes seldom has more, one of 100,000 hundreds. Places have nothing to
do with what nodes are like, so the first of them are a fair sample.
"""
_TIES: Final = 48
"""At how many of them is looked where a place is known that only one before it could better."""

_GROUPS: Final = 16
"""How many groups of one tier are compared by their order, where a policy does not need the first.

They rank alike, and a fleet of many kinds of GPUs has many.
"""


_NODES: Final = 4
"""How many nodes are compared by how well their GPUs reach each other."""

_ALL: Final = 2**64

Gpus = tuple[GpuState, ...]
Tiers = Iterable[tuple[int, Iterable[Group]]]
_rank: Final = itemgetter(0)


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
    least, chosen = NO_KEY, None
    for group in groups if order.policy.in_order else islice(groups, _GROUPS):
        place = group.first
        if place < least or (place == least and _ahead(shelves.at(place), group, chosen)):
            least, chosen = place, group
    assert chosen is not None  # noqa: S101 - a tier has a group
    return Place(shelves.at(least), chosen.stock.state, chosen.firsts[0][2])


def _ahead(standing: Standing, group: Group, other: Group | None) -> bool:
    """Tell whether a node has a GPU of one group before those of another."""
    first = standing.gpus(group.stock.state)[0]
    return other is None or first.id < standing.gpus(other.stock.state)[0].id


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
    so the first node of each such cell is weighed, until no tier left can be lower; where there are
    many such cells, of the first ones only, unless none of those has room.
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
        self.least = min(*self.enough, HOST_FULL + 1) - 1
        """Below this level no host has enough."""
        self.left = _WEIGHED if self.weighs else _ALL
        self.ties = _TIES if self.weighs else _ALL
        """How many more cells may be weighed, and looked at for a tie."""
        self.tier = 0
        self.bound = NO_KEY
        """Only places before this one are better, of those that have the tier looked at."""
        self.rank: tuple[int, int] | None = None
        """(tier, place in the fleet's order): the lowest wins."""
        self.state: State | None = None
        self.cell: Cell | None = None

    def run(self) -> Place | None:
        """Return the best place of an order; None where there is none."""
        assert self.order is not None  # noqa: S101 - `among` is for those without
        self._search(self.order.ascending)
        if self.rank is None or self.state is None:
            return None
        return Place(self.shelves.at(self.rank[1]), self.state, self.cell)

    def among(self, stock: Stock) -> Standing | None:
        """Return the best node of a stock for the host's part alone."""
        self._search(lambda: [(0, stock.groups.values())])
        return None if self.rank is None else self.shelves.at(self.rank[1])

    def _search(self, tiers: Callable[[], Tiers]) -> None:
        self._look_through(tiers())
        if self.rank is None and self.left <= 0:
            self.left = _ALL
            self._look_through(tiers())

    def _look_through(self, tiers: Tiers) -> None:
        """Look at the groups of each tier: first for the places that surely have it."""
        for tier, groups in tiers:
            if self.rank is not None:
                if tier > self.rank[0]:
                    break
                self.bound = self.rank[1] if tier == self.rank[0] else NO_KEY
            self.tier = tier
            for group in groups:
                if group.host >= HOST_FULL or not self.weighs:
                    self._look(group)
            for group in groups:
                if group.first < self.bound and group.host >= self.least and self.left > 0:
                    self._weigh(group)

    def _look(self, group: Group) -> None:
        """Find the first cell of a group all of whose hosts stay full."""
        if group.first >= self.bound:
            return
        found = group.first_with(self.full)
        if found is not None and found[0] < self.bound:
            self._found((self.tier, found[0]), group, found[2])

    def _found(self, rank: tuple[int, int], group: Group, cell: Cell | None) -> None:
        self.rank, self.state, self.cell = rank, group.stock.state, cell
        if rank[0] == self.tier:
            self.bound = rank[1]

    def _weigh(self, group: Group) -> None:
        """Weigh the first node of each cell that may have a better place, the best cells first."""
        cells = self._may_do(group)
        if self.weighs:
            bounds = [((self._bound(group, cell), cell.keys.first), cell) for cell in cells]
            bounds.sort(key=_rank)
        else:
            bounds = [((self.tier, cell.keys.first), cell) for cell in cells]
        for least, cell in bounds:
            if self.rank is not None and least >= self.rank:
                return
            standing = next(self.shelves.having(cell, self.ask, self.enough), None)
            if standing is not None and standing.place < self.bound:
                tier = self._tier(standing, group.stock.state) if self.weighs else self.tier
                self._better((tier, standing.place), group)

    def _may_do(self, group: Group) -> list[Cell]:
        """Return the cells of a group with a place before the bound that may have room."""
        ask, (vcpu, memory) = self.ask, self.enough
        found: list[Cell] = []
        for first, grade, cell in group.firsts:
            if first >= self.bound or self.left <= 0 or self.ties <= 0:
                break
            if self.bound < NO_KEY:
                self.ties -= 1
            if grade[0] + 1 < vcpu or grade[1] + 1 < memory:
                continue  # none of its hosts has enough
            if cell.vcpu_most >= ask.vcpu_milli and cell.memory_most >= ask.memory_mib:
                self.left -= 1
                found.append(cell)
        return found

    def _better(self, rank: tuple[int, int], group: Group) -> None:
        if self.rank is None or rank < self.rank:
            self._found(rank, group, None)

    def _bound(self, group: Group, cell: Cell) -> int:
        """Return a tier that no node of a cell is below, by what the best of its hosts keeps."""
        ask, host = self.ask, group.host
        level = self.shelves.yardstick.level(
            cell.vcpu_most - ask.vcpu_milli, cell.memory_most - ask.memory_mib
        )
        if level >= host or self.order is None:
            return self.tier
        state, pieces = group.stock.state, self.order.need.pieces
        choice = self.order.choice(state)
        assert choice is not None  # noqa: S101 - what cannot be taken is in no order
        beside = max(0, group.stock.idle - pieces) * (state.worths[host] - state.worths[level])
        loss = pieces * (state.worths[host] - choice.after.worths[level]) + beside
        return self.order.policy.grains(state, loss)

    def _tier(self, standing: Standing, state: State) -> int:
        """Rank a node with all that its GPUs lose when its host has less left."""
        node, host = standing.node, standing.host
        level = self.shelves.yardstick.level(
            node.vcpu_free - self.ask.vcpu_milli, node.memory_free - self.ask.memory_mib
        )
        if level == host:
            return self.tier
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
