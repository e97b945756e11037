"""A batch of asks on the nodes of a pool as a question for CP-SAT.

For each node and kind of ask there is a number of how many lie there, and for each piece of the
kind and each bin of the node how many of these lie in it. Asks that are alike are one kind; asks
whose pieces have to lie together or apart are each of a kind of their own, so that the pieces of
one can be told from those of another.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from apportion.placement.asks import Ask
from apportion.placement.offers import Offer
from apportion.placement.search import Bin, bins_of, near, open_bins
from apportion.placement.state import GpuState, NodeState
from apportion.placement.verdicts import Verdict
from apportion.solving import Solved, minimise, new_model

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Place = tuple[int, int, int | None]
"""Of a piece: its device, the GPU, and the atom where the piece is one."""


class Chosen(NamedTuple):
    """Where an ask is to lie; its places in the order of its devices."""

    node: int
    places: tuple[Place, ...]


class Packed(NamedTuple):
    """Where each ask is to lie that has a place, and the proof (see `exact.Batch`)."""

    chosen: Mapping[int, Chosen]
    optimal: bool
    bound: int


class Kind(NamedTuple):
    """Asks that are alike, by their numbers in the batch."""

    ask: Ask
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Site:
    """Bins of one node that can serve asks of a kind, and how many of these they do serve."""

    node: NodeState
    kind: Kind
    count: "cp_model.IntVar"
    pieces: dict[tuple[int, int], "cp_model.IntVar"]
    """By device and the bin's place in ``bins``."""
    bins: list[Bin]


def pack(
    nodes: Sequence[NodeState],
    kinds: Sequence[Kind],
    window: tuple[int, int, int],
    known: Sequence[Offer | Verdict],
    time_limit: timedelta,
) -> Packed | None:
    """Place as many asks as can be, on as few GPUs as can be; None where nothing was found."""
    model = _Model(nodes, kinds, window, known)
    solved = minimise(model.model, time_limit)
    return None if solved is None else model.read(solved)


class _Model:
    def __init__(
        self,
        nodes: Sequence[NodeState],
        kinds: Sequence[Kind],
        window: tuple[int, int, int],
        known: Sequence[Offer | Verdict],
    ) -> None:
        self.model = new_model()
        self._window = window[:2]
        self._sites: list[_Site] = []
        self._touched: list[cp_model.IntVar] = []
        self._known = _Known(kinds, known)
        for node in nodes:
            if node.healthy:
                self._add_node(node, kinds)
        # Placing one ask more is worth more than all GPUs.
        self._price = len(self._touched) + 1
        placed: list[cp_model.IntVar] = []
        for kind in kinds:
            counts = [site.count for site in self._sites if site.kind == kind]
            self.model.add(sum(counts) <= len(kind.numbers))
            placed += counts
        self.model.minimize(sum(self._touched) - self._price * sum(placed))

    def read(self, solved: Solved) -> Packed:
        """Say where each ask is to lie; those of a kind get theirs in their order."""
        chosen: dict[int, Chosen] = {}
        left = {site.kind: iter(site.kind.numbers) for site in self._sites}
        for site in self._sites:
            for places in _dealt(site, solved):
                chosen[next(left[site.kind])] = Chosen(site.node.id, places)
        return Packed(chosen, solved.optimal, solved.bound + self._price * len(chosen))

    # -- one node ----------------------------------------------------------------------------------

    def _add_node(self, node: NodeState, kinds: Sequence[Kind]) -> None:
        start, end = self._window
        sites: list[_Site] = []
        for kind in kinds:
            ask = kind.ask
            if node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
                bins = bins_of(node.gpus, ask, lambda gpu: open_bins(gpu, start, end))
                for domain in near(bins, ask):
                    sites += self._site(node, kind, domain)
        vcpu, memory = node.room(start, end)
        self.model.add(sum(site.kind.ask.vcpu_milli * site.count for site in sites) <= vcpu)
        self.model.add(sum(site.kind.ask.memory_mib * site.count for site in sites) <= memory)
        for gpu in node.gpus:
            self._add_gpu(gpu, sites)
        self._sites += sites

    def _site(self, node: NodeState, kind: Kind, bins: list[Bin]) -> Iterator[_Site]:
        """Add the numbers for a kind of ask on some bins of a node, where its pieces can fit."""
        ask, most = kind.ask, len(kind.numbers)
        fits = [
            [at for at, each in enumerate(bins) if each.takes(device)] for device in ask.devices
        ]
        if not all(fits):
            return
        count = self._number(most, self._known.asks(kind, node, bins))
        site = _Site(node, kind, count, {}, bins)
        for device, fitting in enumerate(fits):
            for at in fitting:
                known = self._known.pieces(kind, device, bins[at])
                number = self._number(most * ask.devices[device].count, known)
                site.pieces[device, at] = number
                if ask.devices[device].cls == "gpu.share":
                    # Pieces of one share ask lie on GPUs of their own.
                    self.model.add(number <= count)
            wanted = ask.devices[device].count * count
            self.model.add(sum(site.pieces[device, at] for at in fitting) == wanted)
        if ask.apart:
            self._keep_apart(site)
        yield site

    def _keep_apart(self, site: _Site) -> None:
        on_gpu: defaultdict[int, list[cp_model.IntVar]] = defaultdict(list)
        for (_, at), number in site.pieces.items():
            on_gpu[site.bins[at].gpu.id].append(number)
        for numbers in on_gpu.values():
            self.model.add(sum(numbers) <= site.count)

    def _add_gpu(self, gpu: GpuState, sites: Sequence[_Site]) -> None:
        """Let no instant of a GPU be over-full, and count it where anything lies on it."""
        here = [
            (site.bins[at], site.kind.ask.devices[device].units, number)
            for site in sites
            for (device, at), number in site.pieces.items()
            if site.bins[at].gpu is gpu
        ]
        if not here:
            return
        touched = self._number(1, gpu.id in self._known.gpus)
        self._touched.append(touched)
        if gpu.split == "mig":
            over: defaultdict[int, list[cp_model.IntVar]] = defaultdict(list)
            for each, _, number in here:
                for unit in units_of(gpu, each):
                    over[unit].append(number)
            for numbers in over.values():
                self.model.add(sum(numbers) <= touched)
            return
        room = here[0][0]
        self.model.add(sum(units * number for _, units, number in here) <= room.units * touched)
        self.model.add(sum(number for _, _, number in here) <= room.holders * touched)

    def _number(self, most: int, known: int) -> "cp_model.IntVar":
        number = self.model.new_int_var(0, most, "")
        self.model.add_hint(number, known)
        return number


class _Known:
    """How many asks and pieces lie where in the answer that is known."""

    def __init__(self, kinds: Sequence[Kind], answers: Sequence[Offer | Verdict]) -> None:
        self.gpus: set[int] = set()
        self._offers: dict[Kind, list[Offer]] = {}
        self._pieces: Counter[tuple[Kind, int, int, int | None]] = Counter()
        for kind in kinds:
            placed = (answers[number] for number in kind.numbers)
            offers = [answer for answer in placed if isinstance(answer, Offer)]
            self._offers[kind] = offers
            for piece in (piece for offer in offers for piece in offer.pieces):
                self.gpus.add(piece.gpu)
                self._pieces[kind, piece.device, piece.gpu, piece.atom] += 1

    def asks(self, kind: Kind, node: NodeState, bins: Iterable[Bin]) -> int:
        """Count the asks of a kind on bins of a node."""
        gpus = {each.gpu.id for each in bins}
        return sum(
            offer.node == node.id and all(piece.gpu in gpus for piece in offer.pieces)
            for offer in self._offers[kind]
        )

    def pieces(self, kind: Kind, device: int, where: Bin) -> int:
        """Count the pieces of a kind's device in a bin."""
        atom = where.gpu.atom if where.atom is None else where.atom.id
        return self._pieces[kind, device, where.gpu.id, atom]


def kinds_of(asks: Sequence[Ask]) -> list[Kind]:
    """Sort asks by what they ask for."""
    kinds: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, ask in enumerate(asks):
        kinds[ask, None if ask.placed_freely else number].append(number)
    return [Kind(asks[numbers[0]], tuple(numbers)) for numbers in kinds.values()]


def units_of(gpu: GpuState, each: Bin) -> Iterator[int]:
    """Yield the units of a MIG GPU that a piece takes; a whole one takes every atom's."""
    mask = 0
    for atom in gpu.atoms:
        if each.atom is atom or (each.atom is not None and each.atom.cls == "gpu"):
            mask |= atom.units
    return (unit for unit in range(mask.bit_length()) if mask >> unit & 1)


def _dealt(site: _Site, solved: Solved) -> Iterator[tuple[Place, ...]]:
    """Share out the pieces counted at a site to its asks, each as many of a device as it wants.

    Dealt in turn, pieces in one bin go to asks that differ where there are no more than asks.
    """
    count = solved.values[site.count.index]
    shares: list[list[Place]] = [[] for _ in range(count)]
    dealt: Counter[int] = Counter()
    for (device, at), number in site.pieces.items():
        each = site.bins[at]
        place = (device, each.gpu.id, None if each.atom is None else each.atom.id)
        for _ in range(solved.values[number.index]):
            shares[dealt[device] % count].append(place)
            dealt[device] += 1
    return (tuple(places) for places in shares)
