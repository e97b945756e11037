"""One agent at a time: two on one state directory would each undo what the other has written."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from apportion.agent.files import make_private
from apportion.errors import InvalidStateError

_FILE: Final = "agent.lock"


@contextmanager
def alone(state: Path) -> Generator[None]:
    """Keep other agents off a state directory, which is made if it is not there.

    The kernel lets go when this process ends, however it does. InvalidStateError names the one that
    is at work.
    """
    make_private(state)
    path = state / _FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidStateError(
                f"another agent works there: process {at_work(state)}",
                field="state",
                given=str(state),
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def at_work(state: Path) -> int | None:
    """Return the process that is at work on a state directory; None where none is."""
    try:
        with (state / _FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read()
                return int(text) if text.isdigit() else None
    except FileNotFoundError:
        pass
    return None
