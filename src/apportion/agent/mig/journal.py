"""What the agent has made and is about to make, on disk before it does.

An instance goes `creating` → `created` → `destroying` → gone, which is no entry. The file is
replaced as a whole, so that a crash leaves the old one or the new one; it says in which boot it was
written, because no instance survives a reboot, and what is there after one is somebody else's.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from apportion.agent.files import replace_file
from apportion.agent.mig.seen import Gpu, Instance
from apportion.agent.points import Hook, nothing

_LOG: Final = logging.getLogger(__name__)


_Key = tuple[str, str, int]


class Stage(StrEnum):
    """How far an instance has come."""

    CREATING = "creating"
    CREATED = "created"
    DESTROYING = "destroying"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An instance that the agent makes, made or destroys, at its place on a GPU.

    ``gi_id`` is None until the driver has given one, ``uuid`` until its device is there.
    """

    gpu: str
    profile: str
    start: int
    stage: Stage
    allocation_id: str | None = None
    gi_id: int | None = None
    uuid: str | None = None

    def is_of(self, instance: Instance) -> bool:
        """Tell whether this is the entry of an instance that is there.

        Ids are reused and places too; a device's UUID is not. An instance that never had a device
        is told by its place: nothing else lay there when it was written down.
        """
        if (self.profile, self.start) != (instance.profile, instance.place.start):
            return False
        if self.gi_id is not None and self.gi_id != instance.gi_id:
            return False
        if self.stage is Stage.CREATING:
            return True
        uuids = {compute.uuid for compute in instance.computes}
        return self.uuid in uuids or (self.stage is Stage.DESTROYING and not uuids)


class Journal:
    """The entries, by GPU and place; every change is on disk when the call returns.

    OSError where the disk would not take it: nothing is to be done then. ``told`` hears
    ``before STAGE`` and ``after STAGE`` around each write, and around ``gone``, when an entry goes:
    tests stop the process there.
    """

    def __init__(self, path: Path, boot_id: str, told: Hook = nothing) -> None:
        """Read the journal of this boot; one of another boot, or none, is empty.

        One that nobody can read is put aside: its instances are strangers' from then on, which are
        left alone until an operator destroys them.
        """
        self._path = path
        self._boot_id = boot_id
        self._told = told
        self._entries: dict[_Key, Entry] = {}
        try:
            document = _Document.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return
        except ValidationError as error:
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            _LOG.error("the journal is unreadable, and was put aside as %s: %s", aside, error)
            return
        if document.boot_id == boot_id:
            self._entries = {_key(entry): entry for entry in document.entries}

    def entries(self, gpu: str | None = None) -> Iterable[Entry]:
        """Return the entries of a GPU, or all."""
        return [entry for entry in self._entries.values() if gpu in {None, entry.gpu}]

    def find(self, uuid: str) -> Entry | None:
        """Return the entry of a MIG device, by its UUID; None where the agent did not make it."""
        return next((each for each in self._entries.values() if each.uuid == uuid), None)

    def made_for(self, uuid: str) -> str | None:
        """Return for which allocation a MIG device was made; None where for none in particular."""
        entry = self.find(uuid)
        return None if entry is None else entry.allocation_id

    def put(self, entry: Entry) -> Entry:
        """Write an entry, over one for the same place."""
        self._write(entry.stage, {**self._entries, _key(entry): entry})
        return entry

    def forget(self, entry: Entry) -> None:
        """Write that an instance is gone."""
        kept = {key: each for key, each in self._entries.items() if key != _key(entry)}
        self._write("gone", kept)

    def of(self, gpu: Gpu) -> dict[int, Entry]:
        """Return the entries of a GPU's instances by their ids; of those gone, none is kept."""
        found: dict[int, Entry] = {}
        gone: list[Entry] = []
        for entry in self.entries(gpu.uuid):
            instance = next((each for each in gpu.instances if entry.is_of(each)), None)
            if instance is None:
                gone.append(entry)
            else:
                found[instance.gi_id] = entry
        if gone:
            keys = {_key(entry) for entry in gone}
            kept = {key: each for key, each in self._entries.items() if key not in keys}
            self._write("gone", kept)
        return found

    def _write(self, point: str, entries: dict[_Key, Entry]) -> None:
        self._told(f"before {point}")
        document = _Document(boot_id=self._boot_id, entries=list(entries.values()))
        replace_file(self._path, document.model_dump_json(indent=1) + "\n")
        self._entries = entries
        self._told(f"after {point}")


class _Document(BaseModel):
    version: Literal[1] = 1
    boot_id: str
    entries: list[Entry]


def _key(entry: Entry) -> _Key:
    return entry.gpu, entry.profile, entry.start
