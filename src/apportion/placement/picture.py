"""The picture of one pool: what there is, who has what, and where there is room.

What changes is noted once, in each of the orders that a choice is made from: nodes on shelves by
what is free in every window (see `shelves`), GPUs in calendars by who has what when (see
`calendar`), nodes by shape for what a refusal counts (see `shapes`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from apportion.placement.asks import Ask
from apportion.placement.calendar import Calendars
from apportion.placement.names import Names
from apportion.placement.offers import PARTITION, HeldKey
from apportion.placement.shapes import Shapes
from apportion.placement.shelves import Shelves
from apportion.placement.state import FOREVER, NEVER, GpuState, Held, HostHeld, NodeState
from apportion.placement.timeline import HOST, Endings, endings_of
from apportion.placement.topology import Topology, topology
from apportion.placement.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Lifted:
    """What a holder had; ``freed`` is how often something had been given back before."""

    holder: str
    freed: int
    pieces: list[tuple[int, HeldKey, Held]]
    hosts: list[tuple[int, HostHeld]]


class Picture:
    """What a pool's nodes and GPUs offer, as it comes and goes."""

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
        """What was refused, with its window, since room was given back."""
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

    @property
    def stale_since(self) -> int | None:
        """From when on nobody hears of the first of the nodes that are stale; None without one."""
        since = (node.stale_since for node in self.nodes.values())
        return min((each for each in since if each is not None), default=None)

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
        if before is not None:
            if before == held:
                return
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
        if before is not None:
            if before == held:
                return
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

    def lift(self, holder: str, gpu_ids: Iterable[int], node_ids: Iterable[int]) -> Lifted:
        """Take out what somebody has on some GPUs and hosts, to see what would be without it."""
        gpus = [self._gpus[each] for each in gpu_ids if each in self._gpus]
        hosts = [self.nodes[each] for each in node_ids if each in self.nodes]
        lifted = Lifted(
            holder,
            self.freed,
            [
                (gpu.id, key, held)
                for gpu in gpus
                for key, held in gpu.held.items()
                if key[0] == holder
            ],
            [(node.id, node.held[holder]) for node in hosts if holder in node.held],
        )
        for gpu_id, key, _ in lifted.pieces:
            self.free(gpu_id, key)
        for node_id, _ in lifted.hosts:
            self.free_host(node_id, holder)
        return lifted

    def put_back(self, lifted: Lifted) -> None:
        """Note again what was taken out; nothing of that was given back."""
        for gpu_id, key, held in lifted.pieces:
            self.book(gpu_id, key, held)
        for node_id, held in lifted.hosts:
            self.book_host(node_id, lifted.holder, held)
        # What was refused beside what was tried meanwhile may fit now.
        self._refusals.clear()

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

    def _timely(self, start: int, end: int) -> bool:
        """Tell whether anything held starts after a window, or ends before it."""
        return self._last_start >= end or self._endings.first <= start

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
        self._held += 1
        if ending[0] >= FOREVER:
            return
        self._endings.add(ending)
        # What was freed early leaves its end behind; without this, those would pile up for ever.
        if len(self._endings) > 2 * self._held + 64:
            nodes = self.nodes.values()
            self._endings.keep(each for node in nodes for each in endings_of(node))
