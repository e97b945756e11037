"""The next safe steps for one GPU, and what has to be waited for: pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from apportion.agent.mig.journal import Entry, Stage
from apportion.agent.mig.seen import Gpu, Hold, Instance
from apportion.agent.mig.wishes import Wanted, Wish
from apportion.agent.nvml import Place

NEVER: Final = "never"
IDLE: Final = "idle"
REBOOT: Final = "reboot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroy:
    """Destroy an instance of ours that nobody uses."""

    instance: Instance
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make an instance where nothing lies."""

    wanted: Wanted
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMode:
    """Ask for MIG mode on or off, on a GPU that nobody uses."""

    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Reset a GPU that nobody uses, which puts its pending mode in force."""


Step = Destroy | Create | SwitchMode | Reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What keeps a GPU from being what was asked, as a code and for people."""

    gpu: str
    reason: str
    message: str


@dataclass(slots=True)
class Plan:
    """Steps that are safe now, in order, and what has to be waited for."""

    steps: list[Step] = field(default_factory=list[Step])
    waits: list[Wait] = field(default_factory=list[Wait])


def plan_for(
    gpu: Gpu,
    wish: Wish | None,
    ours: Mapping[int, Entry],
    holds: Collection[Hold],
    mode_change: str,
) -> Plan:
    """Return what may be done next to make a GPU what it is to be.

    ``ours`` are the entries of the instances that the agent made, by id; all others are foreign:
    never touched, and nothing is made where they lie. ``wish`` is None where nothing is asked of
    the GPU: what is whole stays, and what is half-made goes.
    """
    planner = _Planner(gpu, ours, holds)
    if wish is None:
        planner.destroy(each for each in gpu.instances if planner.is_half_made(each))
    elif wish.impossible is not None:
        planner.wait("impossible_layout", f"cannot be cut so: {wish.impossible}")
    else:
        planner.fulfil(wish, mode_change)
    return planner.plan


class _Planner:
    def __init__(self, gpu: Gpu, ours: Mapping[int, Entry], holds: Collection[Hold]) -> None:
        self.gpu = gpu
        self.plan = Plan()
        self._ours = ours
        self._holds = [hold for hold in holds if hold.gpu == gpu.uuid]

    def wait(self, reason: str, message: str) -> None:
        self.plan.waits.append(Wait(gpu=self.gpu.uuid, reason=reason, message=message))

    def is_half_made(self, instance: Instance) -> bool:
        entry = self._ours.get(instance.gi_id)
        return entry is not None and entry.stage is not Stage.CREATED

    def fulfil(self, wish: Wish, mode_change: str) -> None:
        if self._is_cut_as_named(wish):
            self._settle_mode(wish, mode_change)
            return
        stay = [each for each in self.gpu.instances if self._stays(each, wish)]
        going = [each for each in self.gpu.instances if each not in stay]
        left = self.destroy(going)
        for each in stay:
            self._judge(each)
        whole = wish.mig is False or wish.counts is not None
        if whole and any(each.gi_id not in self._ours for each in left):
            # The cut of the whole GPU is asked for, and a stranger's instance will stay in it.
            self.wait("foreign_instance", "has an instance that the agent did not make")
            return
        if not self._settle_mode(wish, mode_change):
            return
        if self.gpu.mig:
            self._create(wish, stay, left)

    def destroy(self, instances: Iterable[Instance]) -> list[Instance]:
        """Plan to destroy those of ours that nobody uses; returns the ones that stay."""
        left: list[Instance] = []
        for each in instances:
            entry = self._ours.get(each.gi_id)
            user = None if entry is None else self._user(each)
            if entry is not None and user is None:
                self.plan.steps.append(Destroy(instance=each, entry=entry))
                continue
            left.append(each)
            if user is not None:
                reason, who = user
                self.wait(reason, f"{each.profile} at {each.place.start} is to go, and {who}")
        return left

    def _is_cut_as_named(self, wish: Wish) -> bool:
        """Tell whether a named layout is there already, wherever its instances lie."""
        if wish.counts is None or self.gpu.mig != wish.mig:
            return False
        there: dict[str, int] = {}
        for each in self.gpu.instances:
            if each.device is None or self.is_half_made(each):
                return False
            there[each.profile] = there.get(each.profile, 0) + 1
        return there == wish.counts

    def _stays(self, instance: Instance, wish: Wish) -> bool:
        entry = self._ours.get(instance.gi_id)
        wanted = next(
            (
                each
                for each in wish.instances
                if (each.profile, each.start) == (instance.profile, instance.place.start)
            ),
            None,
        )
        if entry is None or wanted is None or instance.device is None:
            return False
        return entry.stage is Stage.CREATED and entry.allocation_id == wanted.allocation_id

    def _judge(self, instance: Instance) -> None:
        """Say where an instance has less than its profile promises."""
        device = instance.device
        assert device is not None  # noqa: S101 - one that stays has its device
        promised = self.gpu.profiles[instance.profile]
        sms, memory = promised.sm_count, promised.memory_mib
        if device.sm_count < sms or device.memory_mib < memory:
            self.wait(
                "delivered_less",
                f"{instance.profile} at {instance.place.start} has {device.sm_count} SMs and"
                f" {device.memory_mib} MiB; promised are {sms} and {memory}",
            )

    def _settle_mode(self, wish: Wish, mode_change: str) -> bool:
        """Plan to switch MIG where that is wanted; True where the mode is right already."""
        gpu = self.gpu
        if wish.mig is None or (gpu.mig == wish.mig and gpu.pending == wish.mig):
            return True
        if gpu.mig == wish.mig:
            # Somebody asked for the other mode, which the next reset would put in force.
            self.plan.steps.append(SwitchMode(on=wish.mig))
            return True
        if why := self._why_no_switch(mode_change):
            self.wait(*why)
        elif gpu.pending == wish.mig and gpu.needs_reset:
            self.plan.steps.append(Reset())
        elif not self.plan.steps:
            self.plan.steps.append(SwitchMode(on=wish.mig))
        return False

    def _why_no_switch(self, mode_change: str) -> tuple[str, str] | None:
        if mode_change == NEVER:
            return "mode_change_not_allowed", "its pool lets nobody switch the MIG mode"
        if self.gpu.needs_reset and mode_change == IDLE:
            return (
                "mode_change_needs_reset",
                "its MIG mode changes with a reset, which its pool does not allow",
            )
        if self.gpu.pids:
            return "gpu_in_use", f"processes use it: {_listed(self.gpu.pids)}"
        # Of an instance that is not there, as after a reboot that took it, nobody has anything: to
        # wait for its holder would be to wait for each other.
        there = {None, *(each.place.start for each in self.gpu.instances)}
        if any(hold.start in there for hold in self._holds):
            return "gpu_held", "somebody has a device of it"
        return None

    def _create(self, wish: Wish, stay: list[Instance], left: list[Instance]) -> None:
        there = {(each.profile, each.place.start) for each in stay}
        for wanted in wish.instances:
            if (wanted.profile, wanted.start) in there:
                continue
            place = self.gpu.place(wanted.profile, wanted.start)
            if place is None:
                self.wait("no_such_place", f"its driver has no {wanted.profile} at {wanted.start}")
            elif (clash := self._in_the_way(place, [*stay, *left])) is None:
                self.plan.steps.append(Create(wanted=wanted, place=place))
            elif clash.gi_id not in self._ours:
                self.wait(
                    "foreign_instance",
                    f"{wanted.profile} at {wanted.start} is to be where {clash.profile} at"
                    f" {clash.place.start} lies, which the agent did not make",
                )

    def _in_the_way(self, place: Place, instances: Iterable[Instance]) -> Instance | None:
        for each in instances:
            there = each.place
            if there.start < place.start + place.size and place.start < there.start + there.size:
                return each
        return None

    def _user(self, instance: Instance) -> tuple[str, str] | None:
        """Return why an instance may not be touched, or None."""
        if any(hold.start in {None, instance.place.start} for hold in self._holds):
            return "gpu_held", "somebody has it"
        if instance.pids:
            return "instance_in_use", f"processes use it: {_listed(instance.pids)}"
        return None


def _listed(pids: Collection[int]) -> str:
    return ", ".join(str(pid) for pid in sorted(pids))
