"""Listening to the driver for critical errors, and keeping of them what still counts."""

from contextlib import suppress
from datetime import datetime

from apportion.agent.nvml import Driver, DriverError, Event, Watch
from apportion.agent.remembered import Remembered


def take_in_errors(watch: Watch, driver: Driver, remembered: Remembered, now: datetime) -> int:
    """Remember the critical errors that came since the last time; returns how many.

    Those of GPUs that have been reset are dropped, and those of instances that are gone: whoever
    makes them anew gets new ones.
    """
    count = 0
    # A driver that fails at this tells nothing more for now; what it is like is seen elsewhere.
    with suppress(DriverError):
        while (event := watch.next()) is not None:
            remembered.strike(event, _device(driver, event), now.isoformat())
            count += 1
    for gpu in {each.gpu for each in remembered.errors}:
        # A GPU that does not answer has not been reset, and its instances are not known to be gone.
        with suppress(DriverError):
            recovery = driver.recovery(gpu)
            if recovery is not None:
                remembered.recover(gpu, wanted=recovery != "none")
            devices = [each.computes for each in driver.instances(gpu)]
            remembered.settle(gpu, {each.uuid for computes in devices for each in computes})
    return count


def _device(driver: Driver, event: Event) -> str | None:
    """Return the MIG device that an error struck; None, and so the GPU, where nobody can tell."""
    if event.gi_id is None:
        return None
    try:
        instances = driver.instances(event.gpu)
    except DriverError:
        return None
    for instance in instances:
        for compute in instance.computes:
            if instance.gi_id == event.gi_id and event.ci_id in {None, compute.ci_id}:
                return compute.uuid
    return None
