"""The picture of one pool, kept so that a choice looks at few nodes however many there are.

Nodes stand on shelves by what is free on them in every window, whoever holds it whenever
(`shelves`); a fit found there fits any window. Only where nothing is found so are the nodes
looked at one by one on which time can make a difference (`timeline`). A refusal is explained once
a shape of nodes (`shapes`). Memory is one entry a node on each shelf, sorted list and shape, and
one a booking.
"""

from collections.abc import Iterable, Iterator

from apportion.placement.asks import Ask
from apportion.placement.offers import HeldKey, Offer
from apportion.placement.search import SearchExhaustedError, place_on
from apportion.placement.shapes import Shapes
from apportion.placement.shelves import Shelves
from apportion.placement.state import GpuState, Held, HostHeld, NodeState
from apportion.placement.timeline import HOST, Endings, Timeline
from apportion.placement.verdicts import Verdict

_STALE_ENDINGS = 1000
"""How many ends of what was let go early may lie about before they are swept."""


class PoolIndex:
    """What a pool's nodes and GPUs offer, for placing asks one after the other."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.nodes: dict[int, NodeState] = {}
        self._gpus: dict[int, tuple[NodeState, GpuState]] = {}
        self._shelves = Shelves()
        self._shapes = Shapes()
        self._timeline = Timeline()
        self._endings = Endings()
        self._held = 0
        self._refusals: dict[tuple[Ask, int, int], Verdict] = {}
        self._refusals_at = 0
        self.freed = 0
        """Counts how often room was given back: a refusal stands while this stands still."""
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: NodeState) -> None:
        """Take a node with its GPUs into the picture."""
        self.nodes[node.id] = node
        self.freed += 1
        for gpu in node.gpus:
            self._gpus[gpu.id] = (node, gpu)
        self._shelves.add(node)
        self._shapes.add(node)
        self._timeline.note(node)

    def book(self, gpu_id: int, key: HeldKey, held: Held) -> None:
        """Note that units are held; noting it again, or otherwise, replaces what was noted."""
        found = self._gpus.get(gpu_id)
        if found is None:
            return
        node, gpu = found
        before = gpu.held.get(key)
        if before == held:
            return
        if before is None:
            self._held += 1
        else:
            self.freed += 1
        gpu.put(key, held)
        self._endings.add((held.end, gpu_id, *key))
        self._gpu_changed(node, gpu)

    def free(self, gpu_id: int, key: HeldKey) -> None:
        """Note that units are free again; noting it twice is fine."""
        found = self._gpus.get(gpu_id)
        if found is None or key not in found[1].held:
            return
        node, gpu = found
        gpu.drop(key)
        self._let_go()
        self._gpu_changed(node, gpu)

    def book_host(self, node_id: int, holder: str, held: HostHeld) -> None:
        """Note that host resources are held by a reservation."""
        node = self.nodes.get(node_id)
        if node is None or node.held.get(holder) == held:
            return
        if holder in node.held:
            self.freed += 1
        else:
            self._held += 1
        node.put(holder, held)
        self._endings.add((held.end, node_id, holder, HOST))
        self._host_changed(node)

    def free_host(self, node_id: int, holder: str) -> None:
        """Note that a reservation's host resources are free again; noting it twice is fine."""
        node = self.nodes.get(node_id)
        if node is None or holder not in node.held:
            return
        node.drop(holder)
        self._let_go()
        self._host_changed(node)

    def advance(self, now: int) -> None:
        """Let go of everything whose window has ended by ``now``."""
        for end, place, holder, number in self._endings.due(now):
            if number == HOST:
                node = self.nodes.get(place)
                held_host = None if node is None else node.held.get(holder)
                if held_host is not None and held_host.end == end:
                    self.free_host(place, holder)
            else:
                found = self._gpus.get(place)
                held = None if found is None else found[1].held.get((holder, number))
                if held is not None and held.end == end:
                    self.free(place, (holder, number))

    def place(self, ask: Ask, start: int, end: int, now: int) -> Offer | Verdict:
        """Choose room for the ask in [start, end), or say why there is none.

        What is chosen is not held: the caller books it, here and in the database.
        """
        self.advance(now)
        if self._refusals_at != self.freed:
            self._refusals.clear()
            self._refusals_at = self.freed
        refused = self._refusals.get((ask, start, end))
        if refused is not None:
            return refused
        changing = set(self._timeline.changing(start))
        cut: set[int] = set()
        seen: set[int] = set()
        for node_id in self._candidates(ask, changing):
            if node_id in seen:
                continue
            seen.add(node_id)
            try:
                offer = place_on(self.nodes[node_id], ask, start, end, now)
            except SearchExhaustedError:
                cut.add(node_id)
                continue
            if offer is not None:
                return offer
        found = self._shapes.explain(ask, start, end, looked_at=changing, cut=cut)
        self._refusals[ask, start, end] = found
        return found

    def _candidates(self, ask: Ask, changing: set[int]) -> Iterator[int]:
        if ask.devices:
            # The request with the largest pieces has the fewest places.
            scarce = max(ask.devices, key=lambda device: (device.units, device.count))
            yield from self._shelves.candidates(scarce, ask.vcpu_milli)
        else:
            yield from (node.id for node in self._shapes.hosts(ask))
        yield from sorted(changing)

    def _gpu_changed(self, node: NodeState, gpu: GpuState) -> None:
        self._shelves.gpu_changed(node, gpu)
        self._timeline.note(node)

    def _host_changed(self, node: NodeState) -> None:
        self._shelves.host_changed(node)
        self._shapes.host_changed(node)
        self._timeline.note(node)

    def _let_go(self) -> None:
        self.freed += 1
        self._held -= 1
        if len(self._endings) > 2 * self._held + _STALE_ENDINGS:
            self._endings.keep(
                [
                    *(
                        (h.end, g.id, *key)
                        for _, g in self._gpus.values()
                        for key, h in g.held.items()
                    ),
                    *(
                        (h.end, node.id, holder, HOST)
                        for node in self.nodes.values()
                        for holder, h in node.held.items()
                    ),
                ]
            )
