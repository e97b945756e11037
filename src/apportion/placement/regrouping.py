"""Regrouping: the fewest moves after which requests fit, or the most GPUs are free, by CP-SAT.

All that may move is lifted; then everything, what is asked for beside it, is placed anew, and a
reservation counts as moved unless each piece is where it was. Room is looked at at every instant
at which something begins: there it is scarcest. Needs the extra ``exact``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from apportion.placement.asks import CLASSES, Ask
from apportion.placement.gangs import Gang
from apportion.placement.largest import Largest
from apportion.placement.moving import Movable
from apportion.placement.offers import HeldKey, Offer
from apportion.placement.search import Bin, bins_of, offer_in, open_bins
from apportion.placement.state import FOREVER, GpuState, Held, HostHeld, NodeState
from apportion.solving import TIME_LIMIT, Solved, check_installed, minimise, new_model

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from apportion.placement.index import PoolIndex

NODES_MAX: Final = 32
"""How many nodes are looked at: those with the least that cannot move."""
_STAYS: Final = "stays/"
ITEMS_MAX: Final = 500
"""How many reservations may be among those that move; the others stay."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that waits: ``key`` says whose, [start, end) when."""

    key: str
    ask: Ask
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who moves where, and what then has room.

    No way that makes room for as many (or frees as many GPUs, where none is wanted) needs fewer
    moves than ``bound``, among the ``nodes`` that were looked at; ``optimal`` says that this one
    needs no more. ``freed`` is how many more GPUs have nothing on them then. ``largest_now`` and
    ``largest_then`` are the largest requests, of each class that the pool has, with room from when
    all moves are made on, without an end: as things lie now, and with all moves made.
    """

    moves: tuple[tuple[Movable, Offer], ...] = ()
    placed: tuple[tuple[Wanted, Offer], ...] = ()
    unplaced: tuple[Wanted, ...] = ()
    freed: int = 0
    bound: int = 0
    optimal: bool = False
    nodes: int = 0
    largest_now: tuple[Largest, ...] = ()
    largest_then: tuple[Largest, ...] = ()


def regroup(
    index: "PoolIndex",
    wanted: Sequence[Wanted],
    movable: Sequence[Movable],
    now: int,
    time_limit: timedelta = TIME_LIMIT,
    *,
    first: int | None = None,
) -> Plan:
    """Return the fewest moves that make room for as many of ``wanted`` as can be.

    Where none is wanted, the fewest that free as many GPUs as can be. Reservations and requests
    whose pieces have to lie together or apart are left where they are, and out. Nothing is held or
    moved when this returns. All moves are made by ``first``, or now: from then on it is looked for
    the largest requests. InvalidInputError where the extra is not installed.
    """
    check_installed(field="strategy")
    index.advance(now)
    before = _largest(index, first or now, now)
    with index.for_a_moment() as gang, _Lifted(index) as lifted:
        nodes = _nodes(index, {each.holder for each in movable})
        on_nodes = {gpu.id for node in nodes for gpu in node.gpus}
        items = [
            _Item(each, each.ask, max(each.start, now), each.end, lifted.lift(each))
            for each in movable[:ITEMS_MAX]
            if each.ask.placed_freely and on_nodes.issuperset(each.gpus)
        ]
        items += [
            _Item(each, each.ask, max(each.start, now), each.end)
            for each in wanted
            if each.ask.placed_freely
        ]
        model = _Model(nodes, items, for_room=bool(wanted))
        solved = minimise(model.model, time_limit)
        plan = None
        if solved is not None:
            plan = _plan(model, solved, wanted, (gang, lifted, now))
        if plan is None:
            plan = Plan(unplaced=tuple(wanted), nodes=len(nodes), largest_then=before)
        else:
            plan = replace(plan, largest_then=_largest(index, first or now, now))
        return replace(plan, largest_now=before)


@dataclass(slots=True, eq=False)
class _Item:
    """Something to be placed: ``was`` says where each piece is now, of what is there already."""

    what: Movable | Wanted
    ask: Ask
    start: int
    end: int
    was: Counter[tuple[int, int, int | None]] = field(
        default_factory=Counter[tuple[int, int, int | None]]
    )
    """By device, GPU, and atom where the piece is one."""


class _Lifted:
    """Reservations taken out of the picture for a while."""

    def __init__(self, index: "PoolIndex") -> None:
        self._index = index
        self._pieces: dict[str, list[tuple[int, HeldKey, Held]]] = {}
        self._hosts: dict[str, tuple[int, HostHeld]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for holder in list(self._pieces):
            self.put_back(holder)

    def lift(self, moved: Movable) -> Counter[tuple[int, int, int | None]]:
        """Take one out, and say where its pieces were."""
        was: Counter[tuple[int, int, int | None]] = Counter()
        pieces: list[tuple[int, HeldKey, Held]] = []
        devices = [at for at, device in enumerate(moved.ask.devices) for _ in range(device.count)]
        for gpu in map(self._index.gpu, moved.gpus):
            for key, held in list(gpu.held.items()):
                if key[0] == moved.holder:
                    pieces.append((gpu.id, key, held))
                    was[devices[key[1]], gpu.id, _atom(gpu, held.units)] += 1
                    node = None if gpu.standing is None else gpu.standing.node
                    if node is not None and moved.holder in node.held:
                        self._hosts[moved.holder] = (node.id, node.held[moved.holder])
        for gpu_id, key, held in pieces:
            self._index.free(gpu_id, key)
            if held.start < moved.start:
                # One that runs stays where it is until it moves.
                stays = Held(held.start, moved.start, held.units)
                self._index.book(gpu_id, (_STAYS + key[0], key[1]), stays)
        if moved.holder in self._hosts:
            self._index.free_host(self._hosts[moved.holder][0], moved.holder)
        self._pieces[moved.holder] = pieces
        return was

    def put_back(self, holder: str) -> None:
        """Put one back where it was."""
        for gpu_id, key, held in self._pieces.pop(holder):
            self._index.free(gpu_id, (_STAYS + key[0], key[1]))
            self._index.book(gpu_id, key, held)
        if holder in self._hosts:
            node_id, host = self._hosts.pop(holder)
            self._index.book_host(node_id, holder, host)


@dataclass(slots=True, eq=False)
class _Site:
    """One item on one node: whether it lies there, and how many of its pieces in which bin."""

    item: _Item
    node: NodeState
    here: "cp_model.IntVar"
    bins: list[Bin]
    pieces: dict[tuple[int, int], "cp_model.IntVar"]


class _Model:
    """The question for the solver."""

    def __init__(
        self, nodes: Sequence[NodeState], items: Sequence[_Item], *, for_room: bool
    ) -> None:
        self.model = new_model()
        self.items = items
        self.nodes = nodes
        self.sites: dict[int, list[_Site]] = {
            at: [site for node in nodes if (site := self._site(node, item)) is not None]
            for at, item in enumerate(items)
        }
        self.moved: dict[int, cp_model.IntVar] = {}
        self.placed: dict[int, cp_model.IntVar] = {}
        for at, item in enumerate(items):
            self._add_item(at, item)
        for node in nodes:
            self._add_node(node)
        gpus = () if for_room else (gpu for node in nodes for gpu in node.gpus)
        can_be_free = [gpu for gpu in gpus if gpu.bookable and not gpu.held]
        self.free = [self._free(gpu) for gpu in can_be_free]
        self.free_before = sum(not self._was_on(gpu) for gpu in can_be_free)
        # What is made room for, or freed, is worth more than all moves.
        self.price = len(self.moved) + 1
        gain = [*self.placed.values(), *self.free]
        self.model.minimize(sum(self.moved.values()) - self.price * sum(gain))

    def _site(self, node: NodeState, item: _Item) -> _Site | None:
        ask, start, end = item.ask, item.start, item.end
        if not node.healthy or not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
            return None
        bins = bins_of(node.gpus, ask, lambda gpu: open_bins(gpu, start, end))
        fits = [[at for at, each in enumerate(bins) if each.takes(d)] for d in ask.devices]
        if not all(fits):
            return None
        site = _Site(item, node, self.model.new_bool_var(""), bins, {})
        was_here = any(gpu.id == where for gpu in node.gpus for _, where, _ in item.was)
        self.model.add_hint(site.here, was_here)
        for number, (device, fitting) in enumerate(zip(ask.devices, fits, strict=True)):
            for at in fitting:
                piece = self.model.new_int_var(0, device.count, "")
                self.model.add_hint(piece, item.was[number, bins[at].gpu.id, _atom_of(bins[at])])
                site.pieces[number, at] = piece
                if device.cls == "gpu.share":
                    self.model.add(piece <= 1)
            pieces = sum(site.pieces[number, at] for at in fitting)
            self.model.add(pieces == device.count * site.here)
        return site

    def _add_item(self, at: int, item: _Item) -> None:
        here = [site.here for site in self.sites[at]]
        if isinstance(item.what, Wanted):
            self.placed[at] = self.model.new_bool_var("")
            self.model.add(sum(here) == self.placed[at])
            return
        self.model.add(sum(here) == 1)
        moved = self.moved[at] = self.model.new_bool_var("")
        self.model.add_hint(moved, 0)
        there = {
            (device, site.bins[bin_at].gpu.id, _atom_of(site.bins[bin_at])): piece
            for site in self.sites[at]
            for (device, bin_at), piece in site.pieces.items()
        }
        for place, count in item.was.items():
            self.model.add(there.get(place, 0) >= count - count * moved)

    def _add_node(self, node: NodeState) -> None:
        sites = [site for own in self.sites.values() for site in own if site.node is node]
        begins = {site.item.start for site in sites} | {each.start for each in node.held.values()}
        for instant in sorted(begins) if sites else ():
            here = [site for site in sites if site.item.start <= instant < site.item.end]
            vcpu, memory = node.room(instant, instant + 1)
            self.model.add(sum(site.item.ask.vcpu_milli * site.here for site in here) <= vcpu)
            self.model.add(sum(site.item.ask.memory_mib * site.here for site in here) <= memory)
        for gpu in node.gpus:
            self._add_gpu(gpu, sites)

    def _add_gpu(self, gpu: GpuState, sites: Iterable[_Site]) -> None:
        here = list(_on(gpu, sites))
        begins = {site.item.start for site, _, _, _ in here}
        if gpu.split in {"slots", "shares"} and here:
            begins |= {each.start for each in gpu.held.values()}
        for instant in sorted(begins):
            now = [each for each in here if each[0].item.start <= instant < each[0].item.end]
            if gpu.split == "mig":
                over: defaultdict[int, list[cp_model.IntVar]] = defaultdict(list)
                for _, _, where, piece in now:
                    for unit in _units(where):
                        over[unit].append(piece)
                for pieces in over.values():
                    self.model.add(sum(pieces) <= 1)
                continue
            units, holders = gpu.room(instant, instant + 1)
            self.model.add(sum(count * piece for _, count, _, piece in now) <= units)
            self.model.add(sum(piece for _, _, _, piece in now) <= holders)

    def _was_on(self, gpu: GpuState) -> bool:
        return any(where == gpu.id for item in self.items for _, where, _ in item.was)

    def _free(self, gpu: GpuState) -> "cp_model.IntVar":
        """Return whether nothing lies on a GPU in the end."""
        free = self.model.new_bool_var("")
        sites = (site for own in self.sites.values() for site in own)
        for site, _, _, piece in _on(gpu, sites):
            most = max(device.count for device in site.item.ask.devices)
            self.model.add(piece <= most - most * free)
        return free


def _plan(
    model: _Model,
    solved: Solved,
    wanted: Sequence[Wanted],
    hands: tuple[Gang, _Lifted, int],
) -> Plan | None:
    """Read the answer: those that stay go back first, so that the others are dealt beside them.

    None where the pieces cannot be dealt after all: rather no plan than one that cannot be done.
    """
    gang, lifted, now = hands
    values = solved.values
    for at, moved in model.moved.items():
        if not values[moved.index]:
            lifted.put_back(_holder(model.items[at]))
    moves: list[tuple[Movable, Offer]] = []
    placed: list[tuple[Wanted, Offer]] = []
    for at, item in enumerate(model.items):
        stays = at in model.moved and not values[model.moved[at].index]
        site = next((each for each in model.sites[at] if values[each.here.index]), None)
        if stays or site is None:
            continue
        offer = _offer(site, solved, now)
        if offer is None:
            return None
        gang.hold(offer, item.ask, item.start, item.end)
        if isinstance(item.what, Wanted):
            placed.append((item.what, offer))
        else:
            moves.append((item.what, offer))
    free = sum(values[each.index] for each in model.free)
    gain = model.price * (len(placed) + free)
    kept = {each.key for each, _ in placed}
    return Plan(
        moves=tuple(moves),
        placed=tuple(placed),
        unplaced=tuple(each for each in wanted if each.key not in kept),
        freed=free - model.free_before,
        bound=max(0, solved.bound + gain),
        optimal=solved.optimal,
        nodes=len(model.nodes),
    )


def _largest(index: "PoolIndex", first: int, now: int) -> tuple[Largest, ...]:
    """Return the largest requests with room for good, of the classes that there are."""
    classes = {cls for node in index.nodes.values() for gpu in node.gpus for cls in gpu.classes}
    return tuple(index.largest(cls, first, FOREVER, now) for cls in CLASSES if cls in classes)


def _offer(site: _Site, solved: Solved, now: int) -> Offer | None:
    chosen: list[tuple[int, Bin]] = []
    item = site.item
    fresh = {
        (each.gpu.id, _atom_of(each)): each
        for gpu in site.node.gpus
        for each in open_bins(gpu, item.start, item.end)
    }
    for (device, at), piece in sorted(site.pieces.items()):
        each = fresh.get((site.bins[at].gpu.id, _atom_of(site.bins[at])))
        count = solved.values[piece.index]
        if count and each is None:
            return None
        chosen += [(device, each) for _ in range(count) if each is not None]
    return offer_in(site.node, item.ask, chosen, (item.start, item.end, now))


def _nodes(index: "PoolIndex", movable: set[str]) -> list[NodeState]:
    """Return the nodes with the least on them that cannot move."""

    def fixed(node: NodeState) -> int:
        return sum(key[0] not in movable for gpu in node.gpus for key in gpu.held)

    nodes = sorted(index.nodes.values(), key=lambda node: (fixed(node), node.id))
    return [node for node in nodes if node.healthy][:NODES_MAX]


def _on(
    gpu: GpuState, sites: Iterable[_Site]
) -> Iterator[tuple[_Site, int, Bin, "cp_model.IntVar"]]:
    """Yield what may lie on a GPU: its site, the units of a piece, the bin, and how many."""
    for site in sites:
        for (device, at), piece in site.pieces.items():
            if site.bins[at].gpu is gpu:
                yield site, site.item.ask.devices[device].units, site.bins[at], piece


def _holder(item: _Item) -> str:
    return item.what.holder if isinstance(item.what, Movable) else item.what.key


def _atom_of(each: Bin) -> int | None:
    return None if each.atom is None else each.atom.id


def _atom(gpu: GpuState, units: int) -> int | None:
    """Return the atom that is held of a MIG GPU."""
    return next((atom.id for atom in gpu.atoms if atom.booked == units), None)


def _units(each: Bin) -> Iterator[int]:
    mask = 0 if each.atom is None else each.atom.units
    return (unit for unit in range(mask.bit_length()) if mask >> unit & 1)
