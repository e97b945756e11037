"""The part of `nvidia-smi` that has no other way: GPU resets, and the length of time slices.

And `-L`, because whoever has got a GPU looks for it first.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from apportion.errors import InvalidStateError
from apportion.testing.nvml.layout import Gpu
from apportion.testing.nvml.simulation import STATE_VARIABLE, Simulation

_NOT_FOUND: Final = 6
_FAILED: Final = 255
_NO_DRIVER: Final = 9
_LENGTHS: Final = ("Default", "Short", "Medium", "Long")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("verb", nargs="?", choices=["compute-policy"])
    parser.add_argument("-r", "--gpu-reset", action="store_true")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("-l", "--list", action="store_true")
    parser.add_argument("--set-timeslice", type=int, choices=range(len(_LENGTHS)))
    args = parser.parse_args(arguments)
    if STATE_VARIABLE not in os.environ:
        sys.stdout.write("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n")
        return _NO_DRIVER
    if args.list_gpus:
        return _list_gpus()
    if args.id is None:
        parser.error("-i/--id is needed for all but -L")
    machine = Simulation(Path(os.environ[STATE_VARIABLE]).parent)
    now = machine.read()
    gpus = now.gpus[: now.gpu_count]
    number = next((at for at, gpu in enumerate(gpus) if _is(gpu, at, args.id)), None)
    if number is None:
        sys.stdout.write("No devices were found\n")
        return _NOT_FOUND
    if args.list:
        return _list_policies(number, gpus[number])
    if args.set_timeslice is not None:
        return _set_time_slice(machine, number, args.set_timeslice)
    return _reset(machine, number, _bus_id(gpus[number]))


def _list_gpus() -> int:
    """List GPUs and their instances through the library, as the vendor's does."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    for number in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        name, uuid = nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu)
        sys.stdout.write(f"GPU {number}: {name} (UUID: {uuid})\n")
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError_NotFound):  # indices have holes
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
                profile = nvml.nvmlDeviceGetName(mig).rpartition(" ")[2]
                uuid = nvml.nvmlDeviceGetUUID(mig)
                sys.stdout.write(f"  MIG {profile:<12}Device {index:>2}: (UUID: {uuid})\n")
    return 0


def _is(gpu: Gpu, number: int, name: str) -> bool:
    return name in {str(number), gpu.uuid.decode(), _bus_id(gpu)}


def _bus_id(gpu: Gpu) -> str:
    return f"{gpu.pci.domain:08X}:{gpu.pci.bus:02X}:{gpu.pci.device:02X}.0"


def _reset(machine: Simulation, number: int, bus_id: str) -> int:
    said = None
    if machine.strike("nvidia-smi --gpu-reset", number):
        said = "In use by another client"
    else:
        try:
            machine.reset(number)
        except InvalidStateError as error:
            said = error.message
    if said is not None:
        sys.stdout.write(f"The following GPUs could not be reset:\n  GPU {bus_id}: {said}\n")
        return _FAILED
    sys.stdout.write(f"GPU {bus_id} was successfully reset.\nAll done.\n")
    return 0


def _list_policies(number: int, gpu: Gpu) -> int:
    sys.stdout.write(
        "+-------------------------------------+\n"
        "| GPU compute policies:               |\n"
        "| GPU     Name             Value      |\n"
        "|=====================================|\n"
        f"| {number:>3}     timeslice        {_LENGTHS[gpu.time_slice]:<10} |\n"
        "+-------------------------------------+\n"
    )
    return 0


def _set_time_slice(machine: Simulation, number: int, length: int) -> int:
    if machine.strike("nvidia-smi --set-timeslice", number):
        sys.stdout.write(f"Failed to set timeslice policy for device {number}: Not Supported\n")
        return _FAILED
    with machine.change() as changed:
        changed.gpus[number].time_slice = length
    sys.stdout.write("Successfully set the timeslice duration.\n")
    return 0
