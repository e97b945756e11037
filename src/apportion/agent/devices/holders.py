"""Who is on an allocation's device, and telling them to leave."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from apportion.agent.devices.environment import MARK
from apportion.agent.devices.finding import asked
from apportion.agent.devices.journal import Device, Record
from apportion.agent.nvml import Driver, Process

_PROC: Final = Path("/proc")


def holders_of(driver: Driver, record: Record, device: Device) -> list[int]:
    """Return the pids of all processes on a device; HeldUpError where the driver does not tell.

    On a GPU that others share they are those that were started with the allocation's environment:
    the driver tells nothing that would tell one holder from another.
    """
    found = asked(lambda: driver.processes(record.assignment.gpu))
    return sorted({each.pid for each in found if _is_on(each, record, device)})


def send(driver: Driver, record: Record, device: Device, number: signal.Signals) -> list[int]:
    """Send a signal to all processes on a device; returns who was on it.

    A pid may have become another process's by then, so each is pinned first and looked up again.
    """
    pinned = {pid: _pin(pid) for pid in holders_of(driver, record, device)}
    try:
        again = holders_of(driver, record, device)
        for pid in again:
            if (descriptor := pinned.get(pid)) is not None:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        return again
    finally:
        _close(pinned.values())


def _is_on(process: Process, record: Record, device: Device) -> bool:
    if record.assignment.is_shared:
        return _is_marked(process.pid, record.id)
    return record.assignment.class_ == "gpu" or process.gi_id == device.gi_id


def _is_marked(pid: int, allocation_id: str) -> bool:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    # A process with several pieces has their names with commas between.
    mark = f"{MARK}=".encode()
    names = [each.removeprefix(mark).split(b",") for each in variables if each.startswith(mark)]
    return any(allocation_id.encode() in each for each in names)


def _pin(pid: int) -> int | None:
    """Open a process so that no other one can take its place; None for what cannot be signalled."""
    if pid in {0, 1, os.getpid()}:
        return None
    with suppress(OSError):
        return os.pidfd_open(pid)
    return None


def _close(descriptors: Iterable[int | None]) -> None:
    for each in descriptors:
        if each is not None:
            os.close(each)
