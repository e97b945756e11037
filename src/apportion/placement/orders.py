"""For one kind of request, what there is to choose from, best first, kept up as it changes."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal

from apportion.placement.asks import Ask, AtomClass
from apportion.placement.hosts import Grade
from apportion.placement.keys import NO_KEY, Keys
from apportion.placement.models import Model, State
from apportion.placement.policies import Policy
from apportion.placement.selectors import Selector

_place: Final = itemgetter(0)
First = tuple[int, Grade, "Cell"]


@dataclass(slots=True, eq=False)
class Cell:
    """Nodes of one stock and grade, by their places in the fleet's order.

    ``vcpu_most`` and ``memory_most`` are at least what any of the nodes has free.
    """

    group: "Group"
    grade: Grade
    keys: Keys = field(default_factory=Keys)
    vcpu_most: int = 0
    memory_most: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The cells of one stock whose hosts have one level: alike in all that a policy looks at.

    ``firsts`` has each cell with the first place in it and its grade, in the order of those places,
    and ``first`` is the least of them. ``entered`` has the orders that the group can serve, with
    its tier in each.
    """

    stock: "Stock"
    host: int
    cells: dict[Grade, Cell] = field(default_factory=dict[Grade, Cell])
    firsts: list[First] = field(default_factory=list["First"])
    entered: list[tuple["Order", int]] = field(default_factory=list[tuple["Order", int]])
    first: int = NO_KEY
    _with: dict[Grade, "First | None"] = field(default_factory=dict[Grade, "First | None"])

    def first_with(self, enough: Grade) -> "First | None":
        """Return the first place of all whose hosts are surely of a grade or above it.

        What was found stands until some cell has another first place: in a large fleet, long.
        """
        if enough in self._with:
            return self._with[enough]
        vcpu, memory = enough
        found = None
        for each in self.firsts:
            grade = each[1]
            if grade[0] >= vcpu and grade[1] >= memory:
                found = each
                break
        self._with[enough] = found
        return found

    def add(self, grade: Grade, place: int) -> Cell:
        """Put a node into the cell of its grade."""
        cell = self.cells.get(grade)
        if cell is None:
            cell = self.cells[grade] = Cell(self, grade)
            insort(self.firsts, (place, grade, cell), key=_place)
            self._with.clear()
        elif place < cell.keys.first:
            self._leads(cell, cell.keys.first, place)
        cell.keys.add(place)
        self.first = min(self.first, place)
        return cell

    def remove(self, cell: Cell, place: int) -> None:
        """Take a node out of its cell."""
        cell.keys.remove(place)
        first = cell.keys.first
        if first == NO_KEY:
            del self.cells[cell.grade]
            del self.firsts[bisect_left(self.firsts, place, key=_place)]
            self._with.clear()
        elif place < first:
            self._leads(cell, place, first)
        if place == self.first:
            self.first = self.firsts[0][0] if self.firsts else NO_KEY

    def _leads(self, cell: Cell, before: int, after: int) -> None:
        """Note that another place than before is the first of a cell."""
        self._with.clear()
        if len(self.firsts) > 1:
            del self.firsts[bisect_left(self.firsts, before, key=_place)]
            insort(self.firsts, (after, cell.grade, cell), key=_place)
        else:
            self.firsts[0] = (after, cell.grade, cell)


@dataclass(slots=True, eq=False)
class Stock:
    """Nodes with a GPU in one state; where the state is a wholly free one, with ``idle`` such."""

    state: State
    idle: int
    groups: dict[int, Group] = field(default_factory=dict[int, Group])


@dataclass(frozen=True, slots=True)
class Need:
    """What a policy ranks places for: pieces of one size on one node, each on a GPU of its own.

    More than one piece only where each takes a whole GPU; ``reach`` says how far apart those may
    lie: on GPUs of one model, or anywhere on the node, or in one NUMA node.
    """

    cls: AtomClass
    units: int
    pieces: int
    selector: Selector
    reach: Literal["model", "node", "numa"] = "model"


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a GPU in some state, and which of its instances is taken."""

    after: State
    part: int | None


class Order:
    """All groups that can serve a need, by tier."""

    def __init__(self, need: Need, policy: Policy) -> None:
        self.need = need
        self.policy = policy
        self.tiers: dict[int, dict[Group, None]] = {}
        self.mask = 0
        """Bit ``t`` is set where there is a group of tier ``t``."""
        self.parts_gpus = False
        """Whether a piece may leave room for another one on its GPU."""
        self._choices: dict[State, Choice | None] = {}
        self._parts: dict[Model, tuple[int, ...]] = {}
        self._tier: dict[tuple[State, int, int], int] = {}

    def takes(self, model: Model) -> bool:
        """Tell whether GPUs of a model can ever serve the need."""
        if self.need.cls not in model.classes or not self._reaches(model):
            return False
        if model.split == "mig":
            parts = self.parts_of(model)
            self.parts_gpus |= any(model.state(model.parts[at].units).parts for at in parts)
            return bool(parts)
        takes = self._matches(model)
        self.parts_gpus |= takes and self.need.units < model.ruler
        return takes

    def serves(self, ask: Ask) -> bool:
        """Tell whether its groups tell where an ask has room, however near its pieces have to be.

        Whole GPUs are apart in any case, and have their order for each NUMA node.
        """
        if ask.placed_freely:
            return True
        return not self.parts_gpus and ask.together in ("node", "numa")

    def enter(self, group: Group) -> None:
        """Take in a group that has a node now, if it can serve the need."""
        tier = self._tier_of(group)
        if tier >= 0:
            self.tiers.setdefault(tier, {})[group] = None
            self.mask |= 1 << tier
            group.entered.append((self, tier))

    def leave(self, group: Group, tier: int) -> None:
        """Take out a group that has no node any more."""
        groups = self.tiers[tier]
        del groups[group]
        if not groups:
            del self.tiers[tier]
            self.mask ^= 1 << tier

    def ascending(self) -> Iterator[tuple[int, dict[Group, None]]]:
        """Yield the tiers that have groups, lowest first."""
        mask = self.mask
        while mask:
            tier = (mask & -mask).bit_length() - 1
            mask ^= 1 << tier
            yield tier, self.tiers[tier]

    def choice(self, state: State) -> Choice | None:
        """Return what a piece would take of a GPU in this state; None where it has no room."""
        if state in self._choices:
            return self._choices[state]
        chosen = self._chosen(state) if self.takes(state.model) else None
        self._choices[state] = chosen
        return chosen

    def _chosen(self, state: State) -> Choice | None:
        model = state.model
        if model.split != "mig":
            fits = state.free >= self.need.units
            return Choice(state.taken(self.need.units, None), None) if fits else None
        fitting = set(self.parts_of(model))
        options = [Choice(state.taken(0, at), at) for at in state.parts if at in fitting]
        return min(options, key=lambda c: self._part_rank(state, c), default=None)

    def _part_rank(self, state: State, choice: Choice) -> tuple[int, int]:
        assert choice.part is not None  # noqa: S101 - of MIG there is a part
        return self.policy.part_rank(state, choice.after, choice.part)

    def _tier_of(self, group: Group) -> int:
        """Return a group's tier; -1 where it cannot serve the need."""
        stock, host = group.stock, group.host
        known = (stock.state, stock.idle, host)
        tier = self._tier.get(known)
        if tier is None:
            tier = self._tier[known] = self._ranked(*known)
        return tier

    def _ranked(self, state: State, idle: int, host: int) -> int:
        choice = self.choice(state)
        pieces = self.need.pieces
        if choice is None or (pieces > 1 and (idle < pieces or choice.after.free)):
            return -1
        return self.policy.tier(state, choice.after, pieces, host, idle)

    def _reaches(self, model: Model) -> bool:
        """Tell whether the GPUs of a model are those among which pieces may be spread."""
        match self.need.reach:
            case "node":
                return model.family is model
            case "numa":
                return model.family is not model
            case "model":
                return not model.gathers

    def _matches(self, model: Model) -> bool:
        return self.need.selector.matches_group(model.attributes)

    def parts_of(self, model: Model) -> tuple[int, ...]:
        """Return the instances that match, by their places in the model; none but of MIG."""
        found = self._parts.get(model)
        if found is None:
            matches = self.need.selector.matches_group
            found = tuple(
                at
                for at, each in enumerate(model.parts)
                if each.cls == self.need.cls and matches(each.attributes)
            )
            self._parts[model] = found
        return found


ORDERS_KEPT: Final = 128
"""For how many different needs the order is kept up."""
