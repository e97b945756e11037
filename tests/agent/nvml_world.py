"""Help for tests of the simulated driver: its calls in Python's terms, and child processes."""

import ctypes
import os
import subprocess
import sys
import traceback
from contextlib import contextmanager

import pynvml

from apportion.testing.nvml import Simulation, build_library

NONE = 0xFFFFFFFF
# The ids of an H100's profiles.
H100 = {"1g": 19, "1g+me": 20, "1g double": 15, "2g": 14, "3g": 9, "4g": 5, "7g": 0}


@contextmanager
def driving(machine):
    """Let NVML in this process be a machine's.

    The library is loaded by its path before pynvml asks for it by name, which then finds it: a
    process cannot change where it looks for libraries after its start.
    """
    ctypes.CDLL(str(build_library() / "libnvidia-ml.so.1"))
    os.environ["APPORTION_NVML_STATE"] = machine.environment()["APPORTION_NVML_STATE"]
    pynvml.nvmlInit()
    try:
        yield machine
    finally:
        pynvml.nvmlShutdown()
        del os.environ["APPORTION_NVML_STATE"]


def profiles_of(gpu):
    """Return what the driver says of each profile, by its id."""
    found = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
        except pynvml.NVMLError_NotSupported:
            continue
        found[info.id] = info
    return found


def placements_of(gpu, profile_id):
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    rows = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, rows, ctypes.byref(count))
    return [(row.start, row.size) for row in rows]


def create(gpu, profile_id, start=None):
    """Make a GPU instance, at a place or at the driver's choice."""
    if start is None:
        return pynvml.nvmlDeviceCreateGpuInstance(gpu, profile_id)
    size = next(size for at, size in placements_of(gpu, profile_id) if at == start)
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, ctypes.byref(place))


def instances_of(gpu):
    """Return (id, profile id, start, size) of each GPU instance that the driver lists."""
    found = []
    for profile_id, info in profiles_of(gpu).items():
        count = ctypes.c_uint()
        rows = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)()
        pynvml.nvmlDeviceGetGpuInstances(gpu, profile_id, rows, ctypes.byref(count))
        for row in rows[: count.value]:
            got = pynvml.nvmlGpuInstanceGetInfo(row)
            found.append((got.id, got.profileId, got.placement.start, got.placement.size))
    return sorted(found)


def fill(gpu_instance):
    """Make the compute instance that fills a GPU instance; returns it and its MIG device."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT - 1, -1, -1):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, number, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        made = pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, info.id)
        return made, pynvml.nvmlComputeInstanceGetInfo(made).device
    raise AssertionError("no compute instance profile")


def mig_devices(gpu):
    """Return the UUID of each MIG device, None for a hole."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError_NotFound:
            found.append(None)
        else:
            found.append(pynvml.nvmlDeviceGetUUID(device))
    return found


def child(machine: Simulation, code: str, **options):
    """Start Python on a machine, as an agent would be: nothing but its environment is special."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **machine.environment()},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def apart(act):
    """Run a function in a process of its own; returns its exit code and the lines that it said.

    The function is given another, which says a line. The process is a fork of this one: starting
    Python and importing an agent takes it half a second of a core, and tests of kills need many.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            act(lambda line: os.write(writing, f"{line}\n".encode()))
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as said:  # noqa: PTH123 - a descriptor
        lines = said.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), lines


def gpu(number=0):
    return pynvml.nvmlDeviceGetHandleByIndex(number)


def mig_gpu(machine, number=0):
    """Return a GPU in MIG mode, whatever it takes."""
    pynvml.nvmlDeviceSetMigMode(gpu(number), 1)
    if pynvml.nvmlDeviceGetMigMode(gpu(number))[0] == 0:
        machine.reset(number)
    return gpu(number)
