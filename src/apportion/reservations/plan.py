"""Deciding in memory what each draft of a batch gets: held at once, undone if it is lost."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from apportion.bookings.service import BookingView, NewBooking, NewHostBooking
from apportion.placement import Held, Offer, Piece, Verdict
from apportion.placement.cost import cost
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
from apportion.reservations.fleet import Fleet, micros
from apportion.reservations.reasons import Gone, Reasons, Refused, Short, Waiting
from apportion.reservations.schemas import State
from apportion.reservations.slack import earliest_start, held_until


@dataclass(frozen=True, slots=True)
class Placed:
    """A draft, the pool it got, the room there, the window, and what it takes of the quota.

    ``at`` is the instant at which this was decided, as in all decisions.
    """

    draft: Draft
    at: datetime
    pool: PoolRecord
    offer: Offer
    start: datetime
    end: datetime
    bookings: tuple[NewBooking, ...]
    shown: tuple[BookingView, ...]
    host: NewHostBooking | None
    charges: Mapping[str, Decimal]

    @property
    def state(self) -> State:
        """Where it stands: a window that has begun is active at once."""
        return "active" if self.start <= self.at else "placed"

    def quota_key(self, resource: str) -> QuotaKey:
        """Return whose quota of a resource it is charged to."""
        return self.pool.quota_tenant_id, self.pool.id, resource


Decision = Placed | Waiting | Gone | Refused


@dataclass(frozen=True, slots=True)
class _Found:
    """Room in one pool, and what it costs of the quota."""

    pool: PoolRecord
    offer: Offer
    shares: Sequence[Fraction]
    charges: Mapping[str, Decimal]


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
        self._reasons = Reasons(pools, archived, now)
        self._quotas = quotas
        self._now = now

    def decide(self, draft: Draft) -> Decision:
        """Choose and hold the best offer of the candidate pools, or say why there is none."""
        return self.decide_within(draft, *draft.starts(self._now))

    def decide_within(self, draft: Draft, first: datetime, last: datetime) -> Decision:
        """Do so at the earliest start within ``first`` and ``last`` that has room in any pool."""
        usable = self._usable(draft)
        if not usable:
            return self._reasons.gone(draft)
        if first > last:
            return self._reasons.too_late(draft)
        amounts = draft.amounts()
        start = first
        if first < last:
            covered = [each for each in usable if self._covers(draft, each, amounts)]
            start = earliest_start(self._fleet, draft, covered, (first, last, self._now)) or first
        window = draft.window(start)
        rooms: list[_Found] = []
        verdicts: dict[str, Verdict] = {}
        short: list[Short] = []
        for pool in usable:
            found = self._find(draft, pool, window, amounts)
            if isinstance(found, Short):
                short.append(found)
            elif isinstance(found, Verdict):
                verdicts[pool.id] = found
            else:
                rooms.append(found)
        if rooms:
            return self._place(draft, self._tightest(draft, rooms), window)
        if not verdicts:
            return self._reasons.over_quota(draft, short)
        return self._reasons.no_room(draft, verdicts, short)

    def _tightest(self, draft: Draft, rooms: Sequence[_Found]) -> _Found:
        """Return the room that costs those who come later least; the first of equals."""
        if len(rooms) == 1:
            return rooms[0]
        return min(rooms, key=lambda found: self._price(draft, found))

    def _price(self, draft: Draft, found: _Found) -> tuple[int, int]:
        node = self._fleet.indexes[found.pool.id].nodes[found.offer.node]
        return cost(node, draft.ask, found.offer)

    def undo(self, placed: Placed) -> None:
        """Let go in the pictures of what did not come to be."""
        index = self._fleet.indexes[placed.pool.id]
        for booking in placed.bookings:
            index.free(booking.gpu_id, booking.key)
        if placed.host is not None:
            index.free_host(placed.host.node_id, placed.draft.id)
        for resource, amount in placed.charges.items():
            self._quotas[placed.quota_key(resource)].used -= amount

    def _find(
        self,
        draft: Draft,
        pool: PoolRecord,
        window: tuple[datetime, datetime],
        amounts: dict[str, Decimal],
    ) -> _Found | Short | Verdict:
        """Look for room in one pool that its quota covers.

        What an instance or a slot costs in equivalents only its place tells, so the quota is asked
        once more when that is known.
        """
        least = with_equivalents(amounts, least_equivalents(draft.ask))
        exact = amounts.keys().isdisjoint(("gpu.mig", "gpu.slot"))
        if short := self._short(pool, least, exact=exact):
            return short
        start, end = window
        index = self._fleet.indexes[pool.id]
        until = micros(held_until(end, pool))
        policy = draft.policy or pool.policy.placement
        offer = index.place(draft.ask, micros(start), until, micros(self._now), policy)
        if isinstance(offer, Verdict):
            return offer
        shares = [self._share(draft, pool, piece) for piece in offer.pieces]
        if exact:
            return _Found(pool, offer, shares, least)
        charges = with_equivalents(amounts, equivalents(shares))
        return self._short(pool, charges, exact=True) or _Found(pool, offer, shares, charges)

    def _place(self, draft: Draft, found: _Found, window: tuple[datetime, datetime]) -> Placed:
        start, end = window
        pool, offer = found.pool, found.offer
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
            for number, (piece, share) in enumerate(zip(offer.pieces, found.shares, strict=True))
        )
        host = None
        if draft.ask.vcpu_milli or draft.ask.memory_mib:
            host = NewHostBooking(
                tenant_id=draft.tenant_id,
                node_id=offer.node,
                reservation_id=draft.id,
                vcpu_milli=draft.ask.vcpu_milli,
                memory_mib=draft.ask.memory_mib,
                start=start,
                end=end,
            )
        shown = tuple(map(self._shown, pieces))
        placed = Placed(
            draft, self._now, pool, offer, start, end, pieces, shown, host, found.charges
        )
        self._hold(placed)
        return placed

    def _shown(self, booking: NewBooking) -> BookingView:
        """Return a booking as it is shown: what is decided is told without reading it back."""
        pool_id, atom = booking.pool_id, booking.atom_id
        gpu = self._fleet.indexes[pool_id].gpu(booking.gpu_id)
        return BookingView(
            reservation_id=booking.reservation_id,
            gpu_id=str(gpu.attributes["gpuUuid"]),
            node=str(gpu.attributes["node"]),
            device=booking.device,
            cls=booking.cls,
            units=to_multirange(booking.units),
            atom=None if atom is None else self._fleet.atom(pool_id, atom).key,
            share=booking.share,
            start=booking.start,
            end=booking.end,
            held_until=booking.held_until,
        )

    def _hold(self, placed: Placed) -> None:
        index = self._fleet.indexes[placed.pool.id]
        start, end = micros(placed.start), micros(placed.end)
        for booking in placed.bookings:
            held = Held(start, micros(booking.held_until), booking.units)
            index.book(booking.gpu_id, booking.key, held)
        ask = placed.draft.ask
        if placed.host is not None:
            held = HostHeld(start, end, ask.vcpu_milli, ask.memory_mib)
            index.book_host(placed.host.node_id, placed.draft.id, held)
        for resource, amount in placed.charges.items():
            self._quotas[placed.quota_key(resource)].used += amount

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
        least = with_equivalents(amounts, least_equivalents(draft.ask))
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
