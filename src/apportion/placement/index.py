"""The picture of one pool, kept so that a choice looks at few GPUs however many there are.

Nodes stand on shelves by what their GPUs have free in every window (see `shelves`), and a fit found
there fits any window. Only where nothing is found so is it asked who has what when (see
`calendar`), and only if something held begins or ends at a time that could make room. What a
refusal counts is kept by shape of node (see `shapes`).
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from apportion.placement.asks import Ask, AtomClass, DeviceAsk
from apportion.placement.choosing import best, best_host, nearest_gpus
from apportion.placement.findings import LOOKED_AT, Finding, defragmentable, full
from apportion.placement.gangs import Gang
from apportion.placement.largest import Largest, largest
from apportion.placement.moving import Movable, Relief, with_one_move
from apportion.placement.offers import Offer
from apportion.placement.picture import Picture
from apportion.placement.policies import DEFAULT, POLICIES, Policy, PolicyName
from apportion.placement.reasons import why_held
from apportion.placement.search import (
    STEPS_MAX,
    SearchExhaustedError,
    offer_of,
    place_on,
    steps_after,
)
from apportion.placement.state import FOREVER, NEVER, NodeState
from apportion.placement.verdicts import Verdict
from apportion.placement.windows import Opening, opening, openings

_REFUSALS_KEPT = 1024
"""How many refusals are remembered while nothing is given back."""


class PoolIndex(Picture):
    """What a pool's nodes and GPUs offer, for placing asks one after the other."""

    # -- choosing ----------------------------------------------------------------------------------

    def place(
        self, ask: Ask, start: int, end: int, now: int, policy: PolicyName = DEFAULT
    ) -> Offer | Verdict:
        """Choose room for the ask in [start, end), or say why there is none.

        What is chosen is not held: the caller books it, here and in the database.
        """
        if self._endings.first <= now:
            self.advance(now)
        if self._refused_at != self.freed:
            self._refusals.clear()
            self._refused_at = self.freed
        if self._refusals:
            refusal = self._refusals.get((ask, start, end))
            if refusal is not None:
                return refusal
        window = (start, end, now)
        offer = self._alike(ask, window, POLICIES[policy])
        if isinstance(offer, Offer):
            return offer
        seen: set[int] = set()
        cut: set[int] = set()
        for node in self._candidates(ask, window, POLICIES[policy], sought=offer):
            if node.id in seen:
                continue
            seen.add(node.id)
            try:
                found = place_on(node, ask, start, end, now, steps=steps_after(len(cut)))
            except SearchExhaustedError:
                cut.add(node.id)
                continue
            if found is not None:
                return found
        return self._refuse(ask, start, end, cut)

    def place_gang(
        self,
        asks: Sequence[Ask],
        start: int,
        end: int,
        now: int,
        policy: PolicyName = DEFAULT,
        *,
        apart: bool = False,
    ) -> tuple[Offer, ...] | Verdict:
        """Choose room for each of several asks, on any nodes, or say why one of them has none.

        They are placed one after the other, each beside those before it, with ``apart`` on nodes
        of their own; where that fails, wherever all of them fit. Nothing is held.
        """
        self.advance(now)
        with self.for_a_moment() as gang:
            return gang.place(asks, start, end, now, policy, apart=apart)

    @contextmanager
    def for_a_moment(self) -> Generator[Gang]:
        """Hold a gang's members while the block runs; afterwards everything is as before."""
        gang = Gang(self)
        freed = self.freed
        try:
            yield gang
        finally:
            gang.let_go()
            # Nothing was given back; but what was refused beside the gang may fit now.
            self.freed = freed
            self._refusals.clear()

    def openings(
        self,
        ask: Ask,
        length: int,
        now: int,
        policy: PolicyName = DEFAULT,
        *,
        first: int = NEVER,
        last: int = FOREVER,
    ) -> Iterator[Opening]:
        """Yield when the ask could start for ``length``, in order: now, or when a node gets room.

        From ``first`` on, and at ``last`` by then. The first one told is the earliest there is.
        Nothing is held, and nothing may be while it is asked.
        """
        start = max(first, now)
        if start > last:
            return
        offer = self.place(ask, start, start + length, now, policy)
        if isinstance(offer, Offer):
            node = self.nodes[offer.node]
            yield opening(node, ask, offer, (start, start + length), now)
        elif offer.for_good:
            return
        yield from openings(ask, length, (start, last, now), self.ends())

    def largest(self, cls: AtomClass, start: int, end: int, now: int) -> Largest:
        """Return the largest request of a class that has room in a window: see `Largest`.

        It costs a few decisions, whatever the size of the fleet.
        """

        def fits(device: DeviceAsk) -> bool:
            return isinstance(self.place(Ask((device,)), start, end, now), Offer)

        return largest(cls, self._shelves.models, self._shapes.gpus_most, fits)

    def explain(self, ask: Ask, start: int, end: int, now: int) -> tuple[Finding, ...]:
        """Say more about a refusal than its counts: see `Finding`; nothing where there is room.

        The findings are in the order of the verdict's reasons. This goes through nodes: it is for
        whoever asks why, not for placing.
        """
        answer = self.place(ask, start, end, now)
        if isinstance(answer, Offer):
            return ()
        booked = list(islice(self._shapes.booked(ask, start, end), LOOKED_AT))
        counted = (defragmentable(booked, ask, start, end), full(booked, ask, start, end))
        ends = islice(((end, node) for end, node in self.ends() if end > start), LOOKED_AT)
        later = next(openings(ask, end - start, (start, FOREVER, now), ends), None)
        freed = None
        if later is not None:
            node = self.nodes[later.offer.node]
            freed = why_held(node, ask, start, end)
        return tuple(
            Finding(
                each.code,
                each.count,
                later.start if later is not None and each.code == freed else None,
                *(counted if each.code == "units_booked" else (0, 0)),
            )
            for each in answer.reasons
        )

    def with_one_move(
        self, ask: Ask, start: int, end: int, now: int, movable: Iterable[Movable]
    ) -> Relief | None:
        """Return the best way to make room for an ask by moving one reservation of some; or None.

        It costs a look at each of them, at most 2,000. Nothing is held or moved when this returns.
        """
        self.advance(now)
        freed = self.freed
        relief = with_one_move(self, ask, (start, end, now), movable)
        # Nothing was given back; but what was refused beside what was tried may fit now.
        self.freed = freed
        self._refusals.clear()
        return relief

    def _alike(self, ask: Ask, window: tuple[int, int, int], policy: Policy) -> Offer | bool:
        """Place what is decided by states alone: one piece, or whole GPUs, told apart by no name.

        False says that there is no such place in every window; True that it was not looked for.
        """
        if not ask.devices:
            standing = best_host(self._shelves, ask)
            return standing is not None and Offer(standing.node.id, ())
        device = ask.devices[0]
        if len(ask.devices) > 1 or device.selector.on_atom:
            return True
        order = self._shelves.order(device, device.count, policy, ask.together)
        if not order.serves(ask):
            return True
        place = best(self._shelves, order, ask)
        if place is None:
            return device.count > 1 and not self._shelves.knows_all(order)
        start, end, _ = window
        if start > window[2] or self._last_start >= end:
            # A GPU of the node that is free just then is better than one that is free for ever.
            found = place_on(place.standing.node, ask, *window, steps=STEPS_MAX)
            return True if found is None else found
        standing = place.standing
        gpus = standing.gpus(place.state)[:1]
        if device.count > 1:
            standing, gpus = nearest_gpus(self._shelves, order, place)
        choice = order.choice(place.state)
        part = None if choice is None else choice.part
        free = place.state.free if part is None else len(place.state.parts)
        offer = offer_of(standing.node, device, gpus, part, free=free, window=window)
        return True if offer is None else offer

    def _candidates(
        self, ask: Ask, window: tuple[int, int, int], policy: Policy, *, sought: bool
    ) -> Iterator[NodeState]:
        """Yield nodes that may have room, those first that have it in every window; some twice."""
        named = self._names.named(ask)
        if named is not None:
            yield from (self.nodes[node_id] for node_id in named)
            return
        scarce = max(ask.devices, key=DeviceAsk.scarcity, default=None)
        if scarce is not None and sought:
            order = self._shelves.order(scarce, 1, policy)
            for standing in self._shelves.candidates(order, ask):
                if scarce.count == 1 or standing.pieces(order) >= scarce.count:
                    yield standing.node
        if self._timely(window[0], window[1]):
            yield from self._in_gaps(ask, scarce, window, policy)

    def roomy(
        self, ask: Ask, window: tuple[int, int, int], policy: PolicyName
    ) -> Iterator[NodeState]:
        """Yield all nodes that have room for an ask in a window, and perhaps others; some twice."""
        if ask.devices:
            return self._candidates(ask, window, POLICIES[policy], sought=True)
        return iter(self.nodes.values())

    def _in_gaps(
        self,
        ask: Ask,
        scarce: DeviceAsk | None,
        window: tuple[int, int, int],
        policy: Policy,
    ) -> Iterator[NodeState]:
        """Yield nodes that may have room because something held is at another time."""
        if scarce is not None:
            order = self._shelves.order(scarce, 1, policy)
            for gpu in self._calendars.roomy(order, window, self._gpus.values()):
                if gpu.standing is not None:
                    yield gpu.standing.node
        if ask.vcpu_milli or ask.memory_mib:
            start, end, _ = window
            for node in self.nodes.values():
                if node.held and (node.last_start >= end or node.first_end <= start):
                    yield node

    def _refuse(self, ask: Ask, start: int, end: int, cut: set[int]) -> Verdict:
        changing = self.nodes if self._timely(start, end) else ()
        refusal = self._shapes.explain(ask, start, end, looked_at=changing, cut=cut)
        if len(self._refusals) >= _REFUSALS_KEPT:
            self._refusals.clear()
        self._refusals[ask, start, end] = refusal
        return refusal
