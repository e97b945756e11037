"""What the node has done to a GPU to share it, on disk before it is done.

One small file a GPU: how it was found, and the step that is being taken. Killed between any two
instructions, the next run reads the step and takes it again; each may be taken twice.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from apportion.agent.files import replace_file, sync_directory
from apportion.agent.points import Hook, nothing
from apportion.agent.sharing.driver import ComputeMode
from apportion.agent.sharing.faults import Hindered


class Step(StrEnum):
    """The steps of sharing a GPU, in their order; time slices have no daemon to start or quit."""

    TAKING = "taking"
    """What was found is on record; the compute mode, and the time slice, are being set."""
    STARTING = "starting"
    """A daemon is being started."""
    RUNNING = "running"
    """The GPU is shared as asked."""
    QUITTING = "quitting"
    """The daemon is asked to quit."""
    RESTORING = "restoring"
    """What was found is being set again; then the file goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One GPU's file.

    ``boot_id`` is the start of the machine that it speaks of: compute mode, time slice and daemon
    are all gone with a reboot. ``compute_mode`` and ``time_slice`` are what was found, the latter
    None where it was left alone; ``slice_set`` is what it was set to. ``pid`` and ``began`` (clock
    ticks since boot) are the daemon's. ``attempts`` counts starts since it last ran for long,
    ``tried_at`` is the last one and ``fault`` what came of it.
    """

    gpu: str
    boot_id: str
    mode: str
    step: Step
    compute_mode: ComputeMode
    time_slice: str | None = None
    slice_set: str | None = None
    pid: int | None = None
    began: int | None = None
    attempts: int = 0
    tried_at: datetime | None = None
    fault: str = ""


_FILE: Final = TypeAdapter(Record)


class Journal:
    """The files of all GPUs, in one directory.

    ``told`` hears ``before STEP`` and ``after STEP`` around each write, and around ``gone``, the
    removal of a file: tests stop the process there.
    """

    def __init__(self, directory: Path, told: Hook = nothing) -> None:
        self._directory = directory
        self._told = told

    def gpus(self) -> list[str]:
        """Return the UUIDs of the GPUs with a file, in order."""
        return sorted(path.stem for path in self._directory.glob("*.json"))

    def read(self, gpu: str) -> Record | None:
        """Return a GPU's record; None where the node has done nothing to it.

        Raises Hindered ``state_unreadable`` for a file that nobody here wrote: what it stood for
        cannot be guessed, so the GPU is left as it is.
        """
        path = self._path(gpu)
        try:
            return _FILE.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise Hindered("state_unreadable", f"{path} cannot be read: {error}", gpu) from error

    def write(self, record: Record) -> Record:
        """Put a record on disk, whole and for good, and return it.

        Raises Hindered ``state_not_written``: what it announces must not be done then.
        """
        path = self._path(record.gpu)
        self._told(f"before {record.step}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, _FILE.dump_json(record, indent=1).decode())
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}"
            raise Hindered("state_not_written", message, record.gpu) from error
        self._told(f"after {record.step}")
        return record

    def remove(self, gpu: str) -> None:
        """Forget a GPU: everything about it is as it was found."""
        self._told("before gone")
        self._path(gpu).unlink(missing_ok=True)
        sync_directory(self._directory)
        self._told("after gone")

    def _path(self, gpu: str) -> Path:
        return self._directory / f"{gpu}.json"
