"""An independent judge of placements: plain lists, sets of units, every instant, every assignment.

It shares no arithmetic with the engine: no masks but to read answers, no peaks, no indexes.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product

from apportion.placement import (
    Ask,
    AtomState,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    Offer,
    PoolIndex,
)

HORIZON = 10
SEATS = 48
CLASSES = {"none": "gpu", "mig": "gpu.mig", "slots": "gpu.slot", "shares": "gpu.share"}


def units_of(mask, ruler):
    """Read a mask as a set; every unit is the ruler and the seats behind it."""
    length = ruler + SEATS if mask < 0 else mask.bit_length()
    return frozenset(unit for unit in range(length) if mask < 0 or mask >> unit & 1)


def mask_of(units):
    return sum(1 << unit for unit in units)


@dataclass(frozen=True)
class Gpu:
    id: int
    split: str = "slots"
    ruler: int = 4
    model: str = "h100"
    numa: int | None = 0
    index: int = 0
    nvlink: int | None = None
    # (units, profile) of each instance, the whole GPU being one without a profile; an atom's id is
    # its place in here plus 100 times the GPU's.
    atoms: tuple = ()
    bookable: bool = True

    def state(self, node):
        return GpuState(
            id=self.id,
            split=self.split,
            ruler=self.ruler,
            group=self.group,
            attributes=self.attributes(node),
            atom=self.id if self.split == "none" else None,
            atoms=tuple(
                AtomState(
                    self.atom_id(at),
                    mask_of(units),
                    profile,
                    self.atom_attributes(at),
                    self.cls_of(at),
                )
                for at, (units, profile) in enumerate(self.atoms)
            ),
            bookable=self.bookable,
        )

    @property
    def group(self):
        known = {} if self.numa is None else {"numaNode": self.numa}
        return {"gpuModel": self.model, **known}

    def attributes(self, node):
        known = {} if self.nvlink is None else {"nvlinkDomain": self.nvlink}
        return {"node": node, "gpuIndex": self.index, **known}

    def cls_of(self, at):
        return "gpu" if self.atoms[at][1] is None else "gpu.mig"

    def atom_id(self, at):
        return 100 * self.id + at

    def atom_attributes(self, at):
        units, profile = self.atoms[at]
        own = {} if profile is None else {"migProfile": profile, "giId": at}
        return {**own, "vramGiB": 10 * len(units)}

    def options(self, node, device):
        """Name what a piece of the device ask could be taken from: (gpu, atom or None)."""
        if not self.bookable or (self.split != "mig" and CLASSES[self.split] != device.cls):
            return []
        seen = {**self.group, "node": node, "gpuIndex": self.index}
        if self.split != "mig":
            return [(self, None)] if device.selector.matches(seen) else []
        return [
            (self, at)
            for at in range(len(self.atoms))
            if self.cls_of(at) == device.cls
            and device.selector.matches({**seen, **self.atom_attributes(at)})
        ]


@dataclass(frozen=True)
class Node:
    id: int
    gpus: tuple = ()
    vcpu: int = 8
    memory: int = 8
    healthy: bool = True

    @property
    def name(self):
        return f"node-{self.id}"

    def state(self):
        gpus = tuple(gpu.state(self.name) for gpu in self.gpus)
        return NodeState(self.id, self.name, self.vcpu, self.memory, gpus, self.healthy)


@dataclass(frozen=True)
class Booking:
    gpu: int
    key: tuple
    start: int
    end: int
    units: frozenset
    whole: bool = False

    def held(self):
        return Held(self.start, self.end, -1 if self.whole else mask_of(self.units))

    def meets(self, other):
        together = self.start < other.end and other.start < self.end
        return self.gpu == other.gpu and together and bool(self.units & other.units)


@dataclass(frozen=True)
class HostBooking:
    node: int
    holder: str
    start: int
    end: int
    vcpu: int
    memory: int

    def held(self):
        return HostHeld(self.start, self.end, self.vcpu, self.memory)


def near_enough(ask, gpus):
    """Tell whether GPUs, one a piece, are as near and as far as the ask wants."""
    if ask.apart and len({gpu.id for gpu in gpus}) < len(gpus):
        return False
    domain = {
        "node": lambda _: None,
        "gpu": lambda gpu: gpu.id,
        "numa": lambda gpu: ("of its own", gpu.id) if gpu.numa is None else gpu.numa,
        "nvlink": lambda gpu: ("of its own", gpu.id) if gpu.nvlink is None else gpu.nvlink,
    }[ask.together]
    return len({domain(gpu) for gpu in gpus}) <= 1


@dataclass
class World:
    """A fleet, and who holds what when."""

    nodes: tuple
    bookings: list = field(default_factory=list)
    hosts: list = field(default_factory=list)

    def index(self):
        index = PoolIndex(node.state() for node in self.nodes)
        for booking in self.bookings:
            index.book(booking.gpu, booking.key, booking.held())
        for host in self.hosts:
            index.book_host(host.node, host.holder, host.held())
        return index

    def gpu(self, gpu_id):
        return next(gpu for node in self.nodes for gpu in node.gpus if gpu.id == gpu_id)

    # -- what is legal ---------------------------------------------------------------------------

    def clashes(self):
        """Return the pairs of bookings that overlap in units and time."""
        each = list(enumerate(self.bookings))
        return [(a, b) for i, a in each for b in self.bookings[i + 1 :] if a.meets(b)]

    def fits(self, node, ask, start, end):
        """Tell whether some assignment of all pieces to this node exists, by trying them all."""
        if not node.healthy or not self.hosts_fit(node, ask, start, end):
            return False
        pieces = [device for device in ask.devices for _ in range(device.count)]
        numbers = [n for n, device in enumerate(ask.devices) for _ in range(device.count)]
        choices = [[o for gpu in node.gpus for o in gpu.options(node.name, d)] for d in pieces]
        return any(
            near_enough(ask, [gpu for gpu, _ in ways])
            and self._assignable(list(zip(numbers, pieces, ways, strict=True)), start, end)
            for ways in product(*choices)
        )

    def gang_fits(self, members, start, end, *, apart=False, closed=()):
        """Tell whether all members have a place beside each other, by trying every way."""
        if not members:
            return True
        ask, *others = members
        pieces = [device for device in ask.devices for _ in range(device.count)]
        numbers = [n for n, device in enumerate(ask.devices) for _ in range(device.count)]
        for node in self.nodes:
            if node.id in closed or not node.healthy or not self.hosts_fit(node, ask, start, end):
                continue
            choices = [[o for gpu in node.gpus for o in gpu.options(node.name, d)] for d in pieces]
            for ways in product(*choices):
                lying = list(zip(numbers, pieces, ways, strict=True))
                near = near_enough(ask, [gpu for gpu, _ in ways])
                if not near or not self._assignable(lying, start, end):
                    continue
                held = len(self.bookings)
                self.bookings += [_counted(*each, start, end) for each in lying]
                self.hosts.append(
                    HostBooking(node.id, "gang", start, end, ask.vcpu_milli, ask.memory_mib)
                )
                then = (*closed, node.id) if apart else ()
                fits = self.gang_fits(others, start, end, apart=apart, closed=then)
                del self.bookings[held:]
                self.hosts.pop()
                if fits:
                    return True
        return False

    def hosts_fit(self, node, ask, start, end):
        for now in range(start, end):
            running = [h for h in self.hosts if h.node == node.id and h.start <= now < h.end]
            vcpu = sum(h.vcpu for h in running)
            memory = sum(h.memory for h in running)
            if ask.vcpu_milli and vcpu + ask.vcpu_milli > node.vcpu:
                return False
            if ask.memory_mib and memory + ask.memory_mib > node.memory:
                return False
        return True

    def _assignable(self, pieces, start, end):
        atoms = [(gpu.id, at) for _, _, (gpu, at) in pieces if gpu.split in ("mig", "none")]
        apart = [(number, gpu.id) for number, d, (gpu, _) in pieces if d.cls == "gpu.share"]
        if len(set(atoms)) < len(atoms) or len(set(apart)) < len(apart):
            return False
        taken = [
            (gpu.id, unit)
            for _, _, (gpu, at) in pieces
            if at is not None
            for unit in gpu.atoms[at][0]
        ]
        if len(set(taken)) < len(taken):
            return False
        return all(
            self._room(gpu, at, [p for p in pieces if p[2][0] is gpu], now)
            for _, _, (gpu, at) in pieces
            for now in range(start, end)
        )

    def _room(self, gpu, at, pieces, now):
        running = [b for b in self.bookings if b.gpu == gpu.id and b.start <= now < b.end]
        taken = [unit for b in running for unit in b.units]
        if gpu.split == "none":
            return not running
        if gpu.split == "mig":
            return not set(gpu.atoms[at][0]) & set(taken)
        wanted = sum(device.units for _, device, _ in pieces)
        seats = len([unit for unit in taken if unit >= gpu.ruler])
        free_units = gpu.ruler - len([unit for unit in taken if unit < gpu.ruler])
        return wanted <= free_units and (gpu.split == "slots" or seats + len(pieces) <= SEATS)

    # -- what an offer does ----------------------------------------------------------------------

    def check(self, offer: Offer, ask: Ask, now):
        """Assert that the offer is what was asked for, on one node, by legal moves only."""
        node = next(node for node in self.nodes if node.id == offer.node)
        assert Counter(piece.device for piece in offer.pieces) == {
            number: device.count for number, device in enumerate(ask.devices)
        }
        assert near_enough(ask, [self.gpu(piece.gpu) for piece in offer.pieces])
        for piece in offer.pieces:
            device = ask.devices[piece.device]
            gpu = next(gpu for gpu in node.gpus if gpu.id == piece.gpu)
            at = None if gpu.split != "mig" else piece.atom - gpu.atom_id(0)
            assert (gpu, at) in gpu.options(node.name, device)
            self._check_units(gpu, at, piece, device)
        for move in offer.moves:
            moved = next(b for b in self.bookings if (b.gpu, b.key) == (move.gpu, move.key))
            assert moved.start > now, "what has begun was moved"
            assert not moved.whole
            ruler = self.gpu(move.gpu).ruler
            assert _size(moved.units, ruler) == _size(units_of(move.units, ruler), ruler)
        assert len({(move.gpu, move.key) for move in offer.moves}) == len(offer.moves)

    def _check_units(self, gpu, at, piece, device):
        units = units_of(piece.units, gpu.ruler)
        if gpu.split == "none":
            assert piece.units == -1
            assert piece.atom == gpu.id
        elif gpu.split == "mig":
            whole = gpu.atoms[at][1] is None
            assert piece.units == -1 if whole else units == frozenset(gpu.atoms[at][0])
        else:
            seats = 1 if gpu.split == "shares" else 0
            assert _size(units, gpu.ruler) == (device.units, seats)

    def apply(self, index, offer, ask, window, holder):
        """Take the offer: here, and in the index."""
        start, end = window
        for move in offer.moves:
            at = next(
                i for i, b in enumerate(self.bookings) if (b.gpu, b.key) == (move.gpu, move.key)
            )
            units = units_of(move.units, self.gpu(move.gpu).ruler)
            self.bookings[at] = replace(self.bookings[at], units=units)
            index.book(move.gpu, move.key, self.bookings[at].held())
        for number, piece in enumerate(offer.pieces):
            units = units_of(piece.units, self.gpu(piece.gpu).ruler)
            booking = Booking(
                piece.gpu, (holder, number), start, end, units, whole=piece.units == -1
            )
            self.bookings.append(booking)
            index.book(piece.gpu, booking.key, booking.held())
        if ask.vcpu_milli or ask.memory_mib:
            host = HostBooking(offer.node, holder, start, end, ask.vcpu_milli, ask.memory_mib)
            self.hosts.append(host)
            index.book_host(offer.node, holder, host.held())


def _counted(_number, device, where, start, end):
    """Return what a piece takes where only its amount matters, or the very units of an instance."""
    gpu, at = where
    if gpu.split == "mig":
        units = frozenset(gpu.atoms[at][0])
    else:
        seat = {gpu.ruler} if gpu.split == "shares" else set()
        units = frozenset(range(device.units)) | seat
    return Booking(gpu.id, ("gang", 0), start, end, units)


def _size(units, ruler):
    return len([u for u in units if u < ruler]), len([u for u in units if u >= ruler])
