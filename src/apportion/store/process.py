"""A child process that never outlives us, not even when we are killed.

The kernel sends a child its parent-death signal when the *thread* that forked it ends. So each
child is forked by a thread of its own, which then waits for it: that thread ends when the child
does or when the whole process does, and never before, whoever called us.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from threading import Thread

from apportion.store import child
from apportion.store.account import Account

_ENVIRONMENT = {"PATH": os.defpath}


class Child:
    """A running child process; its standard output and error go to the file ``output``."""

    def __init__(self, command: Sequence[str], *, account: Account, output: int) -> None:
        self._started: Future[subprocess.Popen[bytes]] = Future()
        self._ended: Future[int] = Future()
        Thread(target=self._hold, args=(command, account, output), daemon=True).start()
        self._process = self._started.result()
        self.pid = self._process.pid

    def _hold(self, command: Sequence[str], account: Account, output: int) -> None:
        try:
            process = _spawn(command, account, output)
        except OSError as error:
            self._started.set_exception(error)
            return
        self._started.set_result(process)
        self._ended.set_result(process.wait())

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, or None when the child still runs after that time."""
        try:
            return self._ended.result(seconds)
        except FutureTimeoutError:
            return None

    def stop(self, seconds: float) -> None:
        """End the child: SIGINT, then SIGQUIT, then SIGKILL, each given that time to work."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(number)
            if self.wait(seconds) is not None:
                return


def _spawn(command: Sequence[str], account: Account, output: int) -> "subprocess.Popen[bytes]":
    who = (str(os.getpid()), account.way, str(account.uid), str(account.gid))
    return subprocess.Popen(  # noqa: S603 (our own arguments, no shell)
        (sys.executable, "-I", "-S", str(Path(child.__file__)), *who, *command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_ENVIRONMENT,  # a PGDATA or PGOPTIONS of the caller must not reach the server
        umask=0o077,
        # Ctrl-C in a terminal goes to the whole foreground group; PostgreSQL would stop before we
        # have finished with it.
        start_new_session=True,
    )
