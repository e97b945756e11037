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
from apportion.placement.calendar import Calendars
from apportion.placement.choosing import best, best_host, nearest_gpus
from apportion.placement.findings import LOOKED_AT, Finding, defragmentable, full
from apportion.placement.gangs import Gang
from apportion.placement.largest import Largest, largest
from apportion.placement.moving import Movable, Relief, with_one_move
from apportion.placement.names import Names
from apportion.placement.offers import PARTITION, HeldKey, Offer
from apportion.placement.policies import DEFAULT, POLICIES, Policy, PolicyName
from apportion.placement.reasons import why_held
from apportion.placement.search import (
    STEPS_MAX,
    SearchExhaustedError,
    offer_of,
    place_on,
    steps_after,
)
from apportion.placement.shapes import Shapes
from apportion.placement.shelves import Shelves
from apportion.placement.state import FOREVER, NEVER, GpuState, Held, HostHeld, NodeState
from apportion.placement.timeline import HOST, Endings, endings_of
from apportion.placement.topology import Topology, topology
from apportion.placement.verdicts import Verdict
from apportion.placement.windows import Opening, opening, openings

_REFUSALS_KEPT = 1024
"""How many refusals are remembered while nothing is given back."""


class PoolIndex:
    """What a pool's nodes and GPUs offer, for placing asks one after the other."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.nodes: dict[int, NodeState] = {}
        self.freed = 0
        """Counts how often room was given back: a refusal stands while this stands still."""
        self._gpus: dict[int, GpuState] = {}
        self._names = Names()
        nodes = list(nodes)
        self._shelves = Shelves(nodes)
        self._reckoned = len(nodes)
        self._shapes = Shapes()
        self._calendars = Calendars()
        self._last_start = NEVER
        self._endings = Endings()
        self._held = 0
        self._refusals: dict[tuple[Ask, int, int], Verdict] = {}
        self._refused_at = 0
        for node in nodes:
            self.add_node(node)

    # -- what there is -----------------------------------------------------------------------------

    def add_node(self, node: NodeState) -> None:
        """Take a node with its GPUs, and what is held of them, into the picture.

        A node of the same id is replaced, with all that was held on it.
        """
        self.remove_node(node.id)
        self.nodes[node.id] = node
        self._gpus.update((gpu.id, gpu) for gpu in node.gpus)
        self._names.add(node)
        self._shelves.add(node)
        self._calendars.close()
        self._shapes.add(node)
        for ending in endings_of(node):
            self._hold(ending)
        self._last_start = max(self._last_start, node.last_start_of_all)
        self.freed += 1
        if len(self.nodes) > 2 * self._reckoned:
            self._reckon()

    def remove_node(self, node_id: int) -> None:
        """Forget a node, its GPUs and what is held on it; an unknown one is fine."""
        node = self.nodes.pop(node_id, None)
        if node is None:
            return
        for gpu in node.gpus:
            del self._gpus[gpu.id]
        self._names.remove(node)
        self._calendars.close()
        self._shelves.remove(node)
        self._shapes.remove(node)
        self._held -= sum(1 for _ in endings_of(node))

    def gpu(self, gpu_id: int) -> GpuState:
        """Return a GPU that is in the picture."""
        return self._gpus[gpu_id]

    def topology(self, gpu_ids: Iterable[int]) -> Topology:
        """Return how well the GPUs of some pieces reach each other: see `Topology`.

        Each GPU may come several times; those that are not in the picture are left out.
        """
        return topology([self._gpus[each] for each in gpu_ids if each in self._gpus])

    # -- what is held ------------------------------------------------------------------------------

    def book(self, gpu_id: int, key: HeldKey, held: Held) -> None:
        """Note that units are held; noting it again, or otherwise, replaces what was noted."""
        gpu = self._gpus.get(gpu_id)
        if gpu is None:
            return
        before = gpu.held.get(key)
        if before == held:
            return
        if before is not None:
            self.free(gpu_id, key)
        gpu.put(key, held)
        self._shelves.gpu_changed(gpu)
        self._calendars.note(gpu, held.start, held.end)
        self._last_start = max(self._last_start, held.start)
        self._hold((held.end, gpu_id, *key))
        if key[0].startswith(PARTITION) and gpu.standing is not None:
            self._shapes.recut_changed(gpu.standing.node)
            self._refusals.clear()  # they gave another reason

    def free(self, gpu_id: int, key: HeldKey) -> None:
        """Note that units are free again; noting it twice is fine."""
        gpu = self._gpus.get(gpu_id)
        held = None if gpu is None else gpu.held.get(key)
        if gpu is None or held is None:
            return
        gpu.drop(key)
        self._held -= 1
        self.freed += 1
        self._shelves.gpu_changed(gpu)
        self._calendars.note(gpu, held.start, held.end)
        if key[0].startswith(PARTITION) and gpu.standing is not None:
            self._shapes.recut_changed(gpu.standing.node)

    def book_host(self, node_id: int, holder: str, held: HostHeld) -> None:
        """Note that host resources are held by a reservation; noting it otherwise replaces that."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        before = node.held.get(holder)
        if before == held:
            return
        if before is not None:
            self.free_host(node_id, holder)
        node.put(holder, held)
        self._host_changed(node)
        self._last_start = max(self._last_start, held.start)
        self._hold((held.end, node_id, holder, HOST))

    def free_host(self, node_id: int, holder: str) -> None:
        """Note that a reservation's host resources are free again; noting it twice is fine."""
        node = self.nodes.get(node_id)
        if node is None or holder not in node.held:
            return
        node.drop(holder)
        self._held -= 1
        self.freed += 1
        self._host_changed(node)

    def advance(self, now: int) -> None:
        """Let go of everything whose window has ended by ``now``."""
        for end, place, holder, number in self._endings.due(now):
            if number == HOST:
                node = self.nodes.get(place)
                if node is not None and holder in node.held and node.held[holder].end == end:
                    self.free_host(place, holder)
            elif place in self._gpus:
                held = self._gpus[place].held.get((holder, number))
                if held is not None and held.end == end:
                    self.free(place, (holder, number))

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

    def ends(self) -> Iterator[tuple[int, NodeState]]:
        """Yield when something held ends, in order, and on which node."""
        for end, place, _, number in self._endings.ascending():
            if number == HOST:
                node = self.nodes.get(place)
            else:
                gpu = self._gpus.get(place)
                node = None if gpu is None or gpu.standing is None else gpu.standing.node
            if node is not None:
                yield end, node

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

    def _timely(self, start: int, end: int) -> bool:
        """Tell whether anything held starts after a window, or ends before it."""
        return self._last_start >= end or self._endings.first <= start

    def _refuse(self, ask: Ask, start: int, end: int, cut: set[int]) -> Verdict:
        changing = self.nodes if self._timely(start, end) else ()
        refusal = self._shapes.explain(ask, start, end, looked_at=changing, cut=cut)
        if len(self._refusals) >= _REFUSALS_KEPT:
            self._refusals.clear()
        self._refusals[ask, start, end] = refusal
        return refusal

    # -- keeping the order -------------------------------------------------------------------------

    def _reckon(self) -> None:
        """Take the yardstick of hosts anew: the fleet has become another one."""
        self._reckoned = len(self.nodes)
        self._shelves = Shelves(self.nodes.values())
        for node in self.nodes.values():
            self._shelves.add(node)

    def _host_changed(self, node: NodeState) -> None:
        self._shelves.host_changed(node)
        self._shapes.host_changed(node)

    def _hold(self, ending: tuple[int, int, str, int]) -> None:
        self._endings.add(ending)
        self._held += 1
        # What was freed early leaves its end behind; without this, those would pile up for ever.
        if len(self._endings) > 2 * self._held + 64:
            nodes = self.nodes.values()
            self._endings.keep(each for node in nodes for each in endings_of(node))
