"""What the spec's unit ``devices`` asks for: which allocation is to have what of which GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter

from apportion.agent.devices.faults import HeldUpError

Share = Annotated[Fraction, BeforeValidator(Fraction), PlainSerializer(str)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One allocation: named for good by its id, and there until ``ends`` (None: till withdrawn).

    ``gpu`` is a UUID. A MIG instance has ``profile`` and ``start``, its first memory slice, and is
    known by these: its own UUID changes whenever it is made again. ``slots`` are numbers of slots,
    ``hundredths`` parts of a GPU in MPS.
    """

    allocation_id: str
    reservation_id: str
    gpu: str
    class_: Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share"]
    share: Share
    begins: AwareDatetime
    ends: AwareDatetime | None = None
    profile: str | None = None
    start: int | None = None
    slots: tuple[int, ...] = ()
    hundredths: int | None = None

    __pydantic_config__ = ConfigDict(extra="ignore")

    def is_over(self, now: datetime) -> bool:
        """Tell whether its window has ended, also where no server says so."""
        return self.ends is not None and self.ends <= now

    @property
    def is_shared(self) -> bool:
        """Tell whether others are on the same GPU beside it, told apart by nothing physical."""
        return self.class_ in ("gpu.slot", "gpu.share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Releasing:
    """How a device is taken back: so long after its end its holder is told to leave.

    ``reset``: its memory has to be back to what was used of it before it was handed out. A server
    that says nothing of it gets the careful way.
    """

    grace_seconds: int = 0
    reset: bool = True


_ASSIGNMENTS: Final[TypeAdapter[list[Assignment]]] = TypeAdapter(list[Assignment])
_RELEASING: Final = TypeAdapter(Releasing)


def read_assignments(wanted: Mapping[str, Any]) -> Sequence[Assignment]:
    """Read the unit's assignments; ValidationError for what is none."""
    rows = [{**row, "class_": row.get("class")} for row in wanted.get("assignments", ())]
    return _ASSIGNMENTS.validate_python(rows)


def read_releasing(wanted: Mapping[str, Any]) -> Releasing:
    """Read how devices are taken back; what the spec does not say is as by default."""
    return _RELEASING.validate_python(wanted.get("release", {}))


def check_names(assignment: Assignment) -> None:
    """Refuse an id that would lead out of a directory, or is no name of a CDI device."""
    name = assignment.allocation_id
    if not name or not name[0].isalnum() or not name[-1].isalnum():
        raise HeldUpError("bad_allocation_id", f"{name!r} is no name of a device")
    if not all(each.isascii() and (each.isalnum() or each in "_-.") for each in name):
        raise HeldUpError("bad_allocation_id", f"{name!r} is no name of a device")
