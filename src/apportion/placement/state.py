"""The picture of one node and its GPUs: rulers, what is held, and exact answers for a window."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from apportion.placement.asks import CLASS_OF, AtomClass, Split
from apportion.placement.offers import HeldKey
from apportion.placement.selectors import Attributes
from apportion.placement.skyline import FOREVER, NEVER, Skyline
from apportion.quantities.units import WHOLE, span

if TYPE_CHECKING:
    from apportion.placement.models import State
    from apportion.placement.shelves import Standing

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
    """What can be booked of a MIG GPU: its units and the attributes that tell it apart.

    That is an instance; or, where instances are made on demand, the whole GPU: ``cls`` says which.
    Such pieces of one GPU may overlap; only disjoint ones are held at one time.
    """

    id: int
    units: int
    profile: str | None
    attributes: Attributes
    cls: AtomClass = "gpu.mig"

    @property
    def booked(self) -> int:
        """What a booking takes: of the whole GPU every unit, whatever the ruler's length."""
        return self.units if self.cls == "gpu.mig" else WHOLE


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU: ``ruler`` units (slots, hundredths, or 1), the atoms of a MIG GPU, and what is held.

    ``capacity`` is the mask that slots or shares are taken from; shares have `SEATS` further
    units, one a holder. ``group`` holds the attributes of `GROUP_KEYS`, which selectors decide
    for all such GPUs at once, and ``attributes`` those that tell GPUs apart.

    ``withheld`` names classes that it could have, and has not, each with the code of the reason.

    ``state`` and ``standing`` are where the GPU stands among those that can be booked (see
    `shelves`). ``busy_ever`` are the units that somebody has at some time. ``last_start`` and
    ``first_end`` are those of all that is held: while the one is before the other, all of it runs
    together.
    """

    id: int
    split: Split
    ruler: int
    group: Attributes
    attributes: Attributes
    generation: int = 1
    atom: int | None = None
    atoms: tuple[AtomState, ...] = ()
    withheld: tuple[tuple[AtomClass, str], ...] = ()
    bookable: bool = True
    held: dict[HeldKey, Held] = field(default_factory=dict[HeldKey, Held])
    state: "State | None" = field(init=False, default=None)
    standing: "Standing | None" = field(init=False, default=None)
    busy_ever: int = field(init=False, default=0)
    last_start: int = field(init=False, default=NEVER)
    first_end: int = field(init=False, default=FOREVER)
    _units: Skyline | None = field(init=False, default=None)
    _holders: Skyline | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Take up what is held."""
        self._gather()

    @property
    def classes(self) -> frozenset[AtomClass]:
        """The classes of what can be booked of it."""
        if self.split == "mig":
            return frozenset(atom.cls for atom in self.atoms)
        return frozenset((CLASS_OF[self.split],))

    @property
    def capacity(self) -> int:
        """The mask that slots or shares are taken from."""
        return (1 << self.ruler) - 1

    @property
    def seats(self) -> int:
        """The mask of the seats of a freely shared GPU; 0 for any other."""
        return span(self.ruler, SEATS) if self.split == "shares" else 0

    @property
    def idle(self) -> int:
        """What is free in every window: units by count, or atoms of a MIG GPU."""
        if self.split == "mig":
            return sum(1 for atom in self.atoms if not atom.units & self.busy_ever)
        if self.last_start < self.first_end:
            if self.split == "shares" and (self.busy_ever & self.seats).bit_count() >= SEATS:
                return 0
            return self.ruler - (self.busy_ever & self.capacity).bit_count()
        units, holders = self._counted()
        return 0 if self.seats and holders.top >= SEATS else max(0, self.ruler - units.top)

    def shown_of(self, atom: AtomState | None) -> Attributes:
        """Return what selectors see of the GPU, or of an atom of it."""
        if atom is None:
            return {**self.group, **self.attributes}
        shown = {**self.group, **self.attributes, **atom.attributes}
        return shown if atom.profile is None else {**shown, "migProfile": atom.profile}

    def busy(self, start: int, end: int) -> int:
        """Return the units that somebody has at some instant of the window."""
        if self.last_start < end and self.first_end > start:
            return self.busy_ever
        mask = 0
        for units in self.held_in(start, end):
            mask |= units
        return mask

    def held_in(self, start: int, end: int) -> list[int]:
        """Return the units of each piece that is held at some instant of the window."""
        return [each.units for each in self.held.values() if each.start < end and each.end > start]

    def room(self, start: int, end: int) -> tuple[int, int]:
        """Return the units and the holders that every instant of the window still has room for.

        For slots and shares this is by count; a whole GPU is one unit. The atoms of a MIG GPU are
        not interchangeable: ask `free_atoms` for them.
        """
        if self.last_start <= start < self.first_end:
            # All that is held runs at the first instant: what is free then is free whenever.
            units = max(0, self.ruler - (self.busy_ever & self.capacity).bit_count())
            seats = self.seats
            return units, SEATS - (self.busy_ever & seats).bit_count() if seats else units
        used, holders = self._counted()
        units = max(0, self.ruler - used.peak(start, end))
        if not self.seats:
            return units, units
        return units, max(0, SEATS - holders.peak(start, end))

    def free_atoms(self, start: int, end: int) -> list[AtomState]:
        """Return the atoms that nobody has at any instant of the window."""
        busy = self.busy(start, end)
        return [atom for atom in self.atoms if not atom.units & busy]

    def taken(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, units) of what is taken: of MIG as masks, else by count.

        All units of a shared GPU are taken while its seats are.
        """
        if self.split == "mig":
            for held in self.held.values():
                yield held.start, held.end, held.units
            return
        units, holders = self._counted()
        yield from units.steps()
        for start, end, seats in holders.steps():
            if seats >= SEATS:
                yield start, end, self.ruler

    def put(self, key: HeldKey, held: Held) -> None:
        """Hold, or hold otherwise than before."""
        if key in self.held:
            self.drop(key)
        self.held[key] = held
        self._widen(held)
        if self._units is not None:
            self._count(held, 1)

    def drop(self, key: HeldKey) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(key, None)
        if held is not None:
            if self._units is not None:
                self._count(held, -1)
            self._gather()

    def _gather(self) -> None:
        self.busy_ever, self.last_start, self.first_end = 0, NEVER, FOREVER
        for held in self.held.values():
            self._widen(held)

    def _widen(self, held: Held) -> None:
        """Take up one more of what is held."""
        self.busy_ever |= held.units
        self.last_start = max(self.last_start, held.start)
        self.first_end = min(self.first_end, held.end)

    def _counted(self) -> tuple[Skyline, Skyline]:
        """Return how many units and seats are held when; kept from the first time it is asked.

        Most GPUs are never asked: all that is held of them runs together.
        """
        if self._units is None or self._holders is None:
            self._units, self._holders = Skyline(), Skyline()
            for held in self.held.values():
                self._count(held, 1)
        return self._units, self._holders

    def _count(self, held: Held, sign: int) -> None:
        if self._units is None or self._holders is None:
            return
        units = (held.units & self.capacity).bit_count()
        self._units.add(held.start, held.end, sign * units)
        if self.seats:
            holders = (held.units & self.seats).bit_count()
            self._holders.add(held.start, held.end, sign * holders)


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
    is held of the host. ``stale_since`` is from when on nobody has heard of it.
    """

    id: int
    name: str
    vcpu_milli: int
    memory_mib: int
    gpus: tuple[GpuState, ...] = ()
    healthy: bool = True
    stale_since: int | None = None
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

    def is_overfull(self, holder: str) -> bool:
        """Tell whether the host can give less than is held of it while a holder has some of it.

        That goes for what the holder has: who has memory alone does not mind who has the CPU.
        """
        held = self.held.get(holder)
        if held is None:
            return False
        vcpu = held.vcpu_milli and self._vcpu.peak(held.start, held.end)
        memory = held.memory_mib and self._memory.peak(held.start, held.end)
        return vcpu > self.vcpu_milli or memory > self.memory_mib

    def room(self, start: int, end: int) -> tuple[int, int]:
        """Return the CPU and the memory that every instant of the window still has."""
        return (
            max(0, self.vcpu_milli - self._vcpu.peak(start, end)),
            max(0, self.memory_mib - self._memory.peak(start, end)),
        )

    @property
    def last_start_of_all(self) -> int:
        """When the last begins of all that is held of the host and of its GPUs."""
        return max([self.last_start, *(gpu.last_start for gpu in self.gpus)])

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
