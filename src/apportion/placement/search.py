"""Exact search on one node: all pieces of an ask, or nothing.

What pieces are taken from are bins: a whole GPU or a MIG instance has room for one piece, a
slotted or shared GPU for as many as its count allows (which units they get is dealt at the end,
see `colouring`). Asking for several pieces is then a packing of pieces into bins, whatever the
class.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from apportion.placement.asks import CLASS_OF, DOMAIN_OF, Ask, AtomClass, DeviceAsk
from apportion.placement.colouring import deal
from apportion.placement.offers import Move, Offer, Piece
from apportion.placement.selectors import Selector
from apportion.placement.state import SEATS, AtomState, GpuState, NodeState
from apportion.placement.topology import nearest
from apportion.quantities.units import WHOLE

STEPS_MAX: Final = 20_000
"""Tries before a node is given up: different pieces on many GPUs are a packing problem."""
STEPS_MIN: Final = 200
"""Tries that a node gets even after many others were given up."""


def steps_after(cut: int) -> int:
    """Return how many tries a node gets; each one that was cut short halves them for the next.

    A fleet of like nodes would otherwise cost its size times the most that one node may.
    """
    return max(STEPS_MAX >> cut, STEPS_MIN)


class SearchExhaustedError(Exception):
    """The search on a node was cut short; the node may or may not have room."""


@dataclass(slots=True, eq=False)
class Bin:
    """Room for ``units`` units in at most ``holders`` pieces, on a GPU with ``left`` to give."""

    gpu: GpuState
    atom: AtomState | None
    units: int
    holders: int
    left: int

    @property
    def cls(self) -> AtomClass:
        """The class of pieces that it has room for."""
        return CLASS_OF[self.gpu.split] if self.atom is None else self.atom.cls

    def takes(self, device: DeviceAsk) -> bool:
        """Tell whether a piece of a device ask can lie here."""
        return (
            self.units >= device.units
            and self.cls == device.cls
            and selects(device.selector, self.gpu, self.atom)
        )


def place_on(
    node: NodeState, ask: Ask, start: int, end: int, now: int, *, steps: int
) -> Offer | None:
    """Place every piece of the ask on this node for [start, end), or return None.

    Raises SearchExhaustedError after ``steps`` tries. The node is left as it was.
    """
    if not node.healthy or not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return None
    bins = bins_of(node.gpus, ask, lambda gpu: open_bins(gpu, start, end))
    for domain in near(bins, ask):
        chosen = assign(ask, domain, steps)
        if chosen is not None:
            return offer_in(node, ask, chosen, (start, end, now))
    return None


def offer_of(
    node: NodeState,
    device: DeviceAsk,
    gpus: Sequence[GpuState],
    part: int | None,
    *,
    free: int,
    window: tuple[int, int, int],
) -> Offer | None:
    """Take one piece of each of these GPUs, which have room for ``free`` in every window.

    None comes back where a picture that lags behind the truth holds more than there is.
    """
    pieces: list[Piece] = []
    moves: list[Move] = []
    left = 0
    for gpu in gpus:
        if part is not None:
            atom = gpu.atoms[part]
            pieces.append(Piece(0, gpu.id, atom.booked, atom.id, gpu.generation))
            left += free - 1
        elif gpu.split == "none":
            pieces.append(Piece(0, gpu.id, -1, gpu.atom, gpu.generation))
        else:
            dealt = deal(gpu, (device.units,), *window)
            if dealt is None:
                return None
            pieces.append(Piece(0, gpu.id, dealt.units[0], None, gpu.generation))
            moves.extend(Move(gpu.id, key, units) for key, units in dealt.moved)
            left += free - device.units
    return Offer(node.id, tuple(pieces), tuple(moves), left)


def fits_beside(gpus: Sequence[GpuState], ask: Ask, others: Sequence[DeviceAsk]) -> bool:
    """Tell whether GPUs of which nothing were held could take an ask, and others beside it.

    False also where a few tries do not find how.
    """
    both = replace(ask, devices=(*ask.devices, *others))
    try:
        return assign(both, bins_of(gpus, both, _full), STEPS_MIN) is not None
    except SearchExhaustedError:
        return False


def is_free(node: NodeState | None, offer: Offer, ask: Ask, window: tuple[int, int]) -> bool:
    """Tell whether an offer that was made for an ask, moving nobody, can still be taken."""
    if node is None or not node.healthy or offer.moves:
        return False
    gpus = {gpu.id: gpu for gpu in node.gpus if gpu.bookable}
    return node.hosts(ask.vcpu_milli, ask.memory_mib, *window) and all(
        piece.gpu in gpus
        and gpus[piece.gpu].generation == piece.generation
        and not gpus[piece.gpu].busy(*window) & piece.units
        for piece in offer.pieces
    )


def fits_empty(node: NodeState, ask: Ask, *, bookable: bool) -> bool:
    """Tell whether the node could take all pieces if nothing of it were held.

    With ``bookable`` only GPUs that can be booked now count. A search that is cut short counts as a
    fit: what it did not find may exist.
    """
    bins = bins_of(node.gpus, ask, lambda gpu: _full(gpu) if gpu.bookable or not bookable else ())
    try:
        return any(assign(ask, domain, STEPS_MAX) is not None for domain in near(bins, ask))
    except SearchExhaustedError:
        return True


def selects(selector: Selector, gpu: GpuState, atom: AtomState | None) -> bool:
    """Tell whether a selector takes a GPU, or an atom of it."""
    return not selector.expressions or selector.matches(gpu.shown_of(atom))


# -- what there is to take from
# ---------------------------------------------------------------------------


def bins_of(
    gpus: Iterable[GpuState], ask: Ask, room: Callable[[GpuState], Iterator[Bin] | tuple[()]]
) -> list[Bin]:
    wanted = {device.cls for device in ask.devices}
    bins = [
        each
        for gpu in gpus
        if gpu.split == "mig" or CLASS_OF[gpu.split] in wanted
        for each in room(gpu)
        if each.cls in wanted
    ]
    # The tightest first, so that large room stays in one piece for those who need it; of those what
    # is free for this window only, so that what is free for ever stays so.
    bins.sort(key=lambda each: (each.left, each.gpu.idle, each.gpu.id))
    return bins


def near(bins: list[Bin], ask: Ask) -> Iterator[list[Bin]]:
    """Yield the bins of each domain that pieces have to share; all of them where there is none.

    A domain without a name is its GPU alone.
    """
    if ask.together == "node" or not ask.devices:
        yield bins
        return
    key = DOMAIN_OF[ask.together]
    domains: dict[Hashable, list[Bin]] = {}
    for each in bins:
        named = None if key is None else each.gpu.shown_of(None).get(key)
        domain = ("", each.gpu.id) if named is None else ("named", named)
        domains.setdefault(domain, []).append(each)
    yield from domains.values()


def open_bins(gpu: GpuState, start: int, end: int) -> Iterator[Bin]:
    """Yield what a GPU can give in every instant of the window."""
    if not gpu.bookable:
        return
    if gpu.split == "mig":
        atoms = gpu.free_atoms(start, end)
        for atom in atoms:
            yield Bin(gpu, atom, 1, 1, len(atoms))
        return
    units, holders = gpu.room(start, end)
    if units and holders:
        yield Bin(gpu, None, units, holders, units)


def _full(gpu: GpuState) -> Iterator[Bin]:
    """Yield what a GPU could give if nothing of it were held."""
    if gpu.split == "mig":
        for atom in gpu.atoms:
            yield Bin(gpu, atom, 1, 1, 1)
    else:
        yield Bin(gpu, None, gpu.ruler, SEATS if gpu.seats else gpu.ruler, gpu.ruler)


# -- which piece goes where
# -------------------------------------------------------------------------------


def assign(ask: Ask, bins: list[Bin], steps: int) -> list[tuple[int, Bin]] | None:
    """Give each piece its bin, as (device, bin) in the devices' order; None when there is no way.

    Raises SearchExhaustedError after ``steps`` tries.
    """
    fits = [[at for at, each in enumerate(bins) if each.takes(device)] for device in ask.devices]
    whole = _whole(ask, [bins[at] for at in fits[0]]) if len(fits) == 1 else None
    if whole is not None:
        return [(0, each) for each in whole]
    chosen = next(_Packing(ask, bins, fits).solutions(iter(range(steps))), None)
    if chosen is None:
        return None
    return sorted(((device, bins[at]) for device, at in chosen), key=lambda pair: pair[0])


def assignments(ask: Ask, bins: list[Bin], steps: Iterator[int]) -> Iterator[list[tuple[int, Bin]]]:
    """Yield every way to give each piece its bin, as `assign` does: no two bins are taken as alike.

    Raises SearchExhaustedError when ``steps`` come to an end, of which each try takes one.
    """
    fits = [[at for at, each in enumerate(bins) if each.takes(device)] for device in ask.devices]
    for chosen in _Packing(ask, bins, fits, told_apart=True).solutions(steps):
        yield sorted(((device, bins[at]) for device, at in chosen), key=lambda pair: pair[0])


def _whole(ask: Ask, fitting: list[Bin]) -> list[Bin] | None:
    """Take several GPUs of which each piece takes all that is free, as near as they can be."""
    (device,) = ask.devices
    parted = any(_leaves_room(each, device) for each in fitting)
    if device.count == 1 or len(fitting) < device.count or parted:
        return None
    bins = {each.gpu.id: each for each in fitting}
    _, gpus = nearest([each.gpu for each in fitting], device.count)
    return [bins[gpu.id] for gpu in gpus]


def _leaves_room(where: Bin, device: DeviceAsk) -> bool:
    return where.left > device.units if where.atom is None else where.atom.booked != WHOLE


class _Packing:
    """Depth-first search with the three cuts that keep it short.

    Pieces of one device ask are alike, so they take bins in one order only; of bins that are
    alike the first stands for all (unless others want them ``told_apart``); and a state that was
    gone through once is not entered again. It keeps its own stack: an ask may have more pieces than
    Python has frames.
    """

    def __init__(
        self, ask: Ask, bins: list[Bin], fits: list[list[int]], *, told_apart: bool = False
    ) -> None:
        devices = ask.devices
        self.told_apart = told_apart
        self.devices = devices
        self.fits = fits
        # The largest pieces first, then those with few bins: a dead end shows early.
        order = sorted(range(len(devices)), key=lambda d: (-devices[d].units, len(fits[d]), d))
        self.pieces = [device for device in order for _ in range(devices[device].count)]
        self.units = [each.units for each in bins]
        self.holders = [1 if ask.apart else each.holders for each in bins]
        self.clashes = _clashes(bins, apart=ask.apart)
        self.takers = [0] * len(bins)
        for device, fitting in enumerate(fits):
            for at in fitting:
                self.takers[at] |= 1 << device
        self.places: list[int] = []
        """Of each piece placed so far, the position among the bins that fit its device."""
        self.done: set[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = set()

    def solutions(self, steps: Iterator[int]) -> Iterator[list[tuple[int, int]]]:
        """Yield (device, bin) of each piece, in every way; each bin that is tried takes a step."""
        levels = [self._options()]
        while levels:
            if len(self.places) == len(self.pieces):
                pairs = zip(self.pieces, self.places, strict=True)
                yield [(device, self.fits[device][place]) for device, place in pairs]
                place = None
            else:
                place = next(levels[-1], None)
            if place is not None:
                if next(steps, None) is None:
                    raise SearchExhaustedError
                self._count(place, -1)
                self.places.append(place)
                levels.append(self._options())
                continue
            levels.pop()
            if levels:
                self._count(self.places.pop(), 1)

    def _options(self) -> Iterator[int]:
        """Yield the places to try for the next piece, in a state that comes back with each try."""
        number = len(self.places)
        if number == len(self.pieces):
            return
        device = self.pieces[number]
        units = self.devices[device].units
        first = self._first(number)
        if self.done and self._state(first) in self.done:
            return
        tried: set[tuple[int, int, int, int]] = set()
        for place in range(first, len(self.fits[device])):
            at = self.fits[device][place]
            # A bin that clashes with others is like none but itself.
            own = at if self.clashes[at] or self.told_apart else -1
            alike = (self.units[at], self.holders[at], self.takers[at], own)
            if alike[0] >= units and alike[1] > 0 and alike not in tried:
                tried.add(alike)
                yield place
        self.done.add(self._state(first))

    def _first(self, number: int) -> int:
        """Return the first place for a piece: not before the one like it that came before."""
        device = self.pieces[number]
        if number == 0 or self.pieces[number - 1] != device:
            return 0
        # Shares of one device ask lie on GPUs of their own.
        apart = 1 if self.devices[device].cls == "gpu.share" else 0
        return self.places[-1] + apart

    def _count(self, place: int, sign: int) -> None:
        """Take the next piece from a bin (-1), or give it back (1)."""
        device = self.pieces[len(self.places)]
        at = self.fits[device][place]
        self.units[at] += sign * self.devices[device].units
        self.holders[at] += sign
        for other in self.clashes[at]:
            self.holders[other] += sign

    def _state(self, first: int) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        return len(self.places), first, tuple(self.units), tuple(self.holders)


def _clashes(bins: list[Bin], *, apart: bool) -> list[list[int]]:
    """Return for each bin the instances of its GPU that cannot be taken beside it."""
    clashes: list[list[int]] = [[] for _ in bins]
    by_gpu: dict[int, list[int]] = {}
    for at, each in enumerate(bins):
        if each.atom is not None:
            for other in by_gpu.setdefault(each.gpu.id, []):
                beside = bins[other].atom
                if apart or (beside is not None and beside.units & each.atom.units):
                    clashes[at].append(other)
                    clashes[other].append(at)
            by_gpu[each.gpu.id].append(at)
    return clashes


# -- what is answered
# -------------------------------------------------------------------------------------


def offer_in(
    node: NodeState, ask: Ask, chosen: list[tuple[int, Bin]], window: tuple[int, int, int]
) -> Offer | None:
    """Take from bins of a node, given as (device, bin) in the order of the devices.

    None comes back where a picture that lags behind the truth holds more than there is.
    """
    pieces: list[Piece] = []
    moves: list[Move] = []
    left: dict[int, int] = {}
    dealt: dict[int, Iterator[int]] = {}
    for device, each in chosen:
        gpu = each.gpu
        left[gpu.id] = left.get(gpu.id, each.left) - ask.devices[device].units
        if each.atom is not None:
            pieces.append(Piece(device, gpu.id, each.atom.booked, each.atom.id, gpu.generation))
            continue
        if gpu.split == "none":
            pieces.append(Piece(device, gpu.id, -1, gpu.atom, gpu.generation))
            continue
        if gpu.id not in dealt:
            counts = [ask.devices[d].units for d, other in chosen if other is each]
            deal_of_gpu = deal(gpu, counts, *window)
            if deal_of_gpu is None:
                return None
            dealt[gpu.id] = iter(deal_of_gpu.units)
            moves.extend(Move(gpu.id, key, units) for key, units in deal_of_gpu.moved)
        pieces.append(Piece(device, gpu.id, next(dealt[gpu.id]), None, gpu.generation))
    return Offer(node.id, tuple(pieces), tuple(moves), sum(left.values()))
