"""What a node's report says of what it hands out: named parts of what it signs."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import Schema, Text


class DeviceReport(Schema):
    """What an allocation has: the UUID of a GPU or a MIG instance, and the ids of an instance."""

    uuid: Text
    gi_id: Annotated[int, Field(strict=True, ge=0)] | None = None
    ci_id: Annotated[int, Field(strict=True, ge=0)] | None = None


class _AllocationReport(Schema):
    """What is said of any allocation: ``reason`` is a code of what keeps it, ``message`` says it.

    ``at`` is since when it stands so, by the node's clock.
    """

    allocation_id: Text
    reason: Text | None = None
    message: Annotated[str, Field(max_length=1000)] = ""


class AllocationHeldUp(_AllocationReport):
    """``waiting`` for its device, or ``ending``: it is over, and is yet to be taken back."""

    state: Literal["waiting", "ending"]
    at: AwareDatetime | None = None
    device: DeviceReport | None = None


class AllocationBound(_AllocationReport):
    """A device is handed out, since ``at``: by the node's word somebody may be on it."""

    state: Literal["bound"]
    at: AwareDatetime
    device: DeviceReport


class AllocationReleased(_AllocationReport):
    """A device was taken back at ``at``: by the node's word nobody is left on it."""

    state: Literal["released"]
    at: AwareDatetime
    device: DeviceReport


AllocationReport = Annotated[
    AllocationHeldUp | AllocationBound | AllocationReleased, Field(discriminator="state")
]
"""How the unit ``devices`` of a node stands with one allocation."""
