"""What a node is asked to hand out, and whether what it reports has it: pure.

Each booking whose window has begun is an assignment. It is ``asked`` of its node, ``ready`` when a
report shows what was asked for, and ``missing`` when it was there, or the node says that it is done
with it, and a report does not show it. The node's word alone makes nothing ready; but where the
node tells of its allocations, nothing is ready that it has not handed out. What was withdrawn is
followed on until nobody is left on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, Literal

from apportion.nodes.allocations import AllocationBound, AllocationReleased, AllocationReport
from apportion.nodes.schemas import NodeReport
from apportion.quantities.units import bits
from apportion.quantities.windows import format_instant

DEVICES_UNIT: Final = "devices"

State = Literal["asked", "missing", "ready", "withdrawn"]
Reason = Mapping[str, Any]

REASONS: Final[Mapping[str, str]] = {
    "device_asked": "its node was asked for it, and has yet to read that",
    "window_over": "its window is over",
    "device_there": "its node reports it as it was asked",
    "gpu_missing": "its node does not report the GPU any more",
    "gpu_failed": "its node reports that the GPU failed",
    "mig_mode_changing": "the GPU's MIG mode is being switched",
    "mig_mode_on": "the GPU is in MIG mode, which is to be switched off",
    "device_missing": "its node does not report the instance",
    "instance_failed": "its node reports that the instance failed",
    "instance_of_another": "the instance that is there was made for somebody else",
    "delivered_less": "the instance has less than its profile promises",
    "blocked_by_overrun": "whoever had it before has not let go of it",
    "device_not_bound": "its node has not handed it out",
    "holder_in_grace": "its window is over, and its holder has a while to leave by itself",
    "holder_leaving": "its window is over, and its holder is told to leave",
    "holder_still_there": "its window is over, and its holder does not leave",
    "memory_not_idle": "its holder has left, and its memory is not given back",
    "not_given_back": "its window is over, and its node cannot take it back",
    "device_released": "its holder has left, and others may have it",
}
"""Why an assignment stands as it does."""


def _reason(code: str) -> Reason:
    return {"code": code, "message": REASONS[code]}


OVERRUN: Final = ("holder_still_there", "memory_not_idle", "not_given_back")
"""Reasons that need somebody: of what was withdrawn, and is not given back."""

ASKED: Final = _reason("device_asked")
OVER: Final = _reason("window_over")
_THERE: Final = _reason("device_there")
_LEAVING: Final = ("holder_in_grace", "holder_leaving", "holder_still_there", "memory_not_idle")
_SPOILT: Final = {"failed": "instance_failed"}
"""What some reasons of an instance that is there mean to its holder."""
_INSTANCE_KEYS: Final = ("migUuid", "giId", "ciId")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment, and its GPU and atom as they were last reported.

    ``units`` is a mask; ``profile`` and ``start`` are an instance's. ``found`` are the attributes
    of the atom, and ``atom_reason`` why it cannot be booked, None where it can. ``bound`` is what
    its node has said of handing it out.
    """

    booking_id: int
    tenant_id: str
    pool_id: str
    reservation_id: str
    piece: int
    gpu: str
    cls: str
    units: int
    ruler: int
    profile: str | None
    start: int | None
    share: Fraction
    begins: datetime
    ends: datetime | None
    generation: int
    state: State
    reason: Mapping[str, Any]
    device: Mapping[str, Any] | None
    bound: Mapping[str, Any] | None
    gpu_reason: str | None
    mig_current: bool
    mig_pending: bool
    atom_reason: str | None
    found: Mapping[str, Any]

    @property
    def allocation_id(self) -> str:
        """What names it: the reservation, and which of its pieces."""
        return allocation_id(self.reservation_id, self.piece)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a report says of an assignment; ``device`` has the names of its instance.

    ``bound`` is what the node has said of handing it out, which it does not take back by saying
    that it is not there any more: only what was released is nobody's.
    """

    state: State
    reason: Reason
    device: Mapping[str, Any] | None
    bound: Mapping[str, Any] | None


Words = Mapping[str, AllocationReport]
"""What a node says of its allocations, by their ids."""


def allocation_id(reservation_id: str, piece: int) -> str:
    """Name a piece of a reservation; fit for a file's name."""
    return f"{reservation_id}.{piece}"


def as_asked(each: Assigned) -> dict[str, Any]:
    """Write an assignment as the unit ``devices`` has it."""
    asked: dict[str, Any] = {
        "allocation_id": each.allocation_id,
        "reservation_id": each.reservation_id,
        "gpu": each.gpu,
        "class": each.cls,
        "share": str(each.share),
        "begins": format_instant(each.begins),
        "ends": None if each.ends is None else format_instant(each.ends),
    }
    match each.cls:
        case "gpu.mig":
            asked |= {"profile": each.profile, "start": each.start}
        case "gpu.slot":
            asked["slots"] = list(bits(each.units))
        case "gpu.share":
            # Beyond the ruler lies its seat.
            asked["hundredths"] = (each.units & ((1 << each.ruler) - 1)).bit_count()
        case _:
            pass
    return asked


def words_of(report: NodeReport) -> Words | None:
    """Return what a node says of its allocations; None where it cannot tell."""
    if report.allocations is None:
        return None
    return {word.allocation_id: word for word in report.allocations}


def see(each: Assigned, report: NodeReport, words: Words | None) -> Seen:
    """Tell what a report, which was taken in, says of an assignment."""
    word = None if words is None else words.get(each.allocation_id)
    bound = each.bound or _bound(word, report)
    if report.observed_generation < each.generation:
        return Seen(each.state, ASKED, each.device, bound)
    wrong = _wrong(each, report)
    if wrong is None:
        reason = None if words is None else _not_handed_out(word)
    else:
        reason = _told_so(_reason(wrong), word)
    if reason is None:
        return Seen("ready", _THERE, _names(each), bound)
    done = max(report.converged.get(unit, 0) for unit in ("mig-layout", DEVICES_UNIT))
    gone = each.state in ("ready", "missing") or done >= each.generation
    return Seen("missing" if gone else "asked", reason, None, bound)


def see_leaving(word: AllocationReport | None, *, knows: bool) -> Reason | None:
    """Tell how what was withdrawn stands, by what its node says of it (None: it knows it not).

    None where that says nothing: nothing counts as released by a node that does not know (`knows`)
    that it was withdrawn, because such a node may hand it out yet.
    """
    if word is None or word.state == "released":
        return _reason("device_released") if knows else None
    if word.state != "ending":
        return None
    code = word.reason if word.reason in _LEAVING else "not_given_back"
    return {**_reason(code), "node": {"reason": word.reason, "message": word.message}}


def _bound(word: AllocationReport | None, report: NodeReport) -> Mapping[str, Any] | None:
    """Return the node's word that it has handed something out, with the report that says so."""
    return said(word, report) if isinstance(word, AllocationBound) else None


def said(word: AllocationBound | AllocationReleased, report: NodeReport) -> Mapping[str, Any]:
    """Return a node's word as it is kept: with the number of the report that it signed."""
    at, device = format_instant(word.at), word.device.model_dump()
    return {"report": report.sequence, "at": at, "device": device}


def _not_handed_out(word: AllocationReport | None) -> Reason | None:
    """Say why its holder cannot use what is there, by a node that tells of its allocations."""
    if word is None or word.state != "bound":
        held = word is not None and word.reason == "held_by_another"
        return _told_so(_reason("blocked_by_overrun" if held else "device_not_bound"), word)
    return None


def _told_so(reason: Reason, word: AllocationReport | None) -> Reason:
    """Add to a reason what the node itself says, where it says why."""
    if word is None or word.reason is None:
        return reason
    return {**reason, "node": {"reason": word.reason, "message": word.message}}


def _wrong(each: Assigned, report: NodeReport) -> str | None:
    if each.gpu_reason in ("missing", "failed"):
        return f"gpu_{each.gpu_reason}"
    if each.mig_current != each.mig_pending:
        return "mig_mode_changing"
    if each.cls != "gpu.mig":
        return "mig_mode_on" if each.mig_current else None
    uuid = each.found.get("migUuid")
    if uuid is None or each.atom_reason == "instance_missing":
        return "device_missing"
    if _made_for(report, uuid) not in (None, each.allocation_id):
        return "instance_of_another"
    return None if each.atom_reason is None else _SPOILT.get(each.atom_reason, "delivered_less")


def _made_for(report: NodeReport, uuid: str) -> str | None:
    """Return for which allocation the node says that it made an instance; None where for none."""
    for gpu in report.inventory.gpus:
        for instance in gpu.mig.instances:
            if instance.uuid == uuid:
                return instance.allocation_id
    return None


def _names(each: Assigned) -> Mapping[str, Any] | None:
    names = {key: each.found[key] for key in _INSTANCE_KEYS if key in each.found}
    return names or None
