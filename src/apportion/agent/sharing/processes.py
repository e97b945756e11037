"""The MPS processes of this machine, ours told apart from others' by a mark in their environment.

A pid file may be stale and its number taken by another process, and a daemon that was started just
before the agent was killed is in no file of ours. What a process was started with stays with it.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

MARK: Final = "APPORTION_MPS"
"""Set for the daemons that we start, and inherited by their servers: the directory of the GPU."""

_NAME: Final = "nvidia-cuda-mps"  # the kernel keeps 15 characters of a process's name
_CONTROL: Final = "nvidia-cuda-mps-control"
_SERVER: Final = "nvidia-cuda-mps-server"
_DAEMON_FLAGS: Final = {"-d", "-f"}
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """A control daemon, or a server. ``began``, in clock ticks since boot, tells pids apart."""

    pid: int
    began: int
    control: bool
    environment: Mapping[str, str]

    @property
    def mark(self) -> str | None:
        """The directory that we started it for; None for others' processes."""
        return self.environment.get(MARK)

    @property
    def pipe(self) -> str:
        """The directory in which it has its sockets."""
        return self.environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108

    def may_serve(self, uuid: str, index: int) -> bool:
        """Tell whether it may have to do with a GPU: only one that names others has not."""
        visible = self.environment.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return True
        names = [name.strip() for name in visible.split(",") if name.strip()]
        return any(
            uuid.startswith(name) if name.startswith("GPU-") else name == str(index)
            for name in names
        )


class Processes:
    """The MPS daemons and servers of this machine, looked at once until `look_again`."""

    def __init__(self) -> None:
        self._seen: list[MpsProcess] = []
        self.look_again()

    def look_again(self) -> None:
        """Look at all processes of the machine."""
        self._seen = [found for pid in _pids() if (found := _look(pid)) is not None]

    def alive(self) -> list[MpsProcess]:
        """Return those that were seen and are still there."""
        return [one for one in self._seen if _look(one.pid) == one]


def kill(process: MpsProcess, number: int = signal.SIGKILL) -> None:
    """Signal a process, unless its pid has become another one's."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _look(process.pid) == process:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def name_of(pid: int) -> str:
    """Name a process for people: ``4711 (python)``."""
    try:
        return f"{pid} ({(_PROC / str(pid) / 'comm').read_text('utf-8').strip()})"
    except OSError:
        return str(pid)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _look(pid: int) -> MpsProcess | None:
    place = _PROC / str(pid)
    try:
        if not (place / "comm").read_text("utf-8").startswith(_NAME):
            return None
        words = (place / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        state, began = _state(place)
        environment = (place / "environ").read_bytes().decode("utf-8", "replace")
    except OSError:  # it went meanwhile, or is not ours to look at
        return None
    names = {PurePath(word).name for word in words}
    daemon = _CONTROL in names and not _DAEMON_FLAGS.isdisjoint(words)
    if state == "Z" or not (daemon or _SERVER in names):
        return None
    pairs = (entry.partition("=") for entry in environment.split("\0") if "=" in entry)
    return MpsProcess(pid, began, daemon, {name: value for name, _, value in pairs})


def _state(place: Path) -> tuple[str, int]:
    """Read state and start from ``stat``, whose second field may itself hold any character."""
    fields = (place / "stat").read_text("utf-8").rpartition(")")[2].split()
    return fields[0], int(fields[19])
