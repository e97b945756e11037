"""What the node has handed out, on disk before it is done: one small file an allocation.

Killed between any two instructions, the next run reads the step and takes it again; each may be
taken twice.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.capabilities import Node
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.files import replace_file, sync_directory
from apportion.agent.points import Hook, nothing


class Step(StrEnum):
    """The steps of an allocation, in their order."""

    BINDING = "binding"
    """Its environment and its CDI spec are being written."""
    BOUND = "bound"
    """It is handed out."""
    ENDING = "ending"
    """Its window is over: nobody new gets in, and who is in is told to leave."""
    RESETTING = "resetting"
    """Nobody is in; its memory has to be as it was found."""
    RELEASED = "released"
    """Others may have it; the file stays until that was told, and then goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What an allocation comes to on this machine, as of one start of it.

    ``uuid`` is what CUDA selects it by; ``place`` the memory slices ``[start, end)`` of a MIG
    instance. ``nodes`` are what a process has to be able to open.
    """

    uuid: str
    gpu_minor: int
    gi_id: int | None = None
    ci_id: int | None = None
    place: tuple[int, int] | None = None
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One allocation's file.

    ``at`` is when its step began, ``boot_id`` the start of the machine that ``device`` is of.
    ``over_at`` is when its taking back began.
    ``idle_mib`` is how much memory was used before it was handed out; None where others share it.
    ``told_at`` and ``killed_at`` are when its processes were asked to leave, and made to;
    ``reset_at`` is when the GPU was reset for it.
    """

    assignment: Assignment
    step: Step
    at: AwareDatetime
    boot_id: str
    device: Device
    idle_mib: int | None = None
    over_at: AwareDatetime | None = None
    told_at: AwareDatetime | None = None
    killed_at: AwareDatetime | None = None
    reset_at: AwareDatetime | None = None

    @property
    def id(self) -> str:
        """Return the allocation's id."""
        return self.assignment.allocation_id

    @property
    def holds(self) -> bool:
        """Tell whether its device is nobody else's."""
        return self.step is not Step.RELEASED


_FILE: Final = TypeAdapter(Record)


class Journal:
    """The files of all allocations, in one directory.

    ``told`` hears ``before STEP`` and ``after STEP`` around each write, and around ``gone``, the
    removal of a file: tests stop the process there.
    """

    def __init__(self, directory: Path, told: Hook = nothing) -> None:
        """Keep them below the agent's state directory."""
        self._directory = directory
        self._told = told

    def read_all(self) -> dict[str, Record]:
        """Return every allocation by its id.

        HeldUpError ``state_unreadable`` for a file that nobody here wrote: what it stood for cannot
        be guessed, so nothing is handed out or taken back until somebody has looked at it.
        """
        found: dict[str, Record] = {}
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = _FILE.validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                message = f"{path} cannot be read: {error}"
                raise HeldUpError("state_unreadable", message) from error
            found[record.id] = record
        return found

    def write(self, record: Record, *, is_step: bool = True) -> Record:
        """Put a record on disk, whole and for good, and return it.

        HeldUpError ``state_not_written``: what it announces must not be done then.
        """
        if is_step:
            self._told(f"before {record.step}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(record.id), _FILE.dump_json(record, indent=1).decode())
        except OSError as error:
            message = f"{self._path(record.id)} cannot be written: {error.strerror}"
            raise HeldUpError("state_not_written", message) from error
        if is_step:
            self._told(f"after {record.step}")
        return record

    def remove(self, record: Record) -> None:
        """Forget an allocation that was released, and told of."""
        self._told("before gone")
        self._path(record.id).unlink(missing_ok=True)
        sync_directory(self._directory)
        self._told("after gone")

    def _path(self, allocation_id: str) -> Path:
        return self._directory / f"{allocation_id}.json"
