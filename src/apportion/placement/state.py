"""The picture of one node and its GPUs: rulers, what is held, and exact answers for a window."""

from dataclasses import dataclass, field
from typing import Final

from apportion.placement.asks import Split
from apportion.placement.offers import HeldKey
from apportion.placement.selectors import Attributes
from apportion.placement.skyline import FOREVER, NEVER, Skyline
from apportion.quantities.units import span

SEATS: Final = 48
"""The most holders of one freely shared GPU: what one MPS server serves."""


@dataclass(frozen=True, slots=True)
class Held:
    """Units of a GPU that somebody has for a window; ``units`` may be unbounded (every unit)."""

    start: int
    end: int
    units: int


@dataclass(frozen=True, slots=True)
class AtomState:
    """A MIG instance that can be booked: its units and the attributes that tell it apart.

    Instances of one GPU are disjoint: they exist side by side.
    """

    id: int
    units: int
    profile: str
    attributes: Attributes


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU: ``ruler`` units (slots, hundredths, or 1), the atoms of a MIG GPU, and what is held.

    ``capacity`` is the mask that slots or shares are taken from; shares have `SEATS` further
    units, one a holder. ``group`` holds the attributes of `GROUP_KEYS`, which selectors decide
    for all such GPUs at once, and ``attributes`` those that tell GPUs apart.

    ``idle`` counts what is free in every window: units, or atoms of a MIG GPU. Slots and shares are
    judged by count (see `colouring`), atoms by which are held. ``last_start`` and ``first_end`` are
    those of all that is held.
    """

    id: int
    split: Split
    ruler: int
    group: Attributes
    attributes: Attributes
    generation: int = 1
    atom: int | None = None
    atoms: tuple[AtomState, ...] = ()
    bookable: bool = True
    held: dict[HeldKey, Held] = field(default_factory=dict[HeldKey, Held])
    capacity: int = field(init=False)
    seats: int = field(init=False)
    shown: dict[int | None, Attributes] = field(init=False)
    idle: int = field(init=False, default=0)
    _units: Skyline = field(init=False, default_factory=Skyline)
    _holders: Skyline = field(init=False, default_factory=Skyline)
    last_start: int = field(init=False, default=NEVER)
    first_end: int = field(init=False, default=FOREVER)

    def __post_init__(self) -> None:
        """Derive the masks, what selectors see, and what is free."""
        self.capacity = span(0, self.ruler)
        self.seats = span(self.ruler, SEATS) if self.split == "shares" else 0
        self.shown = {None: {**self.group, **self.attributes}}
        for atom in self.atoms:
            own = {**atom.attributes, "migProfile": atom.profile}
            self.shown[atom.id] = {**self.shown[None], **own}
        for held in self.held.values():
            self._count(held, 1)

    def busy(self, start: int, end: int) -> int:
        """Return the units that somebody has at some instant of the window."""
        mask = 0
        for held in self.held.values():
            if held.start < end and held.end > start:
                mask |= held.units
        return mask

    def room(self, start: int, end: int) -> tuple[int, int]:
        """Return the units and the holders that every instant of the window still has room for.

        For slots and shares this is by count; a whole GPU is one unit. The atoms of a MIG GPU are not
        interchangeable: ask `free_atoms` for them.
        """
        units = max(0, self.ruler - self._units.peak(start, end))
        if not self.seats:
            return units, units
        return units, max(0, SEATS - self._holders.peak(start, end))

    def free_atoms(self, start: int, end: int) -> list[AtomState]:
        """Return the atoms that nobody has at any instant of the window."""
        busy = self.busy(start, end)
        return [atom for atom in self.atoms if not atom.units & busy]

    def put(self, key: HeldKey, held: Held) -> None:
        """Hold, or hold otherwise than before."""
        self.drop(key)
        self.held[key] = held
        self._count(held, 1)

    def drop(self, key: HeldKey) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(key, None)
        if held is not None:
            self._count(held, -1)

    def _count(self, held: Held, sign: int) -> None:
        self._units.add(held.start, held.end, sign * (held.units & self.capacity).bit_count())
        if self.seats:
            self._holders.add(held.start, held.end, sign * (held.units & self.seats).bit_count())
        self.last_start, self.first_end = _bounds(self, held, sign)
        if self.split == "mig":
            self.idle = len(self.free_atoms(NEVER, FOREVER))
        elif self._holders.top >= SEATS:
            self.idle = 0
        else:
            self.idle = max(0, self.ruler - self._units.top)


@dataclass(frozen=True, slots=True)
class HostHeld:
    """Host resources that a reservation has for a window."""

    start: int
    end: int
    vcpu_milli: int
    memory_mib: int


@dataclass(slots=True, eq=False)
class NodeState:
    """One machine: what its host may give, its GPUs, and what is held of the host.

    ``vcpu_used`` and ``memory_used`` are the sums over everything held, whenever: an upper bound of
    the peak of any window, so a fit under it needs no look at time.
    """

    id: int
    name: str
    vcpu_milli: int
    memory_mib: int
    gpus: tuple[GpuState, ...] = ()
    healthy: bool = True
    held: dict[str, HostHeld] = field(default_factory=dict[str, HostHeld])
    vcpu_used: int = 0
    memory_used: int = 0
    last_start: int = field(init=False, default=NEVER)
    first_end: int = field(init=False, default=FOREVER)

    @property
    def vcpu_free(self) -> int:
        """Thousandths of a CPU free in every window; 0 where more is held than there is."""
        return max(0, self.vcpu_milli - self.vcpu_used)

    @property
    def memory_free(self) -> int:
        """MiB that are free in every window; 0 where more is held than there is."""
        return max(0, self.memory_mib - self.memory_used)

    def hosts(self, vcpu_milli: int, memory_mib: int, start: int, end: int) -> bool:
        """Tell whether the host can give this much in every instant of the window.

        An ask of nothing is never short, even where an overcommitted host shrank below its use.
        """
        vcpu_short = vcpu_milli > self.vcpu_free
        memory_short = memory_mib > self.memory_free
        if not (vcpu_short or memory_short):
            return True
        if self.last_start <= start < self.first_end:
            return False
        held = self.held.values()
        if vcpu_short:
            used = peak(((h.start, h.end, h.vcpu_milli) for h in held), start, end)
            if used + vcpu_milli > self.vcpu_milli:
                return False
        if memory_short:
            used = peak(((h.start, h.end, h.memory_mib) for h in held), start, end)
            return used + memory_mib <= self.memory_mib
        return True

    def put(self, holder: str, held: HostHeld) -> None:
        """Hold, or hold otherwise than before."""
        self.drop(holder)
        self.held[holder] = held
        self.vcpu_used += held.vcpu_milli
        self.memory_used += held.memory_mib
        self.last_start = max(self.last_start, held.start)
        self.first_end = min(self.first_end, held.end)

    def drop(self, holder: str) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(holder, None)
        if held is None:
            return
        self.vcpu_used -= held.vcpu_milli
        self.memory_used -= held.memory_mib
        self.last_start = max((h.start for h in self.held.values()), default=NEVER)
        self.first_end = min((h.end for h in self.held.values()), default=FOREVER)


def peak(amounts: Iterable[tuple[int, int, int]], start: int, end: int) -> int:
    """Return the largest sum of (from, to, amount) triples at one instant of [start, end)."""
    changes: list[tuple[int, int]] = []
    for low, high, amount in amounts:
        if low < end and high > start:
            changes.append((max(low, start), amount))
            changes.append((high, -amount))
    # At one instant, what ends is gone before what begins arrives: windows are half-open.
    changes.sort()
    level = highest = 0
    for _, amount in changes:
        level += amount
        highest = max(highest, level)
    return highest
