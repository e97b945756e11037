"""Exact search on one node: all pieces of an ask, or nothing.

What pieces are taken from are bins: a whole GPU or a MIG instance has room for one piece, a
slotted or shared GPU for as many as its count allows (which units they get is dealt at the end,
see `colouring`). Asking for several pieces is then a packing of pieces into bins, whatever the
class.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from apportion.placement.asks import CLASS_OF, Ask, DeviceAsk
from apportion.placement.colouring import deal
from apportion.placement.offers import Move, Offer, Piece
from apportion.placement.selectors import Selector
from apportion.placement.state import SEATS, AtomState, GpuState, NodeState

STEPS_MAX: Final = 20_000
"""Tries before a node is given up: different pieces on many GPUs are a packing problem."""


class SearchExhaustedError(Exception):
    """The search on a node was cut short; the node may or may not have room."""


@dataclass(slots=True, eq=False)
class _Bin:
    """Room for ``units`` units in at most ``holders`` pieces, on a GPU with ``left`` to give."""

    gpu: GpuState
    atom: AtomState | None
    units: int
    holders: int
    left: int


def place_on(node: NodeState, ask: Ask, start: int, end: int, now: int) -> Offer | None:
    """Place every piece of the ask on this node for [start, end), or return None.

    Raises SearchExhaustedError after `STEPS_MAX` tries. The node is left as it was.
    """
    if not node.healthy or not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return None
    bins = _bins(node, ask, lambda gpu: _open(gpu, start, end))
    chosen = _pack(ask, bins)
    return None if chosen is None else _offer(node, ask, chosen, (start, end, now))


def fits_empty(node: NodeState, ask: Ask, *, bookable: bool) -> bool:
    """Tell whether the node could take all pieces if nothing of it were held.

    With ``bookable`` only GPUs that can be booked now count. A search that is cut short counts as a
    fit: what it did not find may exist.
    """
    bins = _bins(node, ask, lambda gpu: _full(gpu) if gpu.bookable or not bookable else ())
    try:
        return _pack(ask, bins) is not None
    except SearchExhaustedError:
        return True


def selects(selector: Selector, gpu: GpuState, atom: AtomState | None) -> bool:
    """Tell whether a selector takes a GPU, or an atom of it."""
    return selector.matches(gpu.shown[None if atom is None else atom.id])


# -- what there is to take from
# ---------------------------------------------------------------------------


def _bins(
    node: NodeState, ask: Ask, room: Callable[[GpuState], Iterator[_Bin] | tuple[()]]
) -> list[_Bin]:
    wanted = {device.cls for device in ask.devices}
    bins = [each for gpu in node.gpus if CLASS_OF[gpu.split] in wanted for each in room(gpu)]
    # The tightest first, so that large room stays in one piece for those who need it.
    bins.sort(key=lambda each: (each.left, each.gpu.id))
    return bins


def _open(gpu: GpuState, start: int, end: int) -> Iterator[_Bin]:
    """Yield what a GPU can give in every instant of the window."""
    if not gpu.bookable:
        return
    if gpu.split == "mig":
        atoms = gpu.free_atoms(start, end)
        for atom in atoms:
            yield _Bin(gpu, atom, 1, 1, len(atoms))
        return
    units, holders = gpu.room(start, end)
    if units and holders:
        yield _Bin(gpu, None, units, holders, units)


def _full(gpu: GpuState) -> Iterator[_Bin]:
    """Yield what a GPU could give if nothing of it were held."""
    if gpu.split == "mig":
        for atom in gpu.atoms:
            yield _Bin(gpu, atom, 1, 1, 1)
    else:
        yield _Bin(gpu, None, gpu.ruler, SEATS if gpu.seats else gpu.ruler, gpu.ruler)


# -- which piece goes where
# -------------------------------------------------------------------------------


def _pack(ask: Ask, bins: list[_Bin]) -> list[tuple[int, _Bin]] | None:
    """Give each piece its bin, as (device, bin); None when there is no way."""
    fits = [
        [
            at
            for at, each in enumerate(bins)
            if each.units >= device.units
            and CLASS_OF[each.gpu.split] == device.cls
            and selects(device.selector, each.gpu, each.atom)
        ]
        for device in ask.devices
    ]
    packing = _Packing(ask.devices, bins, fits)
    if not packing.extend(0, 0):
        return None
    pieces = zip(packing.pieces, packing.chosen, strict=True)
    return sorted(((device, bins[at]) for device, at in pieces), key=lambda pair: pair[0])


class _Packing:
    """Depth-first search with the three cuts that keep it short.

    Pieces of one device ask are alike, so they take bins in one order only; of bins that are
    alike the first stands for all; and a state that failed once is not entered again.
    """

    def __init__(
        self, devices: tuple[DeviceAsk, ...], bins: list[_Bin], fits: list[list[int]]
    ) -> None:
        self.devices = devices
        self.fits = fits
        # The largest pieces first, then those with few bins: a dead end shows early.
        order = sorted(range(len(devices)), key=lambda d: (-devices[d].units, len(fits[d]), d))
        self.pieces = [device for device in order for _ in range(devices[device].count)]
        self.units = [each.units for each in bins]
        self.holders = [each.holders for each in bins]
        self.takers = [0] * len(bins)
        for device, fitting in enumerate(fits):
            for at in fitting:
                self.takers[at] |= 1 << device
        self.chosen: list[int] = []
        self.failed: set[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = set()
        self.steps = 0

    def extend(self, number: int, first: int) -> bool:
        """Place the pieces from ``number`` on, the next one at ``first`` or later in its bins."""
        if number == len(self.pieces):
            return True
        if self.failed and self._state(number, first) in self.failed:
            return False
        tried: set[tuple[int, int, int]] = set()
        device = self.pieces[number]
        units = self.devices[device].units
        fitting = self.fits[device]
        for position in range(first, len(fitting)):
            at = fitting[position]
            alike = (self.units[at], self.holders[at], self.takers[at])
            if alike[0] < units or alike[1] == 0 or alike in tried:
                continue
            tried.add(alike)
            if self._take(number, at, position):
                return True
        self.failed.add(self._state(number, first))
        return False

    def _take(self, number: int, at: int, position: int) -> bool:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise SearchExhaustedError
        device = self.pieces[number]
        units = self.devices[device].units
        self.units[at] -= units
        self.holders[at] -= 1
        self.chosen.append(at)
        again = number + 1 < len(self.pieces) and self.pieces[number + 1] == device
        # Shares of one device ask lie on GPUs of their own.
        apart = 1 if self.devices[device].cls == "gpu.share" else 0
        if self.extend(number + 1, position + apart if again else 0):
            return True
        self.units[at] += units
        self.holders[at] += 1
        self.chosen.pop()
        return False

    def _state(self, number: int, first: int) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        return number, first, tuple(self.units), tuple(self.holders)


# -- what is answered
# -------------------------------------------------------------------------------------


def _offer(
    node: NodeState, ask: Ask, chosen: list[tuple[int, _Bin]], window: tuple[int, int, int]
) -> Offer | None:
    pieces: list[Piece] = []
    moves: list[Move] = []
    left: dict[int, int] = {}
    dealt: dict[int, Iterator[int]] = {}
    for device, each in chosen:
        gpu = each.gpu
        left[gpu.id] = left.get(gpu.id, each.left) - ask.devices[device].units
        if each.atom is not None:
            pieces.append(Piece(device, gpu.id, each.atom.units, each.atom.id, gpu.generation))
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
