"""A program that uses a simulated GPU as one that is built with CUDA would use a real one.

    python -m apportion.testing.nvml.program --mib 1000

It takes the first device that its environment lets it see, prints its UUID, and holds it until it
is told to end; it is seen there by NVML as long as it lives. Exit codes: 1 where it sees no device,
2 where the device takes nobody more, 3 where memory does not suffice.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apportion.testing.nvml import hosts, layout
from apportion.testing.nvml.simulation import STATE_VARIABLE, Simulation

_EXCLUSIVE: Final = 3
_SHARED: Final = 0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What CUDA calls a device: a GPU, or a compute instance of one (ids of NVML's)."""

    uuid: str
    gpu: int
    gpu_instance: int = layout.NONE
    compute_instance: int = layout.NONE
    compute_mode: int = _SHARED
    memory_mib: int


def devices(machine: layout.Machine, boards: Sequence[layout.Board]) -> list[Device]:
    """Return all devices of a machine; a GPU in MIG mode is none, its compute instances are."""
    found: list[Device] = []
    for at in range(machine.gpu_count):
        gpu: layout.Gpu = machine.gpus[at]
        board: int = gpu.board
        found += _of_gpu(gpu, at, boards[board])
    return found


def _of_gpu(gpu: layout.Gpu, at: int, board: layout.Board) -> Iterator[Device]:
    if not gpu.mig:
        yield Device(
            uuid=gpu.uuid.decode(),
            gpu=at,
            compute_mode=gpu.compute_mode,
            memory_mib=gpu.memory_mib - gpu.reserved_mib,
        )
        return
    for instance in gpu.instances:
        profile: layout.Profile = board.profiles[instance.profile]
        for compute in instance.compute:
            if instance.used and compute.used:
                yield Device(
                    uuid=compute.uuid.decode(),
                    gpu=at,
                    gpu_instance=instance.id,
                    compute_instance=compute.id,
                    compute_mode=compute.compute_mode,
                    memory_mib=profile.memory_mib,
                )


def visible(found: Sequence[Device], names: str | None) -> list[Device]:
    """Return the devices that `CUDA_VISIBLE_DEVICES` lets a program see, in its order.

    Names are numbers, UUIDs, or beginnings of UUIDs that only one has; the first that is none of
    these ends the list. A program sees one MIG device at most.
    """
    seen = list[Device](found if names is None else ())
    if names is not None:
        for name in names.split(","):
            fitting = _named(found, name.strip())
            if len(fitting) != 1:
                break
            seen += fitting
    part = next((each for each in seen if each.gpu_instance != layout.NONE), None)
    return seen if part is None else [part]


def _named(found: Sequence[Device], name: str) -> Sequence[Device]:
    if name.isdecimal():
        return found[int(name) : int(name) + 1]
    return [each for each in found if name and each.uuid.startswith(name)]


def take(machine: Simulation, environment: Mapping[str, str], *, mib: int) -> Device:
    """Take a device for this process, as its environment says; SystemExit where there is none."""
    mps = (Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")) / "control").exists()
    with machine.another_driver() as rows:
        boards = [layout.Board.from_buffer_copy(row) for row in rows]
    with machine.change() as now:
        found = visible(devices(now, boards), environment.get("CUDA_VISIBLE_DEVICES"))
        if not found:
            raise _refused(1, "no CUDA-capable device is detected")
        device = found[0]
        others = [each for each in now.processes if _is_on(each, device)]
        alone = device.compute_mode == _EXCLUSIVE and not mps
        if device.compute_mode not in {_SHARED, _EXCLUSIVE} or (alone and others):
            raise _refused(2, "all CUDA-capable devices are busy or unavailable")
        used = sum(each.bytes for each in now.processes if _shares_memory(each, device))
        if used + mib * _MIB > device.memory_mib * _MIB:
            raise _refused(3, "out of memory")
        row = next(each for each in now.processes if not each.pid)
        row.pid, row.real, row.begun = os.getpid(), 1, hosts.began(os.getpid())
        row.bytes, row.gpu, row.mps = mib * _MIB, device.gpu, mps
        row.gpu_instance, row.compute_instance = device.gpu_instance, device.compute_instance
    return device


def _shares_memory(process: layout.Process, device: Device) -> bool:
    if not process.pid or process.gpu != device.gpu:
        return False
    gone = process.real and hosts.began(process.pid) != process.begun
    return not gone and process.gpu_instance == device.gpu_instance


def _is_on(process: layout.Process, device: Device) -> bool:
    same = process.compute_instance == device.compute_instance
    return same and _shares_memory(process, device)


def _refused(code: int, said: str) -> SystemExit:
    sys.stderr.write(f"CUDA error: {said}\n")
    return SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold a device until told to end; returns 0."""
    parser = argparse.ArgumentParser(prog="program")
    parser.add_argument("--mib", type=int, default=0, help="memory that it takes")
    parser.add_argument("--stubborn", action="store_true", help="do not end when told to")
    args = parser.parse_args(arguments)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    machine = Simulation(Path(os.environ[STATE_VARIABLE]).parent)
    device = take(machine, os.environ, mib=args.mib)
    sys.stdout.write(f"{device.uuid}\n")
    sys.stdout.flush()
    signal.sigwait(ends)
    while args.stubborn:
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
