"""Gangs searched to the end: which members lie together on which node, so that all have a place.

Placing one member after the other is enough where members are alike and each takes a piece of one
kind. Elsewhere what the first takes may be the only place for the last. Here nodes are gone through
one by one, and each is given as many members as could lie there together, in every way that is not
less than another one.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from operator import add, le, sub

from apportion.placement.asks import DOMAIN_OF, Ask
from apportion.placement.findings import LOOKED_AT
from apportion.placement.search import (
    STEPS_MAX,
    Bin,
    SearchExhaustedError,
    assignments,
    bins_of,
    near,
    open_bins,
    selects,
)
from apportion.placement.state import NodeState

Chosen = list[tuple[int, Bin]]
"""The bin of each piece of one member, as (device, bin)."""
Counts = tuple[int, ...]
"""How many members of each kind."""


def is_settled(asks: Sequence[Ask], *, apart: bool) -> bool:
    """Tell whether placing members one after the other finds room wherever there is some.

    So it is for members that are alike and have a node of their own each; and where each takes of
    what is free the same, wherever it is taken.
    """
    kinds = set(asks)
    if len(kinds) > 1:
        return False
    ask = asks[0]
    if apart or not ask.devices:
        return True
    device = ask.devices[0]
    alone = len(ask.devices) == 1 and (device.count == 1 or not ask.apart)
    return alone and (device.cls in ("gpu", "gpu.slot") or (device.cls, device.count) == _SHARE)


_SHARE = ("gpu.share", 1)


def arrange(
    nodes: Iterable[NodeState], asks: Sequence[Ask], window: tuple[int, int], *, apart: bool
) -> list[tuple[int, Chosen]] | None:
    """Return for each member its node and its bins there; None where there is no way.

    ``nodes`` are those that may have room for one of them. Raises SearchExhaustedError where there
    are too many, or they are too intricate, to go through every way.
    """
    kinds = list(dict.fromkeys(asks))
    looked_at = list(islice(nodes, LOOKED_AT + 1))
    if len(looked_at) > LOOKED_AT:
        raise SearchExhaustedError
    steps = iter(range(STEPS_MAX))
    wanted = tuple(asks.count(kind) for kind in kinds)
    sites = [_Site(node, kinds, window, wanted, steps) for node in looked_at]
    sites = [site for site in sites if any(site.most)]
    given = _Sharing(sites, wanted, 1 if apart else len(asks), steps).run()
    if given is None:
        return None
    places: dict[Ask, list[tuple[int, Chosen]]] = {kind: [] for kind in kinds}
    for site, counts in zip(sites, given, strict=False):
        packed = iter(site.packed(counts) or ())
        for kind, count in zip(kinds, counts, strict=True):
            places[kind] += [(site.node.id, next(packed)) for _ in range(count)]
    return [places[ask].pop() for ask in asks]


class _Sharing:
    """Gives members to nodes, node by node; what could not be shared out is not tried again."""

    def __init__(
        self, sites: Sequence["_Site"], wanted: Counts, most: int, steps: Iterator[int]
    ) -> None:
        self._sites = sites
        self._wanted = wanted
        self._most = most
        """How many members one node may have."""
        self._steps = steps
        self._room = [tuple(0 for _ in wanted)]
        """What the nodes from each one on could take at most, if no kind minded the others."""
        for site in reversed(sites):
            self._room.append(tuple(map(add, self._room[-1], site.most)))
        self._room.reverse()

    def run(self) -> list[Counts] | None:
        """Return how many of each kind each node gets, the first ones; None if some always stay.

        It keeps its own stack: a fleet has more nodes than Python has frames.
        """
        failed: set[tuple[int, Counts]] = set()
        given: list[Counts] = []
        left = [self._wanted]
        ways = [self._ways(0, self._wanted)]
        while any(left[-1]):
            counts = next(ways[-1], None)
            if counts is None:
                failed.add((len(given), left.pop()))
                ways.pop()
                if not ways:
                    return None
                given.pop()
                continue
            rest = tuple(map(sub, left[-1], counts))
            if (len(given) + 1, rest) not in failed:
                given.append(counts)
                left.append(rest)
                ways.append(self._ways(len(given), rest))
        return given

    def _ways(self, at: int, left: Counts) -> Iterator[Counts]:
        """Yield what one node could be given of what is left, never less than what was yielded."""
        if at == len(self._sites) or not _within(left, self._room[at]):
            return
        site = self._sites[at]
        yielded: list[Counts] = []
        tops = map(min, left, site.most)
        for counts in product(*(range(top, -1, -1) for top in tops)):
            if next(self._steps, None) is None:
                raise SearchExhaustedError
            if sum(counts) > self._most or any(_within(counts, each) for each in yielded):
                continue
            if site.packed(counts) is not None:
                yielded.append(counts)
                yield counts


def _within(a: Counts, b: Counts) -> bool:
    return all(map(le, a, b))


class _Site:
    """One node: which members can lie there together, and how."""

    def __init__(
        self,
        node: NodeState,
        kinds: Sequence[Ask],
        window: tuple[int, int],
        wanted: Counts,
        steps: Iterator[int],
    ) -> None:
        self.node = node
        self._kinds = kinds
        self._window = window
        self._steps = steps
        devices = tuple(device for kind in kinds for device in kind.devices)
        self._bins = bins_of(node.gpus, Ask(devices), lambda gpu: open_bins(gpu, *window))
        self.most = tuple(map(self._most, kinds, wanted))
        """How many of each kind, of those that are wanted, it could take at most, if no other."""
        self._known: dict[Counts, list[Chosen] | None] = {}

    def packed(self, counts: Counts) -> list[Chosen] | None:
        """Return the bins of so many members of each kind, kind by kind; None without room."""
        if counts not in self._known:
            self._known[counts] = self._pack(counts)
        return self._known[counts]

    def _pack(self, counts: Counts) -> list[Chosen] | None:
        if not self._hosts(counts):
            return None
        members = [kind for n, kind in zip(counts, self._kinds, strict=True) for _ in range(n)]
        return _Packing(members, self._steps).pack(self._bins)

    def _most(self, kind: Ask, wanted: int) -> int:
        """Count the pieces that its GPUs have room for, device by device, and what its host has."""
        most = wanted if self.node.healthy else 0
        for device in kind.devices:
            fitting = (each for each in self._bins if each.takes(device))
            room = sum(min(each.units // device.units, each.holders) for each in fitting)
            most = min(most, room // device.count)
        alone = [tuple(n * (each is kind) for each in self._kinds) for n in range(most + 1)]
        return max(n for n, counts in enumerate(alone) if self._hosts(counts))

    def _hosts(self, counts: Counts) -> bool:
        each = list(zip(counts, self._kinds, strict=True))
        vcpu = sum(n * kind.vcpu_milli for n, kind in each)
        memory = sum(n * kind.memory_mib for n, kind in each)
        return self.node.hosts(vcpu, memory, *self._window)


class _Packing:
    """Members on one node, one after the other, each in every way that leaves something else."""

    def __init__(self, members: Sequence[Ask], steps: Iterator[int]) -> None:
        self._members = members
        self._steps = steps
        self._devices = [device for kind in dict.fromkeys(members) for device in kind.devices]
        self._domains = [DOMAIN_OF[each.together] for each in members]
        self._takers: dict[tuple[int, int | None], int] = {}
        self._failed: set[tuple[int, Hashable]] = set()

    def pack(self, bins: list[Bin], at: int = 0) -> list[Chosen] | None:
        """Return the bins of each member from one on; None where there is no way."""
        if at == len(self._members):
            return []
        state = at, self._state(bins)
        if state in self._failed:
            return None
        ask = self._members[at]
        for domain in near(bins, ask):
            for chosen in assignments(ask, domain, self._steps):
                rest = self.pack(_left(bins, ask, chosen), at + 1)
                if rest is not None:
                    return [chosen, *rest]
        self._failed.add(state)
        return None

    def _state(self, bins: list[Bin]) -> Hashable:
        """Say what is left, GPU by GPU, so that it is the same whichever of like GPUs has it."""
        left: dict[int, list[tuple[int, int, int, int]]] = {}
        places: dict[int, tuple[str, ...]] = {}
        for each in bins:
            units = 0 if each.atom is None else each.atom.units
            room = self._takes(each), each.units, each.holders, units
            left.setdefault(each.gpu.id, []).append(room)
            if each.gpu.id not in places:
                shown = each.gpu.shown_of(None)
                places[each.gpu.id] = tuple(str(shown.get(key)) for key in self._domains if key)
        each_gpu = ((places[gpu], tuple(sorted(rooms))) for gpu, rooms in left.items())
        return tuple(sorted(each_gpu))

    def _takes(self, where: Bin) -> int:
        """Tell which of all devices a bin is for, as bits."""
        key = where.gpu.id, None if where.atom is None else where.atom.id
        if key not in self._takers:
            self._takers[key] = sum(
                1 << number
                for number, device in enumerate(self._devices)
                if where.cls == device.cls and selects(device.selector, where.gpu, where.atom)
            )
        return self._takers[key]


def _left(bins: list[Bin], ask: Ask, chosen: Chosen) -> list[Bin]:
    """Return what of some bins is left beside what a member takes."""
    units: dict[int, int] = {}
    holders: dict[int, int] = {}
    atoms: dict[int, int] = {}
    for device, each in chosen:
        units[id(each)] = units.get(id(each), 0) + ask.devices[device].units
        holders[id(each)] = holders.get(id(each), 0) + 1
        if each.atom is not None:
            atoms[each.gpu.id] = atoms.get(each.gpu.id, 0) | each.atom.units
    left: list[Bin] = []
    for each in bins:
        if each.atom is not None:
            if not each.atom.units & atoms.get(each.gpu.id, 0):
                left.append(each)
        elif id(each) in units:
            rest = replace(
                each,
                units=each.units - units[id(each)],
                holders=each.holders - holders[id(each)],
            )
            if rest.units and rest.holders:
                left.append(rest)
        else:
            left.append(each)
    return left
