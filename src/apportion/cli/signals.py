"""Signals taken one at a time, where the program looks for them, and never in between.

What has to be given back whatever happens cannot be lost between two instructions: a signal that
comes while the server is asked is read when it has answered.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Self

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FROM_KERNEL: Final = 0x80  # si_code of what a terminal sends, to all of its foreground group
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class StoppedError(Exception):
    """A signal that ends what is under way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell shows it."""
        return 128 + self.number


class Signals:
    """While entered, ending signals and the ends of children wait to be read here."""

    def __init__(self) -> None:
        # What the caller ignores (nohup) stays so.
        ending = {each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN}
        self._read = ending | {signal.SIGCHLD}
        self._before: set[int | signal.Signals] = set()

    def __enter__(self) -> Self:
        """Hold them back."""
        self._before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._read))
        return self

    def __exit__(self, *_: object) -> None:
        """Let them through again; those that nobody read are over."""
        while signal.sigtimedwait(self._read, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def pause(self, longest: timedelta) -> None:
        """Sleep so long; StoppedError where an ending signal comes, or has come."""
        found = self.next(longest)
        if found is not None and found.si_signo != signal.SIGCHLD:
            raise StoppedError(found.si_signo)

    def next(self, longest: timedelta) -> signal.struct_siginfo | None:
        """Return the next signal; None where none comes in that time."""
        seconds = max(longest, timedelta()) / timedelta(seconds=1)
        return signal.sigtimedwait(self._read, seconds)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start a command that has its signals as the caller of this program has; its pid."""
        return os.posix_spawnp(
            command[0],
            list(command),
            dict(environment),
            setsigmask=self._before,
            setsigdef=_IGNORED_BY_PYTHON,
        )


def is_told_by_terminal(found: signal.struct_siginfo) -> bool:
    """Tell whether a terminal sent it: then the command, in the same group, has it as well."""
    return found.si_code == _FROM_KERNEL
