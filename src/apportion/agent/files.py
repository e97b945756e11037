"""Files of the agent's state directory."""

import os
import tempfile
from pathlib import Path

from apportion.errors import UnavailableError


def replace_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file as a whole: after a crash it has the old text or the new, and never a part.

    Its directory must be there. OSError where the disk does not take it; the old text stays.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Put a directory's entries on disk: a rename or an unlink is lost with the power before."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep(path: Path, text: str) -> None:
    """Replace a file as a whole; UnavailableError where the disk does not take it."""
    try:
        replace_file(path, text)
    except OSError as error:
        raise UnavailableError(
            f"cannot be written: {error.strerror}", field="state", given=str(path)
        ) from error


def read_if_there(path: Path) -> str | None:
    """Return what a file holds, None where there is none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None


def make_private(path: Path) -> None:
    """Make a directory that only its owner can enter; one that is there keeps its mode."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"cannot be made: {error.strerror}", field="state", given=str(path)
        ) from error
