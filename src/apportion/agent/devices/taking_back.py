"""Taking an allocation back, in one order and never another.

Nobody new gets in; who is in has the grace, is asked to leave then, and is made to after that;
nobody is left; where the pool says so, the memory is as it was found; and only then others may have
it. A holder that does not leave, and memory that is not given back, keep the device.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from apportion.agent.devices.assignments import Releasing
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.files import HandedOut
from apportion.agent.devices.finding import GONE, as_held_up, asked, find_device
from apportion.agent.devices.holders import holders_of, send
from apportion.agent.devices.journal import Device, Journal, Record, Step
from apportion.agent.nvml import Driver, DriverError, reset_gpu

_KILLED_AFTER: Final = timedelta(seconds=30)
"""How long after it was told to leave a process is made to."""
_SLACK_MIB: Final = 64
"""What the driver itself uses of a GPU varies by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingBack:
    """What it takes, on one machine; ``boot_id`` is the start of it."""

    driver: Driver
    root: Path
    journal: Journal
    files: HandedOut
    boot_id: str
    releasing: Releasing

    def go_on(self, record: Record, now: datetime) -> Record:
        """Take the next steps; HeldUpError where one cannot be taken yet."""
        if record.step in (Step.BINDING, Step.BOUND):
            record = self.journal.write(replace(record, step=Step.ENDING, at=now, over_at=now))
        self.files.remove(record.id)
        device = self._device(record)
        if record.step is Step.ENDING:
            if device is not None:
                self._empty(record, device, now)
            record = self.journal.write(replace(record, step=Step.RESETTING, at=now))
        if device is not None:
            self._reset(record, device, now)
        return self.journal.write(replace(record, step=Step.RELEASED, at=now))

    def _device(self, record: Record) -> Device | None:
        """Return what it is now; None where nobody can be on it, and nothing in it.

        That is so after a reboot, and of an instance that is not there any more.
        """
        if record.boot_id != self.boot_id:
            return None
        try:
            return find_device(self.driver, self.root, record.assignment)
        except HeldUpError as error:
            if error.reason in GONE and record.assignment.class_ == "gpu.mig":
                return None
            if error.reason == "mig_mode_on":
                return record.device
            raise

    def _empty(self, record: Record, device: Device, now: datetime) -> None:
        """See that nobody is on it; else tell them in time, and say who is in the way."""
        pids = holders_of(self.driver, record, device)
        if not pids:
            return
        was_killed = record.killed_at is not None
        if record.told_at is None:
            self._give_grace(record, device, pids, now)
            pids = send(self.driver, record, device, signal.SIGTERM)
            self.journal.write(replace(record, told_at=now), is_step=False)
        elif now - record.told_at >= _KILLED_AFTER:
            pids = send(self.driver, record, device, signal.SIGKILL)
            if not was_killed:
                self.journal.write(replace(record, killed_at=now), is_step=False)
        names = ", ".join(map(str, pids)) or "some"
        if was_killed:
            raise HeldUpError("holder_still_there", f"processes {names} do not leave {device.uuid}")
        raise HeldUpError("holder_leaving", f"processes {names} are told to leave {device.uuid}")

    def _give_grace(
        self, record: Record, device: Device, pids: Sequence[int], now: datetime
    ) -> None:
        """Let them be for as long as the pool says, by what began when the window was over."""
        until = (record.over_at or record.at) + timedelta(seconds=self.releasing.grace_seconds)
        if now < until:
            names = ", ".join(map(str, pids))
            raise HeldUpError(
                "holder_in_grace",
                f"processes {names} on {device.uuid} are told to leave at {until:%H:%M:%S} UTC",
            )

    def _reset(self, record: Record, device: Device, now: datetime) -> None:
        """See that its memory is as it was found; a whole GPU that keeps some is reset, once."""
        if holders_of(self.driver, record, device):
            self.journal.write(replace(record, step=Step.ENDING, at=now))
            raise HeldUpError("holder_leaving", f"somebody came to {device.uuid} at its end")
        if not self.releasing.reset or record.idle_mib is None:
            return
        used = self._used(device)
        if used > record.idle_mib + _SLACK_MIB and _can_be_reset(record):
            self.journal.write(replace(record, reset_at=now), is_step=False)
            try:
                reset_gpu(device.uuid)
            except DriverError as error:
                raise as_held_up(error) from error
            used = self._used(device)
        if used > record.idle_mib + _SLACK_MIB:
            raise HeldUpError(
                "memory_not_idle",
                f"{used} MiB of {device.uuid} are still used, {record.idle_mib} were before",
            )

    def _used(self, device: Device) -> int:
        return asked(lambda: self.driver.memory(device.uuid)).used_mib


def _can_be_reset(record: Record) -> bool:
    return record.assignment.class_ == "gpu" and record.reset_at is None
