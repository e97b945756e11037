"""MIG profiles and instances, read from the binding's structures."""

import ctypes
from collections.abc import Iterator
from typing import Any

from apportion.agent.nvml.answers import (
    ComputeInstance,
    DriverError,
    Engines,
    GpuInstance,
    Place,
    Profile,
)
from apportion.agent.nvml.calls import ask, binding, optional


def read_profiles(handle: Any) -> Iterator[Profile]:
    """Ask by every number until the driver knows no more: newer drivers have more of them."""
    number = -1
    while True:
        number += 1
        try:
            info = optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        except DriverError as error:
            if error.reason == "invalid_argument":
                return
            raise
        if info is not None:
            yield _profile(handle, number, info)


def _profile(handle: Any, number: int, info: Any) -> Profile:
    return Profile(
        number=number,
        id=info.id,
        name=info.name.removeprefix("MIG "),
        compute_slices=info.sliceCount,
        max_instances=info.instanceCount,
        sm_count=info.multiprocessorCount,
        memory_mib=info.memorySizeMB,
        engines=Engines(
            info.copyEngineCount,
            info.decoderCount,
            info.encoderCount,
            info.jpegCount,
            info.ofaCount,
        ),
        places=_places(handle, info.id),
    )


def _places(handle: Any, profile_id: int) -> tuple[Place, ...]:
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint()
    ask(name, handle, profile_id, None, ctypes.byref(count))
    rows = (binding.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    ask(name, handle, profile_id, rows, ctypes.byref(count))
    return tuple(Place(row.start, row.size) for row in rows[: count.value])


def read_instance(handle: Any) -> GpuInstance:
    """Read a GPU instance and what is in it."""
    info = ask("nvmlGpuInstanceGetInfo", handle)
    return GpuInstance(
        gi_id=info.id,
        profile_id=info.profileId,
        place=Place(info.placement.start, info.placement.size),
        computes=tuple(sorted(_computes(handle), key=lambda each: each.ci_id)),
    )


def compute_profiles(instance: Any) -> Iterator[Any]:
    """Give what the driver says of each kind of compute instance that fits a GPU instance."""
    for number in range(binding.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = optional("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0)
        if info is not None:
            yield info


def _computes(instance: Any) -> Iterator[ComputeInstance]:
    for info in compute_profiles(instance):
        rows = (binding.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint()
        ask("nvmlGpuInstanceGetComputeInstances", instance, info.id, rows, ctypes.byref(count))
        for row in rows[: count.value]:
            yield read_compute(row)


def read_compute(handle: Any) -> ComputeInstance:
    """Read a compute instance and its MIG device."""
    info = ask("nvmlComputeInstanceGetInfo", handle)
    attributes = ask("nvmlDeviceGetAttributes", info.device)
    name: str = ask("nvmlDeviceGetName", info.device)
    return ComputeInstance(
        ci_id=info.id,
        uuid=ask("nvmlDeviceGetUUID", info.device),
        profile=name.rpartition("MIG ")[2],
        compute_slices=attributes.computeInstanceSliceCount,
        sm_count=attributes.multiprocessorCount,
        memory_mib=attributes.memorySizeMB,
    )
