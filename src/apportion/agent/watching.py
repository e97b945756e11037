"""Listening to the driver for critical errors, and keeping of them what still counts."""

from datetime import datetime

from apportion.agent.nvml import Driver, DriverError, Event, Watch
from apportion.agent.remembered import Remembered


def take_in_errors(watch: Watch, driver: Driver, remembered: Remembered, now: datetime) -> int:
    """Remember the critical errors that came since the last time; returns how many.

    Those of instances that are gone are dropped: whoever makes them anew gets new ones.
    """
    count = 0
    while (event := watch.next()) is not None:
        remembered.strike(event, _device(driver, event), now.isoformat())
        count += 1
    for gpu in {each.gpu for each in remembered.errors if each.instance is not None}:
        _settle(driver, remembered, gpu)
    return count


def _settle(driver: Driver, remembered: Remembered, gpu: str) -> None:
    try:
        instances = driver.instances(gpu)
    except DriverError:
        return
    remembered.settle(gpu, {each.uuid for instance in instances for each in instance.computes})


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
