"""GPUs and atoms as they should be, derived from what a node reports."""

from dataclasses import dataclass, field
from fractions import Fraction

from apportion.geometry import Placement, Profile
from apportion.nodes.schemas import GpuReport

Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomSpec:
    """One atom as it should be: its durable key, class, units, billing share and attributes.

    ``reason`` says why it cannot be booked, None when it can. ``profile`` and ``start`` name its
    legal placement where the board's geometry is known.
    """

    key: str
    cls: str
    units: str
    share: Fraction
    attributes: Attributes
    reason: str | None = None
    board: str | None = None
    profile: str | None = None
    start: int | None = None

    @property
    def cut(self) -> tuple[str, str]:
        """What must stay the same for it to be the same atom."""
        return self.key, self.units


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU and its atoms, derived. ``reason`` says why nothing of it can be booked."""

    report: GpuReport
    board: str | None
    split: str
    ruler: int
    reason: str | None
    on_demand: bool = False
    atoms: tuple[AtomSpec, ...] = field(default=())


def atom_key(report: GpuReport, profile: Profile, place: Placement) -> str:
    """Name an instance for good: MIG UUIDs change whenever it is made again, and ids are reused."""
    return f"{report.uuid}/mig/{profile.id}@{place.start}"
