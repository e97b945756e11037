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
        self._measure()
        for held in self.held.values():
            self._add(held, 1)

    def busy(self, start: int, end: int) -> int:
        """Return the units that somebody has at some instant of the window."""
        mask = 0
        for held in self.held.values():
            if held.start < end and held.end > start:
                mask |= held.units
        return mask

    def room(self, start: int, end: int) -> tuple[int, int]:
        """Return the units and the holders that every instant of the window still has room for.

        For slots and shares this is by count; a whole GPU is one unit. The atoms of a MIG GPU are
        not interchangeable: ask `free_atoms` for them.
        """
        if self.last_start <= start < self.first_end:
            # All that is held runs at the first instant: what is free then is free whenever.
            return self.idle, SEATS - self._holders.top if self.seats else self.idle
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
        self._add(held, 1)

    def drop(self, key: HeldKey) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(key, None)
        if held is not None:
            self._add(held, -1)
            self.last_start = max((each.start for each in self.held.values()), default=NEVER)
            self.first_end = min((each.end for each in self.held.values()), default=FOREVER)

    def _add(self, held: Held, sign: int) -> None:
        units = (held.units & self.capacity).bit_count()
        self._units.add(held.start, held.end, sign * units)
        if self.seats:
            holders = (held.units & self.seats).bit_count()
            self._holders.add(held.start, held.end, sign * holders)
        self.last_start = max(self.last_start, held.start)
        self.first_end = min(self.first_end, held.end)
        self._measure()

    def _measure(self) -> None:
        if self.split == "mig":
            self.idle = len(self.free_atoms(NEVER, FOREVER))
        elif self.seats and self._holders.top >= SEATS:
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

    ``vcpu_free`` and ``memory_free`` are what is free in every window: at least 0, also where an
    overcommitted host shrank below its use. ``last_start`` and ``first_end`` are those of all that
    is held of the host.
    """

    id: int
    name: str
    vcpu_milli: int
    memory_mib: int
    gpus: tuple[GpuState, ...] = ()
    healthy: bool = True
    held: dict[str, HostHeld] = field(default_factory=dict[str, HostHeld])
    vcpu_free: int = field(init=False)
    memory_free: int = field(init=False)
    last_start: int = field(init=False, default=NEVER)
    first_end: int = field(init=False, default=FOREVER)
    _vcpu: Skyline = field(init=False, default_factory=Skyline)
    _memory: Skyline = field(init=False, default_factory=Skyline)

    def __post_init__(self) -> None:
        """Derive what is free."""
        self.vcpu_free, self.memory_free = self.vcpu_milli, self.memory_mib
        for held in self.held.values():
            self._add(held, 1)

    def hosts(self, vcpu_milli: int, memory_mib: int, start: int, end: int) -> bool:
        """Tell whether the host can give this much in every instant of the window.

        An ask of nothing is never short, even where an overcommitted host shrank below its use.
        """
        if vcpu_milli > self.vcpu_free:
            used = self._vcpu.peak(start, end)
            if used + vcpu_milli > self.vcpu_milli:
                return False
        if memory_mib > self.memory_free:
            used = self._memory.peak(start, end)
            return used + memory_mib <= self.memory_mib
        return True

    def put(self, holder: str, held: HostHeld) -> None:
        """Hold, or hold otherwise than before."""
        self.drop(holder)
        self.held[holder] = held
        self._add(held, 1)

    def drop(self, holder: str) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(holder, None)
        if held is not None:
            self._add(held, -1)
            self.last_start = max((each.start for each in self.held.values()), default=NEVER)
            self.first_end = min((each.end for each in self.held.values()), default=FOREVER)

    def _add(self, held: HostHeld, sign: int) -> None:
        self._vcpu.add(held.start, held.end, sign * held.vcpu_milli)
        self._memory.add(held.start, held.end, sign * held.memory_mib)
        self.vcpu_free = max(0, self.vcpu_milli - self._vcpu.top)
        self.memory_free = max(0, self.memory_mib - self._memory.top)
        self.last_start = max(self.last_start, held.start)
        self.first_end = min(self.first_end, held.end)
