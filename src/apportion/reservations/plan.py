"""Deciding in memory what each draft of a batch gets: held at once, undone if it is lost."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from apportion.bookings.service import Allocation, BookingView, NewBooking, NewHostBooking
from apportion.nodes.service import ASKED
from apportion.placement import Held, Move, Offer, Piece, Topology, Verdict
from apportion.placement.cost import cost
from apportion.placement.search import is_free
from apportion.placement.state import HostHeld
from apportion.pools.service import (
    EQUIVALENTS,
    PoolRecord,
    PoolUse,
    Quota,
    QuotaKey,
)
from apportion.quantities.units import to_multirange
from apportion.reservations.admission import Draft
from apportion.reservations.charging import (
    equivalents,
    least_equivalents,
    share_of,
    slots_share,
    with_equivalents,
)
from apportion.reservations.ends import held_until, open_end, told_at
from apportion.reservations.fleet import Fleet, held_micros, micros
from apportion.reservations.reasons import Gone, Reasons, Refused, Short, Waiting
from apportion.reservations.schemas import State
from apportion.reservations.slack import earliest_start


class Placed(NamedTuple):
    """A draft, the pool it got, the room there, the window, and what it takes of the quota.

    ``offers`` has one for each member, in whose order the pieces are numbered; ``hosts`` one for
    each node, with what the members there take together. ``at`` is the instant at which this was
    decided, as in all decisions. ``topology`` is that of the member whose pieces reach each other
    worst; None where no member has several. ``asked`` are the nodes whose agents are to hand it
    out: its window has begun.
    """

    draft: Draft
    at: datetime
    pool: PoolRecord
    offers: tuple[Offer, ...]
    start: datetime
    end: datetime
    bookings: tuple[NewBooking, ...]
    shown: tuple[BookingView, ...]
    hosts: tuple[NewHostBooking, ...]
    charges: Mapping[str, Decimal]
    topology: Topology | None
    asked: frozenset[int]

    @property
    def state(self) -> State:
        """Where it stands: active at once where its window has begun and no agent is asked for it.

        Where one is, it is active when all that it has is handed out.
        """
        return "active" if self.start <= self.at and not self.asked else "placed"

    @property
    def moves(self) -> list[Move]:
        """Who makes way for it."""
        return [move for offer in self.offers for move in offer.moves]

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes whose rows are held while it is written: hosts, and those that are asked."""
        return self.asked | {host.node_id for host in self.hosts}

    @property
    def tell_end_at(self) -> datetime | None:
        """When its tenant is told that it ends soon; None where it has no end."""
        return None if self.draft.open_ended else told_at(self.end, self.pool)

    def quota_key(self, resource: str) -> QuotaKey:
        """Return whose quota of a resource it is charged to."""
        return self.pool.quota_tenant_id, self.pool.id, resource


Decision = Placed | Waiting | Gone | Refused


@dataclass(frozen=True, slots=True)
class Found:
    """Room in one pool, for each member, and what it costs of the quota."""

    pool: PoolRecord
    offers: tuple[Offer, ...]
    shares: Sequence[Fraction]
    charges: Mapping[str, Decimal]


@dataclass(slots=True)
class Seen:
    """What a draft's pools have for a window: the best offer, and why the others have none."""

    window: tuple[datetime, datetime]
    found: Found | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    short: list[Short] = field(default_factory=list[Short])


class Planner:
    """Places drafts one after the other on the pictures, each seeing what the earlier ones took.

    ``pools`` are those that the drafts' tenants may use; ``archived`` says of the others which are.
    """

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[PoolUse, PoolRecord],
        archived: Collection[str],
        quotas: Mapping[QuotaKey, Quota],
        now: datetime,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._reasons = Reasons(fleet, pools, archived, now)
        self._quotas = quotas
        self._now = now
        self._peaks: dict[tuple[str | None, str], dict[str, Decimal]] = {}
        """What a series is charged in a pool."""

    def decide(self, draft: Draft) -> Decision:
        """Choose and hold the best offer of the candidate pools, or say why there is none."""
        return self.decide_within(draft, *draft.starts(self._now))

    def decide_within(self, draft: Draft, first: datetime, last: datetime) -> Decision:
        """Do so at the earliest start within ``first`` and ``last`` that has room in any pool."""
        if not self._usable(draft):
            return self._reasons.gone(draft)
        if first > last:
            return self._reasons.too_late(draft)
        seen = self.look(draft, first, last)
        if seen.found is not None:
            return self._place(draft, seen.found, seen.window)
        if not seen.verdicts:
            return self._reasons.over_quota(draft, seen.short)
        return self._reasons.no_room(draft, seen.verdicts, seen.short)

    def look(self, draft: Draft, first: datetime, last: datetime) -> Seen:
        """Find the best offer for a draft, and why the other pools have none; nothing is held."""
        usable = self._usable(draft)
        amounts = draft.amounts()
        start = first
        if first < last:
            covered = [each for each in usable if self._covers(draft, each, amounts)]
            start = earliest_start(self._fleet, draft, covered, (first, last, self._now)) or first
        seen = Seen(draft.window(start))
        rooms: list[Found] = []
        for pool in usable:
            found = self._find(draft, pool, seen.window, amounts)
            if isinstance(found, Short):
                seen.short.append(found)
            elif isinstance(found, Verdict):
                seen.verdicts[pool.id] = found
            else:
                rooms.append(found)
        if rooms:
            seen.found = self._tightest(draft, rooms)
        return seen

    def _tightest(self, draft: Draft, rooms: Sequence[Found]) -> Found:
        """Return the room that costs those who come later least; the first of equals."""
        if len(rooms) == 1:
            return rooms[0]
        return min(rooms, key=lambda found: self._price(draft, found))

    def take(
        self, draft: Draft, pool: PoolRecord, offer: Offer, window: tuple[datetime, datetime]
    ) -> Placed:
        """Hold an offer that was found elsewhere; whether the quota covers it is not asked here."""
        shares = [self._share(draft, pool, piece) for piece in offer.pieces]
        charges = with_equivalents(draft.amounts(), equivalents(shares))
        charges = self._added(draft, pool, charges)
        return self._place(draft, Found(pool, (offer,), shares, charges), window)

    def count_series(self, series_id: str, pool_id: str, charged: Mapping[str, Decimal]) -> None:
        """Take up what a series is charged in a pool: only what is more than that is added."""
        self._peaks[series_id, pool_id] = dict(charged)

    def recharge(self, charges: Mapping[QuotaKey, Decimal], sign: int) -> None:
        """Reckon without what a reservation is charged (-1), or with it again (1)."""
        for key, amount in charges.items():
            if key in self._quotas:
                self._quotas[key].used += sign * amount

    def undo(self, placed: Placed) -> None:
        """Let go in the pictures of what did not come to be."""
        index = self._fleet.indexes[placed.pool.id]
        for booking in placed.bookings:
            index.free(booking.gpu_id, booking.key)
        for host in placed.hosts:
            index.free_host(host.node_id, placed.draft.id)
        self._charge(placed, -1)

    def _find(
        self,
        draft: Draft,
        pool: PoolRecord,
        window: tuple[datetime, datetime],
        amounts: dict[str, Decimal],
    ) -> Found | Short | Verdict:
        """Look for room in one pool that its quota covers.

        What an instance or a slot costs in equivalents only its place tells, so the quota is asked
        once more when that is known.
        """
        least = with_equivalents(amounts, draft.members * least_equivalents(draft.ask))
        exact = amounts.keys().isdisjoint(("gpu.mig", "gpu.slot"))
        least = self._added(draft, pool, least)
        if short := self._short(pool, least, exact=exact):
            return short
        offers = self._room(draft, pool, window)
        if isinstance(offers, Verdict):
            return offers
        shares = [self._share(draft, pool, piece) for offer in offers for piece in offer.pieces]
        if exact:
            return Found(pool, offers, shares, least)
        charges = self._added(draft, pool, with_equivalents(amounts, equivalents(shares)))
        return self._short(pool, charges, exact=True) or Found(pool, offers, shares, charges)

    def _room(
        self, draft: Draft, pool: PoolRecord, window: tuple[datetime, datetime]
    ) -> tuple[Offer, ...] | Verdict:
        """Look for room for all members, cleaned up after them."""
        index = self._fleet.indexes[pool.id]
        start, end = window
        times = micros(start), micros(held_until(end, pool)), micros(self._now)
        policy = draft.policy_in(pool)
        if draft.members > 1:
            asks = [draft.ask] * draft.members
            return index.place_gang(asks, *times, policy, apart=draft.members_apart)
        planned = draft.offer
        if planned and is_free(index.nodes.get(planned.node), planned, draft.ask, times[:2]):
            return (planned,)
        offer = index.place(draft.ask, *times, policy)
        return offer if isinstance(offer, Verdict) else (offer,)

    def _price(self, draft: Draft, found: Found) -> tuple[int, int]:
        """Return what room costs those who come later, to compare that of several pools."""
        nodes = self._fleet.indexes[found.pool.id].nodes
        costs = [cost(nodes[offer.node], draft.ask, offer) for offer in found.offers]
        return sum(stranded for stranded, _ in costs), sum(left for _, left in costs)

    def _place(self, draft: Draft, found: Found, window: tuple[datetime, datetime]) -> Placed:
        pool = found.pool
        start, end = window
        if draft.open_ended:
            end = open_end(pool)
        offered = [piece for offer in found.offers for piece in offer.pieces]
        of_pieces = [offer for offer in found.offers for _ in offer.pieces]
        pieces = tuple(
            NewBooking(
                tenant_id=draft.tenant_id,
                pool_id=pool.id,
                gpu_id=piece.gpu,
                reservation_id=draft.id,
                piece=number,
                device=piece.device,
                cls=draft.ask.devices[piece.device].cls,
                atom_id=piece.atom,
                generation=piece.generation,
                units=piece.units,
                start=start,
                end=end,
                held_until=held_until(end, pool),
                share=share,
            )
            for number, (piece, share) in enumerate(zip(offered, found.shares, strict=True))
        )
        hosts = _hosts(draft, found.offers, (start, end))
        asked = self._asked(found) if start <= self._now else frozenset[int]()
        shown = tuple(
            self._shown(piece, asked=offer.node in asked)
            for piece, offer in zip(pieces, of_pieces, strict=True)
        )
        placed = Placed(
            draft=draft,
            at=self._now,
            pool=pool,
            offers=found.offers,
            start=start,
            end=end,
            bookings=pieces,
            shown=shown,
            hosts=hosts,
            charges=found.charges,
            topology=self._topology(found),
            asked=asked,
        )
        self._hold(placed)
        return placed

    def _topology(self, found: Found) -> Topology | None:
        index = self._fleet.indexes[found.pool.id]
        several = (offer for offer in found.offers if len(offer.pieces) > 1)
        scores = (index.topology([piece.gpu for piece in offer.pieces]) for offer in several)
        return min(scores, key=lambda each: each.score, default=None)

    def _asked(self, found: Found) -> frozenset[int]:
        """Return the nodes that are asked to hand out what was found, once its window has begun."""
        nodes = {offer.node for offer in found.offers if offer.pieces}
        return frozenset(each for each in nodes if self._fleet.follows_spec(found.pool, each))

    def _shown(self, booking: NewBooking, *, asked: bool) -> BookingView:
        """Return a booking as it is shown: what is decided is told without reading it back."""
        pool_id, number = booking.pool_id, booking.atom_id
        gpu = self._fleet.indexes[pool_id].gpu(booking.gpu_id)
        atom = None if number is None else self._fleet.atom(pool_id, number)
        return BookingView(
            reservation_id=booking.reservation_id,
            gpu_id=str(gpu.attributes["gpuUuid"]),
            node=str(gpu.attributes["node"]),
            piece=booking.piece,
            device=booking.device,
            cls=booking.cls,
            units=to_multirange(booking.units),
            atom=None if atom is None else atom.key,
            share=booking.share,
            start=booking.start,
            end=booking.end,
            held_until=booking.held_until,
            attributes={} if atom is None else atom.attributes,
            stale_since=None,
            allocation=Allocation("asked", self._now, ASKED) if asked else None,
        )

    def _hold(self, placed: Placed) -> None:
        index = self._fleet.indexes[placed.pool.id]
        start, end = micros(placed.start), held_micros(placed.end)
        for booking in placed.bookings:
            held = Held(start, held_micros(booking.held_until), booking.units)
            index.book(booking.gpu_id, booking.key, held)
        for host in placed.hosts:
            held = HostHeld(start, end, host.vcpu_milli, host.memory_mib)
            index.book_host(host.node_id, placed.draft.id, held)
        self._charge(placed, 1)

    def _charge(self, placed: Placed, sign: int) -> None:
        series_id = placed.draft.series_id
        for resource, amount in placed.charges.items():
            self._quotas[placed.quota_key(resource)].used += sign * amount
            if series_id is not None:
                peak = self._peaks.setdefault((series_id, placed.pool.id), {})
                peak[resource] = peak.get(resource, Decimal(0)) + sign * amount

    def _added(
        self, draft: Draft, pool: PoolRecord, charges: Mapping[str, Decimal]
    ) -> Mapping[str, Decimal]:
        """Return what a draft adds to its charges: a series is charged its peak, not its sum."""
        if draft.series_id is None:
            return charges
        peak = self._peaks.get((draft.series_id, pool.id), {})
        added = {of: amount - peak.get(of, Decimal(0)) for of, amount in charges.items()}
        return {of: amount for of, amount in added.items() if amount > 0}

    def _share(self, draft: Draft, pool: PoolRecord, piece: Piece) -> Fraction:
        device = draft.ask.devices[piece.device]
        share = share_of(device)
        if share is not None:
            return share
        if device.cls == "gpu.slot":
            return slots_share(device, pool, self._fleet.indexes[pool.id].gpu(piece.gpu).ruler)
        assert piece.atom is not None  # noqa: S101 - an instance is an atom
        return self._fleet.atom(pool.id, piece.atom).share

    def _covers(self, draft: Draft, pool: PoolRecord, amounts: dict[str, Decimal]) -> bool:
        """Tell whether the quota covers what a draft takes at least, wherever it lies."""
        least = with_equivalents(amounts, draft.members * least_equivalents(draft.ask))
        return self._short(pool, least, exact=False) is None

    def _short(
        self, pool: PoolRecord, charges: Mapping[str, Decimal], *, exact: bool
    ) -> Short | None:
        """Return the first quota of a pool that does not cover its charge."""
        for resource, amount in charges.items():
            quota = self._quotas.get((pool.quota_tenant_id, pool.id, resource))
            if quota is None or not quota.covers(amount):
                at_least = resource == EQUIVALENTS and not exact
                return Short(pool, resource, amount, quota, at_least)
        return None

    def _usable(self, draft: Draft) -> list[PoolRecord]:
        found = (self._pools.get((draft.tenant_id, each)) for each in draft.candidates)
        return [pool for pool in found if pool is not None]


def _hosts(
    draft: Draft, offers: Sequence[Offer], window: tuple[datetime, datetime]
) -> tuple[NewHostBooking, ...]:
    """Return what the members take of the host of each node that one of them lies on."""
    ask, (start, end) = draft.ask, window
    if not ask.vcpu_milli and not ask.memory_mib:
        return ()
    return tuple(
        NewHostBooking(
            tenant_id=draft.tenant_id,
            node_id=node_id,
            reservation_id=draft.id,
            vcpu_milli=members * ask.vcpu_milli,
            memory_mib=members * ask.memory_mib,
            start=start,
            end=end,
        )
        for node_id, members in Counter(offer.node for offer in offers).items()
    )
