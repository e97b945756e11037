"""From an assignment to the device that it means on this machine now."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.capabilities import gpu_node, instance_nodes
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.journal import Device
from apportion.agent.nvml import Driver, DriverError, GpuInstance

MISSING: Final = "device-missing"
GONE: Final = (MISSING, "capability_missing")
"""Reasons that say of what was handed out that it is not there any more."""

T = TypeVar("T")


def find_device(driver: Driver, root: Path, wanted: Assignment) -> Device:
    """Return it; HeldUpError ``device-missing`` where it does not exist, or not yet.

    ``mig_mode_on`` for a whole GPU that is in MIG mode: it runs no work then.
    """
    try:
        minor = driver.facts(wanted.gpu).minor
        if wanted.class_ == "gpu.mig":
            return _instance(driver, root, wanted, minor)
        mode = driver.mig_mode(wanted.gpu)
    except DriverError as error:
        if error.reason == "not_found":
            raise HeldUpError(MISSING, f"no GPU {wanted.gpu} is there") from error
        raise as_held_up(error) from error
    if mode is not None and mode.current:
        raise HeldUpError("mig_mode_on", f"{wanted.gpu} is in MIG mode, and not to be had whole")
    return Device(uuid=wanted.gpu, gpu_minor=minor, nodes=(gpu_node(minor),))


def asked(call: Callable[[], T]) -> T:
    """Ask the driver; its refusal is a HeldUpError ``driver_…``."""
    try:
        return call()
    except DriverError as error:
        raise as_held_up(error) from error


def as_held_up(error: DriverError) -> HeldUpError:
    """Say a refusal of the driver as a reason of ours."""
    prefix = "" if error.reason.startswith("driver_") else "driver_"
    return HeldUpError(f"{prefix}{error.reason}", error.message)


def _instance(driver: Driver, root: Path, wanted: Assignment, minor: int) -> Device:
    there = [each for each in driver.instances(wanted.gpu) if each.place.start == wanted.start]
    name = f"{wanted.profile} at slice {wanted.start} of {wanted.gpu}"
    if not there:
        raise HeldUpError(MISSING, f"there is no {name}")
    [instance] = there
    computes = [each for each in instance.computes if each.profile == wanted.profile]
    if not computes:
        had = ", ".join(each.profile for each in instance.computes) or "no compute instance"
        raise HeldUpError(MISSING, f"there is no {name}: {had} is there")
    compute = computes[0]
    capabilities = instance_nodes(root, minor, instance.gi_id, compute.ci_id)
    return Device(
        uuid=compute.uuid,
        gpu_minor=minor,
        gi_id=instance.gi_id,
        ci_id=compute.ci_id,
        place=_span(instance),
        nodes=(gpu_node(minor), *capabilities),
    )


def _span(instance: GpuInstance) -> tuple[int, int]:
    return instance.place.start, instance.place.start + instance.place.size
