"""What one transaction decides: held in the pictures until the database has spoken."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from apportion.bookings.service import Holding, NewBooking, Places, Plan
from apportion.placement import Held
from apportion.placement.picture import Lifted
from apportion.pools.service import QuotaKey
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet, micros
from apportion.reservations.plan import Decision, Placed, Planner


@dataclass(frozen=True, slots=True)
class Stands:
    """Where a reservation has its place, and whose quotas it is charged to."""

    pool_id: str
    places: Places
    charges: Mapping[QuotaKey, Decimal]


@dataclass(slots=True)
class Try:
    """What one transaction decides, and holds in the pictures until the database has spoken."""

    fleet: Fleet
    horizon: str
    planner: Planner
    doubts: int
    xid: str | None = None
    """This transaction, where all that it has booked is what is held in the pictures."""
    held: list[Placed] = field(default_factory=list[Placed])
    lifted: list[tuple[str, Lifted]] = field(default_factory=list[tuple[str, Lifted]])

    def decide(self, draft: Draft) -> Decision:
        """Decide a draft, and hold what it gets."""
        decision = self.planner.decide(draft)
        if isinstance(decision, Placed):
            self.held.append(decision)
        return decision

    def bring_forward(self, draft: Draft, stands: Stands) -> Placed | None:
        """Decide one that has a place already, as if it had none; None leaves it where it is."""
        index = self.fleet.indexes.get(stands.pool_id)
        if index is None:
            return None
        lifted = index.lift(draft.id, stands.places.gpus, stands.places.nodes)
        self.planner.recharge(stands.charges, -1)
        decision = self.decide(draft)
        if isinstance(decision, Placed):
            self.lifted.append((stands.pool_id, lifted))
            return decision
        self.planner.recharge(stands.charges, 1)
        index.put_back(lifted)
        index.freed = lifted.freed
        return None

    def overfull(self, placed: Sequence[Placed]) -> set[str]:
        """Return the ids of the drafts on whose hosts there is more than these can give by now."""
        return {
            host.reservation_id
            for each in placed
            for host in each.hosts
            for node in (self.fleet.indexes[each.pool.id].nodes.get(host.node_id),)
            if node is not None and node.is_overfull(host.reservation_id)
        }

    def let_go(self, losers: Collection[str] | None = None) -> None:
        """Let go in the pictures of what some drafts hold (all of them, where none are named)."""
        gone = [each for each in self.held if losers is None or each.draft.id in losers]
        for placed in gone:
            self.held.remove(placed)
            self.planner.undo(placed)
        if losers is None:
            for pool_id, lifted in self.lifted:
                self.fleet.indexes[pool_id].put_back(lifted)
            self.lifted.clear()
        if gone:
            self.fleet.rewind(self.horizon)


@dataclass(slots=True)
class Chosen:
    """What is to be written, the ids of what has lost, and whether others made us think anew.

    ``held`` tells whether it, or what it was before, was to be held: that is taken back by whoever
    holds it anew. ``written`` tells whether all of it is written by now.
    """

    decisions: list[Decision]
    lost: set[str] = field(default_factory=set[str])
    anew: bool = False
    held: bool = False
    written: bool = False

    @property
    def placed(self) -> list[Placed]:
        """What has a place and has not lost it."""
        return [each for each in self.kept if isinstance(each, Placed)]

    @property
    def kept(self) -> list[Decision]:
        """What was decided, but for what has lost its place."""
        return [each for each in self.decisions if each.draft.id not in self.lost]

    @property
    def moves(self) -> bool:
        """Whether somebody makes way for any of it."""
        return any(each.moves for each in self.placed)

    @property
    def plan(self) -> Plan:
        """What is to be held and booked for it."""
        placed = self.placed
        return Plan(
            [booking for each in placed for booking in each.bookings],
            [host for each in placed for host in each.hosts],
            {node for each in placed for node in each.nodes},
        )

    def decide_again(self, current: Try, taken: Collection[str]) -> None:
        """Decide once more what others took, in its order, beside what has its place."""
        for at, each in enumerate(self.decisions):
            if each.draft.id in taken:
                decision = self.decisions[at] = current.decide(each.draft)
                if isinstance(decision, Placed) and decision.moves:
                    # Others' units are dealt again in a transaction of its own: see `decide_all`.
                    current.let_go([each.draft.id])
                    self.lost.add(each.draft.id)


def decide_all(current: Try, drafts: Sequence[Draft]) -> list[Decision]:
    """Decide in order; a draft that re-deals others' units is written in a transaction of its own.

    A clash of re-dealt units aborts the transaction, which must cost nobody else their place.
    """
    decisions: list[Decision] = []
    for draft in drafts:
        decision = current.decide(draft)
        moves = isinstance(decision, Placed) and bool(decision.moves)
        if moves and decisions:
            current.let_go([draft.id])
            break
        decisions.append(decision)
        if moves:
            break
    return decisions


def taken_of(wanted: Sequence[NewBooking], holding: Holding) -> set[str]:
    """Return the ids of the drafts of whose places others have units by now."""
    others: dict[int, list[tuple[str, Held]]] = {}
    for change in holding.gpu_changes:
        if change.held is not None:
            others.setdefault(change.gpu_id, []).append((change.key[0], change.held))
    return {
        booking.reservation_id
        for booking in wanted
        for holder, held in others.get(booking.gpu_id, ())
        if holder != booking.reservation_id
        and held.units & booking.units
        and held.start < micros(booking.held_until)
        and held.end > micros(booking.start)
    }
