"""The picture of one pool, kept so that a choice looks at few GPUs however many there are.

GPUs are kept in buckets by what they offer (class, MIG profile, shared attributes), each bucket sorted
by how much is free on the GPU, whoever holds it whenever. A fit found there fits any window. Only where
nothing is found so are the nodes looked at one by one on which time can make a difference: those with a
booking that starts after the window does, or ends before it. The cost of an acceptance is a few binary
searches and of one node's bookings; memory is one entry a GPU (one a profile on MIG GPUs) and one a
booking.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice

from apportion.placement.asks import Ask, DeviceAsk
from apportion.placement.offers import HeldKey, Offer
from apportion.placement.search import SearchExhaustedError, place_on
from apportion.placement.selectors import Attributes, Selector
from apportion.placement.state import GpuState, Held, HostHeld, NodeState
from apportion.placement.verdicts import Verdict, verdict

Group = tuple[tuple[str, str | int], ...]
BucketKey = tuple[str, Group]
Entry = tuple[int, int]
"""(free units, GPU id): sorted, the tightest GPU comes first."""


class PoolIndex:
    """What a pool's nodes and GPUs offer, for placing asks one after the other."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.nodes: dict[int, NodeState] = {}
        self._gpus: dict[int, tuple[NodeState, GpuState]] = {}
        self._buckets: dict[BucketKey, list[Entry]] = {}
        self._entries: dict[int, list[tuple[BucketKey, Entry]]] = {}
        self._hosts: list[tuple[int, int]] = []
        self._host_entry: dict[int, tuple[int, int]] = {}
        self._starts: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._ending: list[tuple[int, int, HeldKey | str]] = []
        self._verdicts: dict[tuple[Ask, int, int], Verdict] = {}
        self.freed = 0
        """Counts how often room was given back: a refusal stands while this stands still."""
        self._verdicts_at = 0
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: NodeState) -> None:
        """Take a node with its GPUs into the picture; nothing may be held on it yet."""
        self.nodes[node.id] = node
        self.freed += 1
        for gpu in node.gpus:
            self._gpus[gpu.id] = (node, gpu)
            self._enter(node, gpu)
        self._enter_host(node)

    def book(self, gpu_id: int, key: HeldKey, held: Held) -> None:
        """Note that units are held; noting it again, or otherwise, replaces what was noted."""
        if gpu_id not in self._gpus:
            return
        node, gpu = self._gpus[gpu_id]
        before = gpu.held.get(key)
        if before == held:
            return
        if before is not None:
            self._forget_times(node.id, before.start, before.end)
            self.freed += 1
        gpu.put(key, held)
        self._note_times(node.id, held.start, held.end)
        heapq.heappush(self._ending, (held.end, gpu_id, key))
        self._enter(node, gpu)

    def free(self, gpu_id: int, key: HeldKey) -> None:
        """Note that units are free again; noting it twice is fine."""
        if gpu_id not in self._gpus:
            return
        node, gpu = self._gpus[gpu_id]
        held = gpu.held.get(key)
        if held is None:
            return
        gpu.drop(key)
        self.freed += 1
        self._forget_times(node.id, held.start, held.end)
        self._enter(node, gpu)

    def book_host(self, node_id: int, holder: str, held: HostHeld) -> None:
        """Note that host resources are held by a reservation."""
        node = self.nodes.get(node_id)
        if node is None or node.held.get(holder) == held:
            return
        before = node.held.get(holder)
        if before is not None:
            self._forget_times(node_id, before.start, before.end)
            self.freed += 1
        node.put(holder, held)
        self._note_times(node_id, held.start, held.end)
        heapq.heappush(self._ending, (held.end, node_id, holder))
        self._enter_host(node)

    def free_host(self, node_id: int, holder: str) -> None:
        """Note that a reservation's host resources are free again."""
        node = self.nodes.get(node_id)
        held = None if node is None else node.held.get(holder)
        if node is None or held is None:
            return
        node.drop(holder)
        self.freed += 1
        self._forget_times(node_id, held.start, held.end)
        self._enter_host(node)

    def advance(self, now: int) -> None:
        """Let go of everything whose window has ended by ``now``."""
        while self._ending and self._ending[0][0] <= now:
            end, place, key = heapq.heappop(self._ending)
            if isinstance(key, str):
                held_host = self.nodes[place].held.get(key) if place in self.nodes else None
                if held_host is not None and held_host.end == end:
                    self.free_host(place, key)
            elif place in self._gpus:
                held = self._gpus[place][1].held.get(key)
                if held is not None and held.end == end:
                    self.free(place, key)

    def place(self, ask: Ask, start: int, end: int, now: int) -> Offer | Verdict:
        """Choose room for the ask in [start, end), or say why there is none.

        What is chosen is not held: the caller books it, here and in the database.
        """
        self.advance(now)
        refused = self._refused(ask, start, end)
        if refused is not None:
            return refused
        exhausted: set[int] = set()
        for node in self._candidates(ask, start, end):
            try:
                offer = place_on(node, ask, start, end, now)
            except SearchExhaustedError:
                exhausted.add(node.id)
                continue
            if offer is not None:
                return offer
        found = self._explain(ask, start, end, exhausted)
        self._verdicts[ask, start, end] = found
        return found

    def node_of(self, gpu_id: int) -> NodeState | None:
        """Return the node of a GPU of this pool."""
        found = self._gpus.get(gpu_id)
        return None if found is None else found[0]

    # -- which nodes to look at, and in which order ---------------------------------------------------

    def _candidates(self, ask: Ask, start: int, end: int) -> Iterator[NodeState]:
        seen: set[int] = set()
        steady = self._by_host(ask) if not ask.devices else self._by_device(ask)
        for node_id in steady:
            if node_id not in seen:
                seen.add(node_id)
                node = self.nodes[node_id]
                if node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
                    yield node
        for node_id in self._changing(start):
            if node_id not in seen:
                seen.add(node_id)
                yield self.nodes[node_id]

    def _by_host(self, ask: Ask) -> Iterator[int]:
        at = bisect_left(self._hosts, (ask.vcpu_milli, -1))
        for free, node_id in islice(self._hosts, at, None):
            node = self.nodes[node_id]
            if free >= ask.vcpu_milli and node.memory_mib - node.memory_used >= ask.memory_mib:
                yield node_id

    def _by_device(self, ask: Ask) -> Iterator[int]:
        # The request with the largest pieces has the fewest places.
        scarce = max(ask.devices, key=lambda device: (device.units, device.count))
        group_part = scarce.selector.on_group()
        slices = [
            islice(entries, bisect_left(entries, (scarce.units, -1)), None)
            for (kind, group), entries in self._buckets.items()
            if kind == scarce.cls and group_part.matches(dict(group))
        ]
        entries = heapq.merge(*slices) if len(slices) > 1 else (slices or [iter(())])[0]
        for _, gpu_id in entries:
            yield self._gpus[gpu_id][0].id

    def _changing(self, start: int) -> Iterator[int]:
        """Yield nodes on which something starts after ``start`` or has ended by then."""
        for _, node_id in islice(self._starts, bisect_left(self._starts, (start, 2**62)), None):
            yield node_id
        for _, node_id in islice(self._ends, 0, bisect_left(self._ends, (start, 2**62))):
            yield node_id

    # -- keeping the buckets --------------------------------------------------------------------------

    def _enter(self, node: NodeState, gpu: GpuState) -> None:
        for key, entry in self._entries.pop(gpu.id, ()):
            bucket = self._buckets[key]
            del bucket[bisect_left(bucket, entry)]
            if not bucket:
                del self._buckets[key]
        if not gpu.bookable or not node.healthy:
            return
        entered: list[tuple[BucketKey, Entry]] = []
        for kind, free, attributes in _offered(gpu):
            key = (kind, _group(attributes))
            entry = (free, gpu.id)
            insort(self._buckets.setdefault(key, []), entry)
            entered.append((key, entry))
        self._entries[gpu.id] = entered

    def _enter_host(self, node: NodeState) -> None:
        old = self._host_entry.pop(node.id, None)
        if old is not None:
            del self._hosts[bisect_left(self._hosts, old)]
        if node.healthy:
            entry = (node.vcpu_milli - node.vcpu_used, node.id)
            insort(self._hosts, entry)
            self._host_entry[node.id] = entry

    def _note_times(self, node_id: int, start: int, end: int) -> None:
        insort(self._starts, (start, node_id))
        insort(self._ends, (end, node_id))

    def _forget_times(self, node_id: int, start: int, end: int) -> None:
        del self._starts[bisect_left(self._starts, (start, node_id))]
        del self._ends[bisect_left(self._ends, (end, node_id))]

    # -- saying why not -------------------------------------------------------------------------------

    def _refused(self, ask: Ask, start: int, end: int) -> Verdict | None:
        """Return what the same ask was told, if nothing was given back since."""
        if self._verdicts_at != self.freed:
            self._verdicts.clear()
            self._verdicts_at = self.freed
        return self._verdicts.get((ask, start, end))

    def _explain(self, ask: Ask, start: int, end: int, exhausted: set[int]) -> Verdict:
        counts: dict[str, int] = {}
        for node in self.nodes.values():
            code = "search_exhausted" if node.id in exhausted else _why_not(node, ask, start, end)
            counts[code] = counts.get(code, 0) + 1
        return verdict(len(self.nodes), counts)


def _group(attributes: Attributes) -> Group:
    return tuple(sorted(attributes.items()))


def _offered(gpu: GpuState) -> Iterator[tuple[str, int, Attributes]]:
    """Yield what a GPU has free in every window: (class, units, attributes of the group)."""
    match gpu.split:
        case "none":
            if gpu.union == 0:
                yield "gpu", 1, gpu.group
        case "slots":
            free = (gpu.capacity & ~gpu.union).bit_count()
            if free:
                yield "gpu.slot", free, gpu.group
        case "shares":
            free = (gpu.capacity & ~gpu.union).bit_count()
            if free and gpu.seats & ~gpu.union:
                yield "gpu.share", free, gpu.group
        case "mig":
            free_atoms = [atom for atom in gpu.atoms if not atom.units & gpu.union]
            for profile in sorted({atom.profile for atom in free_atoms}):
                yield "gpu.mig", len(free_atoms), {**gpu.group, "migProfile": profile}


def _why_not(node: NodeState, ask: Ask, start: int, end: int) -> str:
    """Name the first thing about this node that stands in the way."""
    if not node.healthy:
        return "node_unhealthy"
    for device in ask.devices:
        reason = _device_why_not(node, device)
        if reason is not None:
            return reason
    if ask.vcpu_milli > node.vcpu_milli or ask.memory_mib > node.memory_mib:
        return "larger_than_any_node"
    if not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return "host_resources_short"
    return "units_booked"


def _device_why_not(node: NodeState, device: DeviceAsk) -> str | None:
    usable = [gpu for gpu in node.gpus if gpu.bookable]
    if node.gpus and not usable:
        return "gpu_unbookable"
    if device.cls == "gpu.mig":
        return _instance_why_not(usable, device)
    split = {"gpu": "none", "gpu.slot": "slots", "gpu.share": "shares"}[device.cls]
    of_kind = [gpu for gpu in usable if gpu.split == split]
    if not of_kind:
        return "no_unsplit_gpu" if device.cls == "gpu" and usable else "gpu_unbookable"
    matching = [g for g in of_kind if device.selector.matches({**g.group, **g.attributes})]
    if not matching:
        return "selector_matches_nothing"
    room = sum(gpu.ruler // device.units for gpu in matching)
    if device.cls == "gpu.share":
        room = sum(1 for gpu in matching if gpu.ruler >= device.units)
    return "larger_than_any_node" if room < device.count else None


def _instance_why_not(usable: list[GpuState], device: DeviceAsk) -> str | None:
    profile = Selector(tuple(e for e in device.selector.expressions if e.key == "migProfile"))
    atoms = [(gpu, atom) for gpu in usable for atom in gpu.atoms]
    named = [pair for pair in atoms if profile.matches(pair[1].attributes)]
    if not named:
        return "profile_not_in_layout"
    matching = [
        atom
        for gpu, atom in named
        if device.selector.matches({**gpu.group, **gpu.attributes, **atom.attributes})
    ]
    if not matching:
        return "selector_matches_nothing"
    return "larger_than_any_node" if len(matching) < device.count else None
