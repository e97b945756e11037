"""The unit `mig-layout`: looks at each GPU, takes the steps that are safe, and looks again."""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import Final

from apportion.agent.devices.faults import HeldUpError
from apportion.agent.mig.journal import Entry, Journal, Stage
from apportion.agent.mig.seen import Gpu, Hold, look_at, look_at_all
from apportion.agent.mig.steps import (
    REBOOT,
    Create,
    Destroy,
    Plan,
    Reset,
    Step,
    SwitchMode,
    Wait,
    plan_for,
)
from apportion.agent.mig.wishes import wish_for
from apportion.agent.nvml import Driver, DriverError, reset_gpu
from apportion.agent.units import Outcome, Wanted

_ROUNDS: Final = 6
"""Looks at one GPU in a turn: clean, destroy, switch, reset, create, and a last one to be sure."""


class MigLayout:
    """Makes the GPUs of a node what the spec asks, and leaves alone what is used or not ours."""

    def __init__(
        self,
        driver: Driver,
        journal: Journal,
        holds: Callable[[], Collection[Hold]],
        *,
        own: Wanted | None = None,
    ) -> None:
        """Work with a driver; ``holds`` are the devices that somebody has at the moment.

        ``own`` is what the node itself wants, whatever its spec says.
        """
        self._own = own
        self._driver = driver
        self._journal = journal
        self._holds = holds

    @property
    def name(self) -> str:
        """The unit's name in the spec."""
        return "mig-layout"

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:  # noqa: ARG002 - the contract of units
        """Take all safe steps on all GPUs: what one GPU waits for does not hold up another."""
        wanted = self._own or wanted
        try:
            waits = [wait for gpu in look_at_all(self._driver) for wait in self._cut(gpu, wanted)]
        except DriverError as error:
            return Outcome(done=False, reason=error.reason, message=error.message)
        except HeldUpError as error:
            # Whatever is cut now may be in somebody's hands.
            message = f"nobody can tell who has which device: {error.message}"
            return Outcome(done=False, reason="holders_unknown", message=message)
        except OSError as error:
            # Nothing is done that is not on record: a full disk stops the work, not the holders.
            return Outcome(
                done=False, reason="journal_failed", message=f"the journal: {error.strerror}"
            )
        if not waits:
            return Outcome(done=True)
        return Outcome(
            done=False,
            reason=waits[0].reason,
            message="; ".join(f"{wait.gpu} {wait.message}" for wait in waits),
            objects=tuple(dict.fromkeys(wait.gpu for wait in waits)),
        )

    def _cut(self, gpu: Gpu, wanted: Wanted | None) -> list[Wait]:
        mode_change = "never" if wanted is None else str(wanted["mode_change"])
        plan = Plan()
        for _ in range(_ROUNDS):
            if gpu.failed is not None:
                return [Wait(gpu=gpu.uuid, reason="gpu_failed", message=f"failed: {gpu.failed}")]
            wish = None if wanted is None else wish_for(gpu, wanted)
            plan = plan_for(gpu, wish, self._journal.of(gpu), self._holds(), mode_change)
            if not plan.steps:
                return plan.waits
            for step in plan.steps:
                try:
                    self._take(gpu, step)
                except DriverError as error:
                    return [*plan.waits, _failed(gpu.uuid, step, error, mode_change)]
            gpu = look_at(self._driver, gpu.uuid)
        return [
            *plan.waits,
            Wait(gpu=gpu.uuid, reason="not_settled", message="is not as asked yet"),
        ]

    def _take(self, gpu: Gpu, step: Step) -> None:
        match step:
            case Destroy():
                self._destroy(gpu.uuid, step)
            case Create():
                self._create(gpu, step)
            case SwitchMode():
                self._switch(gpu, on=step.on)
            case Reset():
                reset_gpu(gpu.uuid)

    def _switch(self, gpu: Gpu, *, on: bool) -> None:
        try:
            self._driver.set_mig_mode(gpu.uuid, on=on)
        except DriverError as error:
            # Only pending: the next look shows it, and whether a reset may be tried.
            if not gpu.needs_reset or error.reason not in {"reset_required", "in_use"}:
                raise

    def _destroy(self, gpu: str, step: Destroy) -> None:
        instance, journal = step.instance, self._journal
        uuids = [compute.uuid for compute in instance.computes]
        entry = journal.put(
            replace(
                step.entry,
                stage=Stage.DESTROYING,
                gi_id=instance.gi_id,
                uuid=uuids[0] if uuids else None,
            )
        )
        for compute in instance.computes:
            self._driver.destroy_compute(gpu, instance.gi_id, compute.ci_id)
        self._driver.destroy_instance(gpu, instance.gi_id)
        journal.forget(entry)

    def _create(self, gpu: Gpu, step: Create) -> None:
        wanted, journal = step.wanted, self._journal
        entry = journal.put(
            Entry(
                gpu=gpu.uuid,
                profile=wanted.profile,
                start=wanted.start,
                stage=Stage.CREATING,
                allocation_id=wanted.allocation_id,
            )
        )
        try:
            profile = gpu.profiles[wanted.profile]
            gi_id = self._driver.create_instance(gpu.uuid, profile.id, step.place)
        except DriverError:
            # Else whatever somebody else makes there before the next look would be taken for ours.
            journal.forget(entry)
            raise
        entry = journal.put(replace(entry, gi_id=gi_id))
        try:
            device = self._driver.fill_instance(gpu.uuid, gi_id)
        except DriverError as error:
            self._driver.destroy_instance(gpu.uuid, gi_id)
            journal.forget(entry)
            raise DriverError("compute_instance_failed", error.message) from error
        journal.put(replace(entry, stage=Stage.CREATED, uuid=device.uuid))


def _failed(gpu: str, step: Step, error: DriverError, mode_change: str) -> Wait:
    """Say what a step that the driver refused has to wait for."""
    reason, tried = error.reason, ""
    match step:
        case Reset():
            reason = "reboot_wanted" if mode_change == REBOOT else "reset_failed"
            tried = "cannot be reset"
        case SwitchMode():
            tried = f"cannot switch MIG {'on' if step.on else 'off'}"
        case Destroy():
            reason = "instance_in_use" if reason == "in_use" else reason
            tried = f"cannot destroy {step.instance.profile} at {step.instance.place.start}"
        case Create():
            tried = f"cannot make {step.wanted.profile} at {step.wanted.start}"
    return Wait(gpu=gpu, reason=reason, message=f"{tried}: {error.message}")
