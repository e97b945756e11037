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
from apportion.placement.offers import PARTITION
from apportion.placement.points import Points
from apportion.placement.reasons import why_held, why_never, why_not
from apportion.placement.selectors import shared
from apportion.placement.skyline import FOREVER
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
    """All nodes of a pool by shape, and those that are to be cut otherwise."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._of: dict[int, _Shape] = {}
        self._never: dict[Ask, dict[_Shape, str | None]] = {}
        self._booked: dict[Ask, Verdict] = {}
        self._recut: dict[int, tuple[int, int]] = {}
        """Of nodes all of whose GPUs are kept for that: from when on, and until when."""

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
        self.recut_changed(node)

    def remove(self, node: NodeState) -> None:
        """Take a node out."""
        shape = self._of.pop(node.id)
        del shape.nodes[node.id]
        self._recut.pop(node.id, None)
        shape.sizes[node.vcpu_milli, node.memory_mib] -= 1
        shape.unnote(node.id)
        if not shape.nodes:
            del self._shapes[_signature(node)]
        self._forget_answers()

    def host_changed(self, node: NodeState) -> None:
        """Take up what a node's host has free now."""
        self._of[node.id].note(node)

    def recut_changed(self, node: NodeState) -> None:
        """Take up from when on all GPUs of a node are kept to be cut otherwise."""
        kept = [_kept(gpu) for gpu in node.gpus if gpu.bookable]
        windows = [each for each in kept if each is not None]
        if windows and len(windows) == len(kept):
            starts, ends = zip(*windows, strict=True)
            self._recut[node.id] = max(starts), min(ends)
        else:
            self._recut.pop(node.id, None)

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
            found = verdict(len(self._of), codes)
        elif not cut and not ask.vcpu_milli and not ask.memory_mib:
            found = self._without_hosts(ask)
        else:
            found = self._with_hosts(ask, start, end, looked_at, cut)
        return self._with_recut(found, ask, start, end, cut)

    def booked(self, ask: Ask, start: int, end: int) -> Iterator[NodeState]:
        """Yield the nodes that a refusal counts as booked."""
        if _told_apart(ask):
            nodes = (node for shape in self._shapes.values() for node in shape.nodes.values())
            yield from (
                n
                for n in nodes
                if why_not(n, ask, start, end) == "units_booked"
                and not self._is_recut(n.id, start, end)
            )
            return
        for shape, reason in self._answers(ask).items():
            if reason is None:
                nodes = shape.nodes.values()
                yield from (
                    n
                    for n in nodes
                    if why_held(n, ask, start, end) == "units_booked"
                    and not self._is_recut(n.id, start, end)
                )

    def _with_recut(
        self, found: Verdict, ask: Ask, start: int, end: int, cut: Collection[int]
    ) -> Verdict:
        """Tell those apart that a window finds booked because they are to be cut otherwise by then.

        Whoever else has something there is gone by that time: waiting for them would not help.
        """
        near = [each for each in self._recut if self._is_recut(each, start, end)]
        nodes = (self._of[each].nodes[each] for each in near if each not in cut)
        recut = sum(self._is_booked(node, ask, start, end) for node in nodes)
        if not recut:
            return found
        counts = Counter({each.code: each.count for each in found.reasons})
        counts.update({"units_booked": -recut, "layout_change_scheduled": recut})
        return verdict(found.nodes, counts)

    def _is_booked(self, node: NodeState, ask: Ask, start: int, end: int) -> bool:
        """Tell whether a refusal counts a node as booked."""
        if _told_apart(ask):
            return why_not(node, ask, start, end) == "units_booked"
        never = self._answers(ask)[self._of[node.id]]
        return never is None and why_held(node, ask, start, end) == "units_booked"

    def _is_recut(self, node_id: int, start: int, end: int) -> bool:
        since, until = self._recut.get(node_id, (FOREVER, FOREVER))
        return since < end and start < until

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


def _kept(gpu: GpuState) -> tuple[int, int] | None:
    """Return for what window a GPU is kept to be cut otherwise; None where it is not."""
    changes = (held for (holder, _), held in gpu.held.items() if holder.startswith(PARTITION))
    return next(((held.start, held.end) for held in changes), None)


def _told_apart(ask: Ask) -> bool:
    """Tell whether nodes of one shape may differ in whether they could ever serve an ask."""
    named = any(device.selector.on_atom for device in ask.devices)
    return named or (ask.together == "nvlink" and not ask.placed_freely)


def _signature(node: NodeState) -> Hashable:
    well = node.healthy, node.stale_since is not None
    return *well, frozenset(Counter(map(_gpu_signature, node.gpus)).items())


def _gpu_signature(gpu: GpuState) -> Hashable:
    pieces = Counter((atom.cls, atom.units, shared(gpu.shown_of(atom))) for atom in gpu.atoms)
    cut = gpu.split, gpu.ruler, gpu.withheld, frozenset(pieces.items())
    return *cut, shared(gpu.shown_of(None)), gpu.bookable
