"""The picture of one node and its GPUs: rulers, what is held, and exact answers for a window."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from apportion.placement.offers import HeldKey
from apportion.placement.selectors import Attributes
from apportion.quantities.units import span

FOREVER: Final = 2**62
SEATS: Final = 48
"""The most holders of one freely shared GPU: what one MPS server serves."""

Split = Literal["none", "mig", "slots", "shares"]


@dataclass(frozen=True, slots=True)
class Held:
    """Units of a GPU that somebody has for a window; ``units`` may be unbounded (every unit)."""

    start: int
    end: int
    units: int


@dataclass(frozen=True, slots=True)
class AtomState:
    """A MIG instance that can be booked: its units and the attributes that tell it apart."""

    id: int
    units: int
    profile: str
    attributes: Attributes


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU: ``ruler`` units (slots, hundredths, or 1), the atoms of a MIG GPU, and what is held.

    ``capacity`` is the mask that slots or shares are taken from; shares have `SEATS` further units,
    one a holder. ``group`` holds the attributes that selectors decide for all such GPUs at once.
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
    union: int = 0

    @property
    def capacity(self) -> int:
        """The units that pieces are cut from (seats apart)."""
        return span(0, self.ruler)

    @property
    def seats(self) -> int:
        """The units that stand for holders; empty where holders are not counted apart."""
        return span(self.ruler, SEATS) if self.split == "shares" else 0

    def busy(self, start: int, end: int) -> int:
        """Return the units that somebody has at some instant of the window."""
        mask = 0
        for held in self.held.values():
            if held.start < end and held.end > start:
                mask |= held.units
        return mask

    def peak(self, start: int, end: int, within: int) -> int:
        """Return the most units of ``within`` held at one instant of the window."""
        return peak(
            ((h.start, h.end, (h.units & within).bit_count()) for h in self.held.values()),
            start,
            end,
        )

    def put(self, key: HeldKey, held: Held) -> None:
        """Hold, or hold otherwise than before."""
        replaced = key in self.held
        self.held[key] = held
        if replaced:
            self._reunite()
        else:
            self.union |= held.units

    def drop(self, key: HeldKey) -> None:
        """Let go; holding nothing is fine."""
        if self.held.pop(key, None) is not None:
            self._reunite()

    def _reunite(self) -> None:
        mask = 0
        for held in self.held.values():
            mask |= held.units
        self.union = mask


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

    def hosts(self, vcpu_milli: int, memory_mib: int, start: int, end: int) -> bool:
        """Tell whether the host can give this much in every instant of the window."""
        if vcpu_milli == 0 and memory_mib == 0:
            return True
        if (
            self.vcpu_used + vcpu_milli <= self.vcpu_milli
            and self.memory_used + memory_mib <= self.memory_mib
        ):
            return True
        if vcpu_milli > self.vcpu_milli or memory_mib > self.memory_mib:
            return False
        held = self.held.values()
        vcpu = peak(((h.start, h.end, h.vcpu_milli) for h in held), start, end)
        memory = peak(((h.start, h.end, h.memory_mib) for h in held), start, end)
        # An ask of nothing is never short, even where an overcommitted host was shrunk below its use.
        return (vcpu_milli == 0 or vcpu + vcpu_milli <= self.vcpu_milli) and (
            memory_mib == 0 or memory + memory_mib <= self.memory_mib
        )

    def put(self, holder: str, held: HostHeld) -> None:
        """Hold, or hold otherwise than before."""
        self.drop(holder)
        self.held[holder] = held
        self.vcpu_used += held.vcpu_milli
        self.memory_used += held.memory_mib

    def drop(self, holder: str) -> None:
        """Let go; holding nothing is fine."""
        held = self.held.pop(holder, None)
        if held is not None:
            self.vcpu_used -= held.vcpu_milli
            self.memory_used -= held.memory_mib


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
