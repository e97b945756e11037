"""One GPU's MPS daemon: started, adopted, watched, and quit; never another's.

The daemon outlives the agent. Whoever comes next finds it by its mark (`processes`) and takes it
over if it answers. One that does not answer is ended only when no process is on its GPU.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from apportion.agent.sharing.control import Control, SilentError, shows
from apportion.agent.sharing.driver import SharedGpu, SharingDriver
from apportion.agent.sharing.faults import Hindered
from apportion.agent.sharing.journal import Journal, Record, Step
from apportion.agent.sharing.limits import Limits
from apportion.agent.sharing.processes import MpsProcess, Processes, kill, name_of

LONG: Final = timedelta(minutes=10)
"""A daemon that has run for so long is well: the next crash is its first."""

_WAIT_MAX_S: Final = 300
_DOUBLINGS_MAX: Final = 10
_GONE_S: Final = 2
_LOOK_EACH_S: Final = 0.02


def backoff(attempts: int) -> timedelta:
    """Return how long after the last start the next one may be: 0, 2, 4, 8, … 300 seconds."""
    doublings = min(attempts - 1, _DOUBLINGS_MAX)
    return timedelta(seconds=min(2**doublings, _WAIT_MAX_S) if doublings > 0 else 0)


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The daemon of one GPU, as this node's agent handles it."""

    gpu: SharedGpu
    control: Control
    driver: SharingDriver
    journal: Journal
    processes: Processes

    def refuse_foreign(self) -> None:
        """Raise Hindered ``foreign_daemon`` where another's MPS may serve this GPU."""
        uuid, index = self.gpu.uuid, self.gpu.index
        foreign = [
            one
            for one in self.processes.alive()
            if one.mark != self.control.mark and one.may_serve(uuid, index)
        ]
        if foreign:
            told = ", ".join(f"{name_of(one.pid)} at {one.pipe}" for one in foreign)
            message = f"an MPS daemon that is not ours may serve {uuid}: {told}; it is left alone"
            raise Hindered("foreign_daemon", message, uuid, *(str(one.pid) for one in foreign))

    def run(self, record: Record, limits: Limits, now: datetime) -> str:
        """See that the daemon runs with these limits; returns what there is to tell.

        Raises Hindered with what keeps it from running.
        """
        daemon = self._daemon()
        if daemon is None:
            record, daemon = self._start(record, now)
        try:
            self._limit(limits)
        except SilentError as error:
            self._end_silent(str(error))
            raise Hindered(
                "mps_daemon_silent",
                f"the MPS daemon of {self.gpu.uuid} did not answer ({error}) and was ended",
                self.gpu.uuid,
            ) from error
        running = replace(record, step=Step.RUNNING, pid=daemon.pid, began=daemon.began)
        if running.tried_at is not None and now - running.tried_at >= LONG:
            running = replace(running, attempts=1, fault="")
        if running != record:
            self.journal.write(running)
        often = f"the MPS daemon of {self.gpu.uuid} was started {running.attempts} times of late"
        told = [often if running.attempts > 1 else "", self.control.open_way()]
        return "; ".join(filter(None, told))

    def quit(self, record: Record) -> Record:
        """End the daemon and its servers, unless somebody is connected.

        Raises Hindered ``clients_connected`` with who is, ``mps_daemon_silent``, or
        ``mps_quit_waits``.
        """
        if self._daemon() is not None:
            try:
                self._refuse_clients(self.control.clients())
            except SilentError as error:
                self._end_silent(str(error))
        quitting = self.journal.write(replace(record, step=Step.QUITTING))
        if self._daemon() is not None:
            # Who connects meanwhile is waited for: without a time limit nobody is ended.
            with suppress(SilentError):
                self.control.quit()
        if not self._gone() and self._daemon() is not None:
            message = f"the MPS daemon of {self.gpu.uuid} quits when its last client is gone"
            raise Hindered("mps_quit_waits", message, self.gpu.uuid)
        self._end_orphans()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.control.mark)
        return quitting

    def _start(self, record: Record, now: datetime) -> tuple[Record, MpsProcess]:
        """Start the daemon, or say why not yet. What is left of an earlier one goes first."""
        fault = record.fault
        if record.step is Step.RUNNING:
            fault = f"process {record.pid} is gone"
        tried_at = now if record.tried_at is None else record.tried_at
        due = tried_at + backoff(record.attempts)
        if tried_at <= now < due:  # a clock that was set back does not make it wait for long
            message = (
                f"the MPS daemon of {self.gpu.uuid} failed {record.attempts} times, the last"
                f" time with: {fault}; it is started again at {due.isoformat()}"
            )
            raise Hindered("mps_daemon_failed", message, self.gpu.uuid)
        self._end_orphans()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.control.pipe)
        starting = replace(
            record,
            step=Step.STARTING,
            pid=None,
            began=None,
            attempts=record.attempts + 1,
            tried_at=now,
            fault=fault,
        )
        self.journal.write(starting)
        try:
            self.control.start()
        except Hindered as hindered:
            self.journal.write(replace(starting, fault=hindered.message))
            raise
        self.processes.look_again()
        daemon = self._daemon()
        if daemon is None:
            message = f"the MPS daemon of {self.gpu.uuid} died as soon as it had started"
            self.journal.write(replace(starting, fault=message))
            raise Hindered("mps_start_failed", message, self.gpu.uuid)
        return starting, daemon

    def _limit(self, limits: Limits) -> None:
        """Have daemon and servers allow each process that much; those connected keep theirs."""
        if not shows(self.control.default_limits(), limits):
            self.control.set_default_limits(limits)
            shown = self.control.default_limits()
            if not shows(shown, limits):
                message = f"the MPS daemon of {self.gpu.uuid} was asked for {limits}, has {shown}"
                raise Hindered("mps_limits_refused", message, self.gpu.uuid)
        for server in self.control.servers():
            self.control.set_server_limits(server, limits)

    def _end_silent(self, why: str) -> None:
        """End a daemon of ours that does not answer, if that costs nobody a context."""
        users = self.users()
        if users:
            message = (
                f"the MPS daemon of {self.gpu.uuid} does not answer ({why}); it is left alone while"
                f" processes are on the GPU: {_names(users)}"
            )
            raise Hindered("mps_daemon_silent", message, self.gpu.uuid, *map(str, users))
        self._end()

    def _end_orphans(self) -> None:
        """End servers of ours that outlived their daemon, if that costs nobody a context."""
        users = self.users() if self._ours() else []
        if users:
            message = (
                f"the MPS daemon of {self.gpu.uuid} died, and processes are still on the GPU by its"
                f" server: {_names(users)}"
            )
            raise Hindered("clients_connected", message, self.gpu.uuid, *map(str, users))
        self._end()

    def _end(self) -> None:
        for process in self._ours():
            kill(process)
        self._gone()

    def _refuse_clients(self, clients: Sequence[int]) -> None:
        if clients:
            message = f"processes are connected to the MPS of {self.gpu.uuid}: {_names(clients)}"
            raise Hindered("clients_connected", message, self.gpu.uuid, *map(str, clients))

    def users(self) -> list[int]:
        """Return who is on the GPU, but for MPS itself."""
        mps = {one.pid for one in self.processes.alive()}
        return [pid for pid in self.driver.processes(self.gpu.uuid) if pid not in mps]

    def _daemon(self) -> MpsProcess | None:
        """Return our daemon: the newest, should one that is just being ended still be there."""
        return max(
            (one for one in self._ours() if one.control), key=lambda one: one.began, default=None
        )

    def _ours(self) -> list[MpsProcess]:
        return [one for one in self.processes.alive() if one.mark == self.control.mark]

    def _gone(self) -> bool:
        """Wait a moment for the daemon and its servers to be gone; tell whether they are."""
        deadline = time.monotonic() + _GONE_S
        while self._ours():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EACH_S)
        return True


def _names(pids: Sequence[int]) -> str:
    return ", ".join(name_of(pid) for pid in pids)
