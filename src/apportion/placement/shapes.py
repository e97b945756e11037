"""Nodes that are built alike, so that a refusal is explained once a shape and not once a node.

Nodes of one shape have the same GPUs, cut alike, up to what tells single GPUs apart; whether they
could ever serve an ask is the same for all. How many of them lack CPU or memory is read off
sorted lists.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from apportion.placement.asks import Ask
from apportion.placement.points import Points
from apportion.placement.reasons import why_held, why_never, why_not
from apportion.placement.selectors import shared
from apportion.placement.state import GpuState, NodeState
from apportion.placement.verdicts import Verdict, verdict

_ASKS_KEPT: Final = 256
"""For how many device asks the answer of each shape is remembered."""


@dataclass(slots=True, eq=False)
class _Shape:
    """Nodes built alike, and what they have free of CPU and memory."""

    nodes: dict[int, NodeState] = field(default_factory=dict[int, NodeState])
    noted: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    free: Points = field(default_factory=Points)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    def note(self, node: NodeState) -> None:
        """Take up what a node has free of CPU and memory."""
        free = (node.vcpu_free, node.memory_free)
        noted = self.noted.get(node.id)
        if noted == free:
            return
        if noted is not None:
            self.free.remove(*noted, node.id)
        self.free.add(*free, node.id)
        self.noted[node.id] = free

    def unnote(self, node_id: int) -> None:
        """Forget what a node has free."""
        self.free.remove(*self.noted.pop(node_id), node_id)

    def larger(self, ask: Ask) -> int:
        """Count the nodes that are too small for the ask even when nothing is held."""
        return sum(
            count
            for (vcpu, memory), count in self.sizes.items()
            if vcpu < ask.vcpu_milli or memory < ask.memory_mib
        )

    def short(self, ask: Ask) -> int:
        """Count the nodes that lack CPU or memory, if everything held were held at once."""
        return len(self.noted) - self.free.at_least(ask.vcpu_milli, ask.memory_mib)


class Shapes:
    """All nodes of a pool by shape."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._of: dict[int, _Shape] = {}
        self._never: dict[Ask, dict[_Shape, str | None]] = {}
        self._booked: dict[Ask, Verdict] = {}

    @property
    def gpus_most(self) -> int:
        """The most GPUs that a node has."""
        each = (next(iter(shape.nodes.values())) for shape in self._shapes.values())
        return max((len(node.gpus) for node in each), default=0)

    def add(self, node: NodeState) -> None:
        """Take a node in."""
        shape = self._shapes.setdefault(_signature(node), _Shape())
        self._of[node.id] = shape
        shape.nodes[node.id] = node
        shape.sizes[node.vcpu_milli, node.memory_mib] += 1
        shape.note(node)
        self._forget_answers()

    def remove(self, node: NodeState) -> None:
        """Take a node out."""
        shape = self._of.pop(node.id)
        del shape.nodes[node.id]
        shape.sizes[node.vcpu_milli, node.memory_mib] -= 1
        shape.unnote(node.id)
        if not shape.nodes:
            del self._shapes[_signature(node)]
        self._forget_answers()

    def host_changed(self, node: NodeState) -> None:
        """Take up what a node's host has free now."""
        self._of[node.id].note(node)

    def explain(
        self, ask: Ask, start: int, end: int, *, looked_at: Collection[int], cut: Collection[int]
    ) -> Verdict:
        """Count the reasons of a refusal; they add up to the nodes.

        ``looked_at`` are the nodes on which time makes a difference to the window, ``cut`` those
        whose search was cut short.
        """
        if _told_apart(ask):
            codes = Counter(
                "search_exhausted" if node.id in cut else why_not(node, ask, start, end)
                for shape in self._shapes.values()
                for node in shape.nodes.values()
            )
            return verdict(len(self._of), codes)
        if not cut and not ask.vcpu_milli and not ask.memory_mib:
            return self._without_hosts(ask)
        return self._with_hosts(ask, start, end, looked_at, cut)

    def booked(self, ask: Ask, start: int, end: int) -> Iterator[NodeState]:
        """Yield the nodes that a refusal counts as booked."""
        if _told_apart(ask):
            nodes = (node for shape in self._shapes.values() for node in shape.nodes.values())
            yield from (n for n in nodes if why_not(n, ask, start, end) == "units_booked")
            return
        for shape, reason in self._answers(ask).items():
            if reason is None:
                nodes = shape.nodes.values()
                yield from (n for n in nodes if why_held(n, ask, start, end) == "units_booked")

    def _without_hosts(self, ask: Ask) -> Verdict:
        """Count the reasons where only GPUs can be short: they change with the fleet alone."""
        found = self._booked.get(ask)
        if found is None:
            if len(self._booked) >= _ASKS_KEPT:
                self._booked.clear()
            counts: Counter[str] = Counter()
            for shape, reason in self._answers(ask).items():
                counts[reason or "units_booked"] += len(shape.nodes)
            found = self._booked[ask] = verdict(len(self._of), counts)
        return found

    def _with_hosts(
        self, ask: Ask, start: int, end: int, looked_at: Collection[int], cut: Collection[int]
    ) -> Verdict:
        never = self._answers(ask)
        short_of_time = sum(1 for each in cut if never[self._of[each]] is None)
        counts = Counter({"search_exhausted": short_of_time, "units_booked": -short_of_time})
        for shape, reason in never.items():
            if reason is not None:
                counts[reason] += len(shape.nodes)
                continue
            larger, short = shape.larger(ask), shape.short(ask)
            counts["larger_than_any_node"] += larger
            counts["host_resources_short"] += short - larger
            counts["units_booked"] += len(shape.nodes) - short
        relieved = sum(1 for each in looked_at if self._relieved(each, ask, never, start, end))
        counts["host_resources_short"] -= relieved
        counts["units_booked"] += relieved
        return verdict(len(self._of), counts)

    def _relieved(
        self, node_id: int, ask: Ask, never: dict[_Shape, str | None], start: int, end: int
    ) -> bool:
        """Tell whether a node lacks host resources only for what is held at another time."""
        shape = self._of[node_id]
        node = shape.nodes[node_id]
        enough = node.vcpu_free >= ask.vcpu_milli and node.memory_free >= ask.memory_mib
        if enough or never[shape] is not None:
            return False
        return node.hosts(ask.vcpu_milli, ask.memory_mib, start, end)

    def _answers(self, ask: Ask) -> dict[_Shape, str | None]:
        on_gpus = ask.on_gpus
        found = self._never.get(on_gpus)
        if found is None:
            if len(self._never) >= _ASKS_KEPT:
                self._never.clear()
            found = {
                shape: why_never(next(iter(shape.nodes.values())), on_gpus)
                for shape in self._shapes.values()
            }
            self._never[on_gpus] = found
        return found

    def _forget_answers(self) -> None:
        self._never.clear()
        self._booked.clear()


def _told_apart(ask: Ask) -> bool:
    """Tell whether nodes of one shape may differ in whether they could ever serve an ask."""
    named = any(device.selector.on_atom for device in ask.devices)
    return named or (ask.together == "nvlink" and not ask.placed_freely)


def _signature(node: NodeState) -> Hashable:
    return node.healthy, frozenset(Counter(map(_gpu_signature, node.gpus)).items())


def _gpu_signature(gpu: GpuState) -> Hashable:
    pieces = Counter((atom.cls, atom.units, shared(gpu.shown_of(atom))) for atom in gpu.atoms)
    cut = gpu.split, gpu.ruler, gpu.withheld, frozenset(pieces.items())
    return *cut, shared(gpu.shown_of(None)), gpu.bookable
