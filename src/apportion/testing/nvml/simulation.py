"""Holding a simulated machine: looking at it, and making things happen to it."""

import ctypes
import fcntl
import mmap
import os
import shutil
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.testing.mps import MpsStandIn
from apportion.testing.nvml import hosts, layout
from apportion.testing.nvml.building import build_library
from apportion.testing.nvml.machines import MACHINES, MachineKind, derived, new_state

STATE_VARIABLE: Final = "APPORTION_NVML_STATE"
ROOT_VARIABLE: Final = "APPORTION_HOST_ROOT"
_XID: Final = 0x8
_DOUBLE_BIT: Final = 0x2
_FALLEN_OFF: Final = 79
_PROGRAMS_FAULTS: Final = frozenset({13, 31, 43, 45, 68, 109})
_RESET_WANTED: Final = 1
_SMI: Final = """\
#!{python}
from apportion.testing.nvml.smi import main

raise SystemExit(main())
"""


class Simulation:
    """A simulated machine in its folder; several may hold it, in several processes.

    ``root`` has the machine's own `/proc` and `/sys` as far as they tell of GPUs and the host.
    """

    def __init__(self, folder: Path) -> None:
        """Hold a machine that was created before."""
        self.folder = folder
        self.root = folder / "root"
        self._path = folder / "state"

    @classmethod
    def create(
        cls, folder: Path, kind: str | MachineKind = "dgx-h100", *, name: str | None = None
    ) -> Self:
        """Make a machine of a kind in a folder; its ids come from its name (the folder's, if none).

        InvalidInputError for a kind that is not known.
        """
        if isinstance(kind, str):
            if kind not in MACHINES:
                raise InvalidInputError(
                    "no such machine", field="kind", given=kind, allowed=", ".join(MACHINES)
                )
            kind = MACHINES[kind]
        folder.mkdir(parents=True, exist_ok=True)
        state = new_state(kind, name or folder.name)
        made = folder / "state.new"
        made.write_bytes(bytes(state))
        made.rename(folder / "state")
        machine = cls(folder)
        hosts.write_host(machine.root, kind, state.images[0])
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir(exist_ok=True)
        smi.write_text(_SMI.format(python=sys.executable))
        smi.chmod(0o755)
        MpsStandIn(smi.parent)
        return machine

    def environment(self) -> Mapping[str, str]:
        """Return what a process must be started with to be on this machine."""
        paths = [str(build_library()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            STATE_VARIABLE: str(self._path),
            ROOT_VARIABLE: str(self.root),
            "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
            "PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        }

    def read(self) -> layout.Machine:
        """Return a copy of the machine as it is now."""
        with self._state() as state:
            return layout.Machine.from_buffer_copy(state.images[state.current])

    @contextmanager
    def another_driver(self) -> Generator[list[layout.Board]]:
        """Change what the driver says of the machine's boards, as its update may."""
        with self._state() as state:
            yield [row for row in state.boards if row.name]

    @contextmanager
    def change(self) -> Generator[layout.Machine]:
        """Change the machine: wholly when the block ends, not at all when it raises."""
        with self._state() as state:
            spare = 1 - state.current
            machine = state.images[spare]
            ctypes.memmove(
                ctypes.byref(machine),
                ctypes.byref(state.images[state.current]),
                ctypes.sizeof(machine),
            )
            yield machine
            state.current = spare

    def fail(
        self,
        function: str,
        error: int = 0,
        *,
        gpu: int | None = None,
        after: int = 0,
        times: int = 1,
        delay_ms: int = 0,
        kill: int = 0,
    ) -> None:
        """Let calls of a function of NVML go wrong; see `layout.Fault`.

        ``gpu``: only calls that are given its handle, or that of a part of it. ``error`` is NVML's
        number. A function's name is that which the library exports, such as
        `nvmlGpuInstanceDestroy`, or `nvidia-smi --gpu-reset`. ``times=0``: until `heal`.
        """
        with self._state() as state:
            row = next((each for each in state.faults if not each.function), None)
            if row is None:
                raise InvalidStateError(f"there are {layout.FAULTS} faults already")
            row.gpu = layout.NONE if gpu is None else gpu
            row.result, row.after, row.times = error, after, times
            row.delay_ms, row.kill, row.seen, row.hits = delay_ms, kill, 0, 0
            row.function = function.encode()

    def heal(self) -> None:
        """Take all faults away."""
        with self._state() as state:
            ctypes.memset(ctypes.byref(state.faults), 0, ctypes.sizeof(state.faults))

    def hits(self, function: str) -> int:
        """Return how many calls of a function went wrong as asked since `heal`."""
        with self._state() as state:
            rows = [each for each in state.faults if each.function == function.encode()]
            return sum(row.hits for row in rows)

    def strike(self, function: str, gpu: int) -> int:
        """Let a fault strike that no call of the library meets; returns its error, or 0."""
        with self._state() as state:
            for row in state.faults:
                if row.function != function.encode() or row.gpu not in {layout.NONE, gpu}:
                    continue
                row.seen += 1
                if row.seen <= row.after or (row.times and row.hits >= row.times):
                    continue
                row.hits += 1
                if row.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                return int(row.result)
        return 0

    def xid(
        self, gpu: int, code: int, *, gpu_instance: int | None = None, compute: int | None = None
    ) -> None:
        """Report a critical error: of a GPU, or of an instance of it.

        After one of the GPU that is no program's fault the driver wants a reset.
        """
        ids = [layout.NONE if each is None else each for each in (gpu_instance, compute)]
        with self.change() as machine:
            if gpu_instance is None and code not in _PROGRAMS_FAULTS:
                machine.gpus[gpu].recovery_action = _RESET_WANTED
            _tell(machine, _XID, gpu, code, (ids[0], ids[1]))

    def uncorrectable_error(self, gpu: int) -> None:
        """Let memory of a GPU go bad: counted, told, and its row to be remapped at the reset."""
        with self.change() as machine:
            row = machine.gpus[gpu]
            row.uncorrected[0] += 1
            row.uncorrected[1] += 1
            row.remap_pending = 1
            _tell(machine, _DOUBLE_BIT, gpu)

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus; a reboot brings it back."""
        with self.change() as machine:
            machine.gpus[gpu].lost = 1
            _tell(machine, _XID, gpu, _FALLEN_OFF)

    def unload_driver(self) -> None:
        """Let the driver go, also for those who have it open. Its instances go with it."""
        with self.change() as machine:
            machine.driver_gone = 1
            for gpu in machine.gpus[: machine.gpu_count]:
                _reset(gpu)

    def load_driver(self) -> None:
        """Let the driver come back, for who opens it anew or has had it open."""
        with self.change() as machine:
            machine.driver_gone = 0

    def hold(
        self,
        gpu: int,
        pid: int,
        *,
        used_bytes: int = 0,
        gpu_instance: int | None = None,
        compute: int | None = None,
        mps: bool = False,
        begun: int | None = None,
    ) -> None:
        """Let a process use a GPU, or one compute instance of it, until `leave`.

        ``begun``: the process is a real one of this host (the tick at which it began, field 22 of
        `/proc/PID/stat`), and also leaves when it ends.
        """
        with self.change() as machine:
            row = next((each for each in machine.processes if not each.pid), None)
            if row is None:
                raise InvalidStateError(f"there are {layout.PROCESSES} processes already")
            row.pid, row.gpu, row.bytes, row.mps = pid, gpu, used_bytes, mps
            row.real, row.begun = (0, 0) if begun is None else (1, begun)
            row.gpu_instance = layout.NONE if gpu_instance is None else gpu_instance
            row.compute_instance = layout.NONE if compute is None else compute

    def leave(self, pid: int) -> None:
        """Let a process let go of all that it holds."""
        with self.change() as machine:
            for row in machine.processes:
                if row.pid == pid:
                    ctypes.memset(ctypes.byref(row), 0, ctypes.sizeof(row))

    def reset(self, gpu: int) -> None:
        """Reset a GPU as `nvidia-smi --gpu-reset` does; InvalidStateError while it is used.

        Its instances are gone, what was pending is in force, and memory is given back.
        """
        with self.change() as machine:
            if any(_lives(row) and row.gpu == gpu for row in machine.processes):
                raise InvalidStateError("In use by another client")
            if machine.gpus[gpu].lost:
                raise InvalidStateError("GPU is lost")
            _reset(machine.gpus[gpu])

    def reboot(self) -> None:
        """Restart the machine: no process and no instance is left, and it has a new boot id.

        The mode of MIG stays where the board keeps it. Capabilities get other minor numbers.
        """
        with self._state() as state:
            needs = [row.mode_survives_reboot for row in state.boards]
        with self.change() as machine:
            machine.boots += 1
            machine.boot_id = str(
                derived(machine.gpus[0].uuid.decode(), "boot", machine.boots)
            ).encode()
            ctypes.memset(ctypes.byref(machine.processes), 0, ctypes.sizeof(machine.processes))
            for gpu in machine.gpus[: machine.gpu_count]:
                if not needs[gpu.board]:
                    gpu.mig_pending = 0
                gpu.lost = 0
                _reset(gpu)
        hosts.write_boot(self.root, self.read())

    def remove(self) -> None:
        """Take the machine away."""
        shutil.rmtree(self.folder)

    @contextmanager
    def _state(self) -> Generator[layout.State]:
        """Hold the file's lock, as every call of the library does."""
        with self._path.open("r+b") as file:
            # Unlocked by hand: the mapping lives as long as what was read through it, and keeps
            # the lock's descriptor open as long.
            mapped = mmap.mmap(file.fileno(), 0)
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield layout.State.from_buffer(mapped)
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)


def _tell(
    machine: layout.Machine,
    kind: int,
    gpu: int,
    data: int = 0,
    instance: tuple[int, int] = (layout.NONE, layout.NONE),
) -> None:
    row = machine.event_ring[machine.events % layout.EVENTS]
    machine.events += 1
    row.number, row.type, row.data, row.gpu = machine.events, kind, data, gpu
    row.gpu_instance, row.compute_instance = instance


def _reset(gpu: layout.Gpu) -> None:
    ctypes.memset(ctypes.byref(gpu.instances), 0, ctypes.sizeof(gpu.instances))
    gpu.mig = gpu.mig_pending
    gpu.ecc = gpu.ecc_pending
    gpu.left_bytes = gpu.compute_mode = gpu.time_slice = gpu.recovery_action = 0
    gpu.corrected[0] = gpu.uncorrected[0] = 0
    gpu.remapped_uncorrectable += gpu.remap_pending
    gpu.remap_pending = gpu.retirement_pending = 0


def _lives(process: layout.Process) -> bool:
    if not process.pid:
        return False
    return not process.real or hosts.began(process.pid) == process.begun
