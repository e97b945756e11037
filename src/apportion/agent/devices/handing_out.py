"""Handing an allocation out: found, free, on record, and only then written where others see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from apportion.agent.devices.assignments import Assignment, check_names
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.files import HandedOut
from apportion.agent.devices.finding import GONE, MISSING, asked, find_device
from apportion.agent.devices.holders import holders_of
from apportion.agent.devices.journal import Device, Journal, Record, Step
from apportion.agent.devices.overlap import in_the_way
from apportion.agent.nvml import Driver

SharedBy = Callable[[str], str | None]
"""How a GPU is shared now, by its UUID: ``mps``, ``timeslice``; None where it is not, or not yet.
"""

MadeFor = Callable[[str], str | None]
"""For which allocation a MIG device was made, by its UUID; None where for none in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandingOut:
    """What it takes, on one machine; ``boot_id`` is the start of it."""

    driver: Driver
    root: Path
    journal: Journal
    files: HandedOut
    shared_by: SharedBy
    made_for: MadeFor
    boot_id: str

    def bind(
        self, wanted: Assignment, record: Record | None, others: Sequence[Record], now: datetime
    ) -> Record:
        """Hand it out, or see that what was handed out still is what it was.

        An instance that was made again, and numbers that are other ones since a reboot, are written
        anew. HeldUpError says what is in the way; what is not there any more is withdrawn.
        """
        check_names(wanted)
        try:
            device = self._find(wanted)
        except HeldUpError as error:
            if record is not None and error.reason in GONE:
                self._withdraw(record, now)
            raise
        if clashing := in_the_way(wanted, device, others):
            names = ", ".join(each.id for each in clashing)
            raise HeldUpError("held_by_another", f"{names} has what it wants of {wanted.gpu}")
        mps_memory_mib = self._mps_memory(wanted)
        if record is None or (record.boot_id, record.device) != (self.boot_id, device):
            record = self.journal.write(self._fresh(wanted, device, record, now))
        elif record.assignment != wanted:
            record = self.journal.write(replace(record, assignment=wanted), is_step=False)
        self.files.write(wanted, device, mps_memory_mib)
        if record.step is Step.BOUND:
            return record
        return self.journal.write(replace(record, step=Step.BOUND, at=now))

    def _fresh(
        self, wanted: Assignment, device: Device, before: Record | None, now: datetime
    ) -> Record:
        """Begin anew; what was idle before is known, unless the machine was started since."""
        fresh = Record(
            assignment=wanted, step=Step.BINDING, at=now, boot_id=self.boot_id, device=device
        )
        if before is not None and before.boot_id == self.boot_id:
            return replace(fresh, idle_mib=before.idle_mib)
        return replace(fresh, idle_mib=self._idle(fresh))

    def _find(self, wanted: Assignment) -> Device:
        """Find it; one that was made for another allocation is not the one that was asked for."""
        device = find_device(self.driver, self.root, wanted)
        owner = self.made_for(device.uuid)
        if owner not in (None, wanted.allocation_id):
            raise HeldUpError(MISSING, f"{device.uuid} was made for {owner}, and is to go first")
        return device

    def _withdraw(self, record: Record, now: datetime) -> None:
        """Take the files of a device that is gone away: its numbers may come to be another's."""
        if record.step is Step.BOUND:
            self.journal.write(replace(record, step=Step.BINDING, at=now))
        self.files.remove(record.id)

    def _idle(self, record: Record) -> int | None:
        """Return how much memory is used before it is handed out, to nobody that is on it."""
        if record.assignment.is_shared:
            return None
        if pids := holders_of(self.driver, record, record.device):
            names = ", ".join(map(str, pids))
            raise HeldUpError("in_use", f"processes {names} are on {record.device.uuid} already")
        return asked(lambda: self.driver.memory(record.device.uuid)).used_mib

    def _mps_memory(self, wanted: Assignment) -> int | None:
        """Return the GPU's memory where MPS shares it; None where it needs no daemon."""
        if not wanted.is_shared:
            return None
        mode = self.shared_by(wanted.gpu)
        if mode is None:
            raise HeldUpError("sharing_missing", f"{wanted.gpu} is not shared, or not yet")
        return asked(lambda: self.driver.memory(wanted.gpu)).total_mib if mode == "mps" else None
