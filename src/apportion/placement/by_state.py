"""A batch of single pieces as a question for CP-SAT about states of GPUs, not about GPUs.

Where every request is one piece, and its host has enough, it does not matter on which node a
GPU stands: GPUs that have the same left for the kinds that are asked for are told apart by nothing.
So a fleet of any size is a few hundred states, and what is proven holds for the whole fleet.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from apportion.placement.asks import Ask
from apportion.placement.offers import Offer
from apportion.placement.packing import Chosen, Kind, Packed, units_of
from apportion.placement.search import STEPS_MAX, Bin, assign, open_bins
from apportion.placement.state import GpuState, NodeState
from apportion.placement.verdicts import Verdict
from apportion.solving import minimise, new_model
from apportion.solving.flows import Counts, Filling, Flow
from apportion.solving.patterns import Patterns

Rule = tuple[tuple[int, ...], ...]
"""Of each kind: the masks of its free places on a MIG GPU, or else the units of a piece, if any."""
Left = frozenset[int] | tuple[int, int]
"""The masks that can be taken by now in one way or another, or how many units and holders."""


class _Sort(NamedTuple):
    """What GPUs have left for the kinds: alike GPUs have it alike."""

    rule: Rule
    left: Left


def is_single(ask: Ask) -> bool:
    """Tell whether an ask is one piece, and no name decides where it lies."""
    return (
        len(ask.devices) == 1 and ask.devices[0].count == 1 and not ask.devices[0].selector.on_atom
    )


def pack_by_state(
    nodes: Iterable[NodeState],
    kinds: Sequence[Kind],
    window: tuple[int, int, int],
    known: Sequence[Offer | Verdict],
    time_limit: timedelta,
) -> Packed | None:
    """Place as many asks as can be, on as few GPUs as can be; None where nothing was found.

    Hosts are taken to have enough: where they have not, the proof holds all the same. Raises
    TooManyPatternsError where the states are too many.
    """
    fleet = _Fleet(nodes, kinds, window)
    wanted = tuple(len(kind.numbers) for kind in kinds)
    fillings = fleet.known(known)
    all_fit = sum(sum(each.counts) for each in fillings) == sum(wanted)
    patterns = Patterns(len(kinds), fleet.sorts, _take)
    most = [min(len(gpus), sum(wanted)) for gpus in fleet.sorts.values()]
    model = new_model()
    flow = Flow(model, patterns, most, wanted, fillings, all_fit=all_fit)
    # Placing one ask more is worth more than all GPUs.
    price = sum(wanted) + 1
    model.minimize(sum(flow.gpus) - price * sum(flow.placed))
    solved = minimise(model, time_limit)
    if solved is None:
        return None
    chosen = fleet.chosen(flow.filled(solved))
    return Packed(chosen, solved.optimal, solved.bound + price * len(chosen))


def _take(sort: _Sort, kind: int) -> _Sort | None:
    rule, left = sort
    if isinstance(left, frozenset):
        after = frozenset(mask | place for mask in left for place in rule[kind] if not mask & place)
        return _Sort(rule, after) if after else None
    units, holders = left
    for piece in rule[kind]:
        if piece <= units and holders:
            return _Sort(rule, (units - piece, holders - 1))
    return None


class _Fleet:
    """The GPUs that have room for something, by what they have left."""

    def __init__(
        self, nodes: Iterable[NodeState], kinds: Sequence[Kind], window: tuple[int, int, int]
    ) -> None:
        self._kinds = kinds
        self._window = window[:2]
        self._node_of: dict[int, int] = {}
        self._rules: dict[tuple[object, object], _Sort | None] = {}
        self.sorts: defaultdict[_Sort, list[GpuState]] = defaultdict(list)
        for node in nodes:
            if node.healthy:
                for gpu in node.gpus:
                    self._add(node, gpu)

    def _add(self, node: NodeState, gpu: GpuState) -> None:
        if gpu.state is None or not gpu.bookable:
            return
        # GPUs of one model with the same held are alike: what fits is asked of the first.
        start, end = self._window
        held = gpu.busy(start, end) if gpu.split == "mig" else gpu.room(start, end)
        likeness = (gpu.state.model, held)
        if likeness not in self._rules:
            self._rules[likeness] = self._sort(gpu)
        sort = self._rules[likeness]
        if sort is not None:
            self.sorts[sort].append(gpu)
            self._node_of[gpu.id] = node.id

    def _sort(self, gpu: GpuState) -> _Sort | None:
        bins = list(open_bins(gpu, *self._window))
        devices = [kind.ask.devices[0] for kind in self._kinds]
        takers = [[each for each in bins if each.takes(device)] for device in devices]
        if not any(takers):
            return None
        if gpu.split == "mig":
            masks = (sorted({_mask(gpu, each) for each in fitting}) for fitting in takers)
            return _Sort(tuple(map(tuple, masks)), frozenset({0}))
        units = ((device.units,) * len(fits) for device, fits in zip(devices, takers, strict=True))
        return _Sort(tuple(units), (bins[0].units, bins[0].holders))

    def known(self, answers: Sequence[Offer | Verdict]) -> list[Filling]:
        """Say what each GPU holds in the answer that is known."""
        counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for at, kind in enumerate(self._kinds):
            for number in kind.numbers:
                answer = answers[number]
                if isinstance(answer, Offer):
                    counts[answer.pieces[0].gpu][at] += 1
        return [
            Filling(start, tuple(counts[gpu.id][at] for at in range(len(self._kinds))))
            for start, gpus in enumerate(self.sorts.values())
            for gpu in gpus
            if gpu.id in counts
        ]

    def chosen(self, fillings: Iterable[Filling]) -> dict[int, Chosen]:
        """Give the asks of each kind, in their order, to GPUs in the fleet's."""
        left = [iter(kind.numbers) for kind in self._kinds]
        gpus = [iter(gpus) for gpus in self.sorts.values()]
        chosen: dict[int, Chosen] = {}
        for filling in fillings:
            gpu = next(gpus[filling.start])
            for kind, each in self._assigned(gpu, filling.counts):
                atom = None if each.atom is None else each.atom.id
                place = (0, gpu.id, atom)
                chosen[next(left[kind])] = Chosen(self._node_of[gpu.id], (place,))
        return chosen

    def _assigned(self, gpu: GpuState, counts: Counts) -> list[tuple[int, Bin]]:
        """Find a place on one GPU for each piece that it was found to have room for."""
        pieces = [kind for kind, count in enumerate(counts) for _ in range(count)]
        ask = Ask(tuple(self._kinds[kind].ask.devices[0] for kind in pieces))
        places = assign(ask, list(open_bins(gpu, *self._window)), STEPS_MAX) or []
        return [(pieces[device], each) for device, each in places]


def _mask(gpu: GpuState, each: Bin) -> int:
    return sum(1 << unit for unit in units_of(gpu, each))
