"""Choose how an ask is met, strongest isolation first, and say what the choice wastes. Pure.

``mig``, then ``mps``, then ``timeslice``, then a whole GPU. Nothing is ever called a share that is
not one: what cannot be split is rounded up to a whole GPU with the waste stated, and nothing falls
below the ask's minimum isolation.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from apportion.errors import InvalidStateError
from apportion.planning.asks import FractionalAsk, describe
from apportion.planning.capabilities import MPS_UNITS, ClusterGpuCaps
from apportion.planning.isolation import Isolation, Mechanism
from apportion.quantities.shares import exact_text, percent_text
from apportion.quantities.sizes import format_bytes, format_mib

if TYPE_CHECKING:  # see capabilities
    from apportion.geometry import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismChoice:
    """How one ask is met. Fractions are of one GPU's compute; n for n whole GPUs.

    ``requested_fraction`` of a memory ask is its part of the GPU's memory. ``slots`` counts fixed
    slots or free shares where they are what is booked. ``note`` says why in one sentence.
    """

    mechanism: Mechanism
    requested_fraction: Fraction
    allocated_fraction: Fraction
    note: str
    mig_profile: str | None = None
    slots: int | None = None

    @property
    def isolation(self) -> Isolation:
        """Give what stands between this holder and others."""
        return self.mechanism.isolation

    @property
    def wasted_fraction(self) -> Fraction:
        """Give what is allocated beyond what was asked for; never negative."""
        return max(Fraction(0), self.allocated_fraction - self.requested_fraction)

    @property
    def is_fallback(self) -> bool:
        """Tell whether a whole GPU stands in for a part of one."""
        return self.mechanism is Mechanism.WHOLE and self.wasted_fraction > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an ask cannot be met: a stable ``code`` for programs, a ``sentence`` for people."""

    code: str
    sentence: str


def select_mechanism(ask: FractionalAsk, caps: ClusterGpuCaps) -> MechanismChoice:
    """Choose the mechanism for one ask.

    Raises InvalidStateError, with the code in ``details["reason"]``, where the ask is not possible
    as it stands, and InvalidInputError where the GPU model or an offered profile does not exist.
    """
    answer = decide(ask, caps)
    if isinstance(answer, Refusal):
        raise InvalidStateError(
            answer.sentence, field=ask.label, details={"reason": answer.code, "label": ask.label}
        )
    return answer


def decide(ask: FractionalAsk, caps: ClusterGpuCaps) -> MechanismChoice | Refusal:
    """Choose the mechanism for one ask, or say why there is none; the refusal is a value."""
    if ask.gpus is not None:
        count = Fraction(ask.gpus)
        return MechanismChoice(
            mechanism=Mechanism.WHOLE,
            requested_fraction=count,
            allocated_fraction=count,
            note=f"{describe(ask)} with no other holder",
        )
    if ask.mig_profile is not None:
        return _named_profile(ask, ask.mig_profile, caps)
    if ask.slots is not None:
        return _fixed_slots(ask, ask.slots, caps)
    if ask.memory is not None:
        return _memory(ask, ask.memory, caps)
    return _split(ask, ask.fraction or Fraction(1), caps)


def _memory(ask: FractionalAsk, memory: int, caps: ClusterGpuCaps) -> MechanismChoice | Refusal:
    """Turn an amount of memory into its part of one GPU's."""
    total = caps.memory_bytes
    if total == 0:
        return Refusal(
            code="memory_unknown", sentence=f"no source gives the memory of {caps.board.model}"
        )
    if memory > total:
        return Refusal(
            code="too_large",
            sentence=f"{format_bytes(memory)} is more than the {format_bytes(total)} of one GPU",
        )
    return _split(ask, Fraction(memory, total), caps)


def _split(ask: FractionalAsk, requested: Fraction, caps: ClusterGpuCaps) -> MechanismChoice:
    """Try the ways to split a GPU in order; a whole one where none is left."""
    if not caps.splits:
        return _whole(ask, requested, "no fractional support")
    reasons: list[str] = []
    if caps.supports_mig and Mechanism.MIG.isolation.covers(ask.isolation):
        profile = _smallest(ask, requested, caps)
        if profile is not None:
            return _mig(requested, profile, ask)
        reasons.append(f"no MIG profile on offer has {_wanted(ask)}")
    soft = _soft_mechanism(caps)
    if soft is not None and soft.isolation.covers(ask.isolation):
        return _soft(soft, requested, caps)
    if soft is not None or not reasons:
        reasons.append(f"nothing that splits these GPUs gives {ask.isolation} isolation")
    return _whole(ask, requested, "; ".join(reasons))


def _smallest(ask: FractionalAsk, requested: Fraction, caps: ClusterGpuCaps) -> "Profile | None":
    """Find the smallest profile with enough of what was asked for, compute or memory.

    A profile whose memory no source gives never answers an ask for memory.
    """
    for profile in caps.offered:
        if ask.memory is None:
            enough = profile.share >= requested
        else:
            enough = profile.memory_mib is not None and profile.memory_mib * 2**20 >= ask.memory
        if enough:
            return profile
    return None


def _mig(requested: Fraction, profile: "Profile", ask: FractionalAsk) -> MechanismChoice:
    memory = "" if profile.memory_mib is None else f" and {format_mib(profile.memory_mib)}"
    return MechanismChoice(
        mechanism=Mechanism.MIG,
        requested_fraction=requested,
        allocated_fraction=profile.share,
        mig_profile=profile.name,
        note=f"{profile.name} is the smallest profile on offer with {_wanted(ask)} "
        f"(it has {exact_text(profile.share)} of the compute{memory})",
    )


def _wanted(ask: FractionalAsk) -> str:
    what = "memory" if ask.memory is not None else "the compute"
    return f"{describe(ask)} of {what}"


def _named_profile(
    ask: FractionalAsk, name: str, caps: ClusterGpuCaps
) -> MechanismChoice | Refusal:
    """Give exactly the profile that was named; something larger only if the ask allows it."""
    offered = caps.offered
    exact = next((profile for profile in offered if profile.name == name), None)
    if exact is not None and Mechanism.MIG.isolation.covers(ask.isolation):
        return MechanismChoice(
            mechanism=Mechanism.MIG,
            requested_fraction=exact.share,
            allocated_fraction=exact.share,
            mig_profile=name,
            note=f"exactly the {name} that was asked for",
        )
    refusal = _no_such_profile(ask, name, caps)
    if not ask.allow_larger:
        return refusal
    requested = _share_of_name(name, caps)
    if requested > 1:
        return refusal
    larger = _larger(name, offered) if Mechanism.MIG.isolation.covers(ask.isolation) else None
    if larger is None:
        return _whole(ask, requested, refusal.sentence)
    return MechanismChoice(
        mechanism=Mechanism.MIG,
        requested_fraction=requested,
        allocated_fraction=larger.share,
        mig_profile=larger.name,
        note=f"{refusal.sentence}; {larger.name} is the smallest larger one",
    )


def _no_such_profile(ask: FractionalAsk, name: str, caps: ClusterGpuCaps) -> Refusal:
    if not caps.supports_mig:
        return Refusal(
            code="no_mig", sentence=f"{name} was asked for and the GPUs are not split by MIG"
        )
    if not Mechanism.MIG.isolation.covers(ask.isolation):
        return Refusal(
            code="isolation_not_available",
            sentence=f"a MIG profile gives hardware isolation and {ask.isolation} was asked for",
        )
    board = caps.board
    names = ", ".join(profile.name for profile in caps.offered) or "none"
    if all(profile.name != name for profile in board.profiles):
        return Refusal(
            code="no_such_profile",
            sentence=f"{board.model} has no profile {name} (on offer: {names})",
        )
    return Refusal(
        code="profile_not_offered", sentence=f"{name} is not on offer here (on offer: {names})"
    )


def _share_of_name(name: str, caps: ClusterGpuCaps) -> Fraction:
    from apportion.geometry.profile_names import parse_profile

    return Fraction(parse_profile(name).compute, caps.board.compute_slices)


def _larger(name: str, offered: "tuple[Profile, ...]") -> "Profile | None":
    """Find the smallest profile with at least the name's compute, memory and attributes."""
    from apportion.geometry.profile_names import parse_profile

    wanted = parse_profile(name)
    for profile in offered:
        has = parse_profile(profile.name)
        if (
            has.compute >= wanted.compute
            and has.gigabytes >= wanted.gigabytes
            and has.attributes >= wanted.attributes
        ):
            return profile
    return None


def _soft_mechanism(caps: ClusterGpuCaps) -> Mechanism | None:
    if caps.supports_mps:
        return Mechanism.MPS
    return Mechanism.TIMESLICE if caps.supports_timeslice else None


def _fixed_slots(ask: FractionalAsk, count: int, caps: ClusterGpuCaps) -> MechanismChoice | Refusal:
    mechanism = _soft_mechanism(caps)
    if mechanism is None or caps.slots_per_gpu is None:
        return Refusal(code="no_slots", sentence="the GPUs have no fixed slots")
    if count > caps.slots_per_gpu:
        return Refusal(
            code="too_large",
            sentence=f"{count} slots is more than one GPU's {caps.slots_per_gpu}",
        )
    if not mechanism.isolation.covers(ask.isolation):
        return Refusal(
            code="isolation_not_available",
            sentence=f"slots give soft isolation and {ask.isolation} was asked for",
        )
    return _soft(mechanism, None, caps, count=count)


def _soft(
    mechanism: Mechanism, requested: Fraction | None, caps: ClusterGpuCaps, *, count: int = 0
) -> MechanismChoice:
    """Book slots, free shares, or exactly the fraction; None asks for ``count`` slots."""
    total = caps.slots_per_gpu or caps.shares_per_gpu
    if total is None:
        share = requested or Fraction(1)
        return MechanismChoice(
            mechanism=mechanism,
            requested_fraction=share,
            allocated_fraction=share,
            note=_SOFT[mechanism],
        )
    count = count or ceil((requested or 0) * total)
    if caps.slots_per_gpu is not None and mechanism is Mechanism.MPS:
        allocated = Fraction(count * caps.mps_slot_units, MPS_UNITS)
    else:
        allocated = Fraction(count, total)
    what = "slots" if caps.slots_per_gpu is not None else "shares"
    less = ""
    if requested is not None and allocated < requested:
        less = f", {exact_text(allocated)} where {exact_text(requested)} was asked"
    return MechanismChoice(
        mechanism=mechanism,
        requested_fraction=allocated if requested is None else requested,
        allocated_fraction=allocated,
        slots=count,
        note=f"{count} of {total} {what}{_mps_slots(mechanism, caps)}{less}; {_SOFT[mechanism]}",
    )


def _mps_slots(mechanism: Mechanism, caps: ClusterGpuCaps) -> str:
    """Say what a fixed MPS slot really is: 100 rarely divides, and the rest belongs to nobody."""
    if mechanism is not Mechanism.MPS or caps.slots_per_gpu is None:
        return ""
    units = caps.mps_slot_units
    rest = MPS_UNITS - units * caps.slots_per_gpu
    stranded = f", {rest} of each GPU's {MPS_UNITS} stranded" if rest else ""
    return f" of {units} MPS units each{stranded}"


_SOFT = {
    Mechanism.MPS: "soft isolation: MPS limits each client process, and a fault reaches all",
    Mechanism.TIMESLICE: "soft isolation: time slices partition neither memory nor SMs",
}


def _whole(ask: FractionalAsk, requested: Fraction, why: str) -> MechanismChoice:
    """Round up to a whole GPU and say so: a pretended share would bill a part and hold it all."""
    wasted = percent_text(1 - requested)
    return MechanismChoice(
        mechanism=Mechanism.WHOLE,
        requested_fraction=requested,
        allocated_fraction=Fraction(1),
        note=f"{why} — rounded {describe(ask)} up to a whole GPU ({wasted} wasted)",
    )
