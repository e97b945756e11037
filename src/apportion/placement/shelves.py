"""Where there is room: nodes on shelves, by what their GPUs have free in every window.

A kind is a class with the attributes that its GPUs share; a selector on those is decided once a
kind. Each kind has a shelf for every (level, count): the nodes on which exactly ``count`` GPUs of
the kind have ``level`` units free, by the CPU that their host has free. So the tightest GPU that
fits is found on the lowest shelf, on the node with the fewest such GPUs and the least CPU, and
nodes whose host is used up are skipped without being looked at.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from apportion.placement.asks import CLASS_OF, AtomClass, DeviceAsk
from apportion.placement.selectors import Attributes, Selector, shared
from apportion.placement.state import FOREVER, NEVER, GpuState, NodeState

_SELECTORS_KEPT = 256
"""How many selectors' kinds are remembered; beyond that, all are worked out again."""

Shelf = list[tuple[int, int]]
"""(free CPU in thousandths, node id), sorted."""


@dataclass(slots=True, eq=False)
class _Kind:
    """Pieces that selectors on shared attributes cannot tell apart."""

    cls: AtomClass
    attributes: Attributes
    shelves: dict[tuple[int, int], Shelf] = field(default_factory=dict[tuple[int, int], Shelf])


Level = tuple[_Kind, int]


@dataclass(slots=True, eq=False)
class _Standing:
    """A node's free CPU, what each GPU offers, and how many GPUs are at each level."""

    vcpu: int
    kinds: dict[int, dict[int | None, _Kind]]
    offers: dict[int, list[Level]] = field(default_factory=dict[int, list[Level]])
    counts: dict[Level, int] = field(default_factory=dict[Level, int])


class Shelves:
    """All GPUs of a pool that can be booked, in order of what is free."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[AtomClass, frozenset[tuple[str, str | int]]], _Kind] = {}
        self._standings: dict[int, _Standing] = {}
        self._matching: dict[tuple[AtomClass, Selector], list[_Kind]] = {}

    def add(self, node: NodeState) -> None:
        """Put a node on the shelves where its GPUs belong."""
        self._matching.clear()
        gpus = [gpu for gpu in node.gpus if gpu.bookable] if node.healthy else []
        kinds = {gpu.id: self._kinds_of(gpu) for gpu in gpus}
        self._standings[node.id] = _Standing(node.vcpu_free, kinds)
        for gpu in gpus:
            self.gpu_changed(node, gpu)

    def remove(self, node: NodeState) -> None:
        """Take a node off all shelves."""
        standing = self._standings.pop(node.id)
        for level, count in standing.counts.items():
            _take(level, count, (standing.vcpu, node.id))

    def gpu_changed(self, node: NodeState, gpu: GpuState) -> None:
        """Move a node whose GPU has other room than before."""
        standing = self._standings[node.id]
        if gpu.id not in standing.kinds:
            return
        before, after = standing.offers.get(gpu.id, []), _offers(gpu, standing.kinds[gpu.id])
        if before == after:
            return
        standing.offers[gpu.id] = after
        changes = [(level, -1) for level in before] + [(level, 1) for level in after]
        entry = (standing.vcpu, node.id)
        for level, by in changes:
            count = standing.counts.pop(level, 0)
            if count:
                _take(level, count, entry)
            if count + by:
                _put(level, count + by, entry)
                standing.counts[level] = count + by

    def host_changed(self, node: NodeState) -> None:
        """Move a node whose host has other CPU free than before."""
        standing = self._standings[node.id]
        if standing.vcpu == node.vcpu_free:
            return
        for level, count in standing.counts.items():
            _take(level, count, (standing.vcpu, node.id))
            _put(level, count, (node.vcpu_free, node.id))
        standing.vcpu = node.vcpu_free

    def candidates(self, device: DeviceAsk, vcpu_milli: int) -> Iterator[int]:
        """Yield the nodes that may have room for one device ask in every window; some twice.

        No other node has. Selectors on single GPUs are not looked at.
        """
        kinds = self._matching_kinds(device)
        shelves = [
            (key, shelf)
            for kind in kinds
            for key, shelf in kind.shelves.items()
            if key[0] >= device.units and shelf[-1][0] >= vcpu_milli
        ]
        shelves.sort(key=itemgetter(0))
        for _, shelf in shelves:
            for _, node_id in islice(shelf, bisect_left(shelf, (vcpu_milli, -1)), None):
                if device.count == 1 or self._pieces(node_id, kinds, device) >= device.count:
                    yield node_id

    def _pieces(self, node_id: int, kinds: list[_Kind], device: DeviceAsk) -> int:
        """Return how many pieces a node has room for at most, by what its GPUs have free."""
        counts = self._standings[node_id].counts.items()
        return sum(
            count * (level // device.units) for (kind, level), count in counts if kind in kinds
        )

    def _matching_kinds(self, device: DeviceAsk) -> list[_Kind]:
        wanted = (device.cls, device.selector)
        found = self._matching.get(wanted)
        if found is None:
            found = [
                kind
                for kind in self._kinds.values()
                if kind.cls == device.cls and device.selector.matches_group(kind.attributes)
            ]
            if len(self._matching) >= _SELECTORS_KEPT:
                self._matching.clear()
            self._matching[wanted] = found
        return found

    def _kinds_of(self, gpu: GpuState) -> dict[int | None, _Kind]:
        """Return the kind of a GPU (under None) and of each of its instances, by atom."""
        return {
            atom: self._kind(CLASS_OF[gpu.split], attributes)
            for atom, attributes in gpu.shown.items()
            if (atom is None) == (gpu.split != "mig")
        }

    def _kind(self, cls: AtomClass, attributes: Attributes) -> _Kind:
        key = (cls, shared(attributes))
        return self._kinds.setdefault(key, _Kind(cls, dict(key[1])))


def _offers(gpu: GpuState, kinds: dict[int | None, _Kind]) -> list[Level]:
    """Return what a GPU has free in every window: units, or atoms where one of the kind is."""
    if not gpu.idle:
        return []
    if gpu.split != "mig":
        return [(kinds[None], gpu.idle)]
    free = dict.fromkeys(kinds[atom.id] for atom in gpu.free_atoms(NEVER, FOREVER))
    return [(kind, gpu.idle) for kind in free]


def _put(level: Level, count: int, entry: tuple[int, int]) -> None:
    kind, free = level
    insort(kind.shelves.setdefault((free, count), []), entry)


def _take(level: Level, count: int, entry: tuple[int, int]) -> None:
    kind, free = level
    shelf = kind.shelves[free, count]
    if len(shelf) == 1:
        del kind.shelves[free, count]
    else:
        del shelf[bisect_left(shelf, entry)]
