"""Speaking to a GPU's MPS daemon through the vendor's own executable."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from apportion.agent.sharing.environment import log_directory, mps_root, pipe_directory
from apportion.agent.sharing.faults import Hindered
from apportion.agent.sharing.limits import Limits
from apportion.agent.sharing.processes import MARK

_ABSENT: Final = "Cannot find MPS control daemon process"
_SOCKET: Final = "control_privileged"  # the longest name that the daemon puts into its directory
_SOCKET_PATH_MAX: Final = 107
_PASS: Final = 0o011
_ENTER: Final = 0o055
_OTHERS_PASS: Final = 0o001


class SilentError(Exception):
    """The daemon does not answer: it is not there, has lost its sockets, or hangs."""


class Control:
    """One GPU's daemon, by its pipe directory.

    ``executable`` is ``nvidia-cuda-mps-control``, by name or path; ``patience_s`` is how many
    seconds one command may take.
    """

    def __init__(self, executable: str, *, state: Path, gpu_uuid: str, patience_s: int) -> None:
        self.mark = str(mps_root(state, gpu_uuid))
        self.pipe = pipe_directory(state, gpu_uuid)
        self.log = log_directory(state, gpu_uuid)
        self._executable = executable
        self._state = state
        self._uuid = gpu_uuid
        self._patience_s = patience_s

    def start(self) -> None:
        """Start the daemon in the background; it outlives this process.

        Raises Hindered ``mps_not_installed``, ``mps_path_too_long`` or ``mps_start_failed`` with
        what the daemon said.
        """
        path = self.pipe / _SOCKET
        if len(os.fsencode(path)) > _SOCKET_PATH_MAX:
            message = f"{path} is longer than the {_SOCKET_PATH_MAX} bytes that a socket's path has"
            raise Hindered("mps_path_too_long", message, self._uuid)
        try:
            self.open_way()
            code, said = self._run(["-d"], "")
        except SilentError as error:
            raise Hindered("mps_start_failed", str(error), self._uuid) from error
        if code != 0:
            message = f"the MPS daemon of {self._uuid} did not start: {said or f'exit {code}'}"
            raise Hindered("mps_start_failed", message, self._uuid)

    def open_way(self) -> str:
        """Let every user of the machine get to the sockets; tells what is in the way.

        Holders are other users than the agent, whose own directory need not let them in: it gets
        no more than the right to pass through it. What is above it is the operator's.
        """
        for directory in (self.pipe, self.log):
            directory.mkdir(parents=True, exist_ok=True)
        for directory in (self.log, *self._passed()):
            mode = directory.stat().st_mode
            wanted = mode | (_PASS if directory == self._state else _ENTER)
            if mode != wanted:
                directory.chmod(wanted)
        closed = [one for one in self._state.parents if not one.stat().st_mode & _OTHERS_PASS]
        return f"only root gets to {self.pipe}, since {closed[0]} is closed" if closed else ""

    def _passed(self) -> Iterator[Path]:
        """Return the sockets' directory and those above it, the agent's own included."""
        yield self.pipe
        for directory in self.pipe.parents:
            yield directory
            if directory == self._state:
                return

    def default_limits(self) -> Limits:
        """Return the limits that the daemon gives to servers it starts; memory in MiB, 0 for none.

        Daemons show whole GiB from 1 GiB on, rounded down, so memory is compared by `shows`.
        """
        percentage = self._ask("get_default_active_thread_percentage")
        memory = self._ask(f"get_default_device_pinned_mem_limit {self._uuid}")
        return Limits(_percentage(percentage), _memory_mib(memory))

    def set_default_limits(self, limits: Limits) -> None:
        """Set what servers that start from now on allow each of their clients."""
        self._ask(f"set_default_active_thread_percentage {limits.percentage}")
        self._ask(f"set_default_device_pinned_mem_limit {self._uuid} {limits.memory_mib}M")

    def set_server_limits(self, server: int, limits: Limits) -> None:
        """Set what a running server allows clients that connect from now on."""
        percentage = self._ask(f"get_active_thread_percentage {server}")
        memory = self._ask(f"get_device_pinned_mem_limit {server} {self._uuid}")
        if not shows(Limits(_percentage(percentage), _memory_mib(memory)), limits):
            self._ask(f"set_active_thread_percentage {server} {limits.percentage}")
            self._ask(f"set_device_pinned_mem_limit {server} {self._uuid} {limits.memory_mib}M")

    def servers(self) -> list[int]:
        """Return the pids of the servers: one a user, one user at a time."""
        return self._pids("get_server_list")

    def clients(self) -> list[int]:
        """Return the pids of all processes that are connected."""
        lists = [self._pids(f"get_client_list {server}") for server in self.servers()]
        return [pid for listed in lists for pid in listed]

    def quit(self) -> None:
        """Ask the daemon to quit. Without a time limit: with one it would end its clients.

        Raises SilentError where it has not quit in time; it does so when its clients are gone.
        """
        self._ask("quit")

    def _pids(self, command: str) -> list[int]:
        """Return the pids that a command lists; what is no list is not taken for an empty one."""
        said = self._ask(command)
        words = said.split()
        if not all(word.isdecimal() for word in words):
            message = f"the MPS daemon of {self._uuid} answered {command!r} with: {said}"
            raise Hindered("mps_answer_unknown", message, self._uuid)
        return [int(word) for word in words]

    def _ask(self, command: str) -> str:
        code, said = self._run([], f"{command}\n")
        if code != 0 or _ABSENT in said:
            raise SilentError(said or f"exit {code}")
        return said

    def _run(self, arguments: Sequence[str], commands: str) -> tuple[int, str]:
        """Run the executable. A file takes what it says: a daemon would keep a pipe open."""
        with tempfile.TemporaryFile() as said:
            try:
                code = subprocess.run(  # noqa: S603 - the executable is the operator's setting
                    [self._executable, *arguments],
                    input=commands.encode(),
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    cwd="/",
                    start_new_session=True,
                    timeout=self._patience_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired as error:
                what = commands.strip() or "start"
                message = f"no answer to {what!r} in {self._patience_s} s"
                raise SilentError(message) from error
            except OSError as error:
                message = f"{self._executable} cannot be run: {error.strerror}"
                raise Hindered("mps_not_installed", message, self._uuid) from error
            said.seek(0)
            return code, said.read().decode("utf-8", "replace").strip()

    def _environment(self) -> Mapping[str, str]:
        """Return the daemon's environment: what the agent has, less what would set limits."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return {
            **kept,
            MARK: self.mark,
            "CUDA_VISIBLE_DEVICES": self._uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }


def shows(shown: Limits, wanted: Limits) -> bool:
    """Tell whether a daemon that shows these limits has those: it may show memory in whole GiB."""
    memory = {wanted.memory_mib, wanted.memory_mib // 1024 * 1024}
    return shown.percentage == wanted.percentage and shown.memory_mib in memory


def _percentage(text: str) -> int:
    match = re.search(r"([0-9]+)(?:\.[0-9]*)?\s*%?\s*$", text)
    return int(match[1]) if match else 0


def _memory_mib(text: str) -> int:
    match = re.search(r"([0-9]+)\s*([GM])B?\s*$", text)
    return int(match[1]) * (1024 if match[2] == "G" else 1) if match else 0
