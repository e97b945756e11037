"""What the agent has to remember of GPUs, because the driver tells it once, or tells it no more.

A critical error is told once, to who listens; it counts until the GPU is reset, its instance is
made anew, or the machine starts anew. A GPU that has fallen off the bus no longer says who it is,
and a report that left it out would say that it was taken away.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from apportion.agent.files import replace_file
from apportion.agent.nvml import Event, GpuFacts

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program makes: it ends, and the GPU serves the next one."""
_ERRORS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalError:
    """An XID of a GPU, or of the instance of a MIG device (its ``instance`` is the UUID).

    ``waits`` tells that the driver has wanted the GPU to be reset since.
    """

    gpu: str
    xid: int
    at: str
    instance: str | None = None
    waits: bool = False

    @property
    def fatal(self) -> bool:
        """Whether what it struck cannot be used until it is reset or made anew."""
        return self.xid not in APPLICATION_XIDS


class Remembered:
    """GPUs that were seen, and the critical errors of this boot; on disk where it has a file."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        """Read what is remembered; errors of another boot, and a file that nobody can read, aside.

        Nothing is lost with them that the driver would not say again.
        """
        self._path = path
        self._boot_id = boot_id
        self.gpus: dict[str, GpuFacts] = {}
        self.errors: list[CriticalError] = []
        self.unwritten: str | None = None
        if path is not None:
            self._read(path)

    @classmethod
    def glance(cls, path: Path | None, boot_id: str) -> Self:
        """Read what somebody else remembers, and write nothing."""
        found = cls(path, boot_id)
        found._path = None
        return found

    def see(self, facts: GpuFacts) -> None:
        """Remember who a GPU is."""
        if self.gpus.get(facts.uuid) != facts:
            self.gpus = {**self.gpus, facts.uuid: facts}
            self._write()

    def forget(self, gpu: str) -> None:
        """Forget a GPU that was taken out of the machine."""
        self.gpus = {uuid: facts for uuid, facts in self.gpus.items() if uuid != gpu}
        self.reset(gpu)

    def strike(self, event: Event, instance: str | None, at: str) -> None:
        """Remember a critical error, of an instance where the driver says of which."""
        error = CriticalError(gpu=event.gpu, xid=event.xid, at=at, instance=instance)
        known = [each for each in self.errors if replace(each, at=at, waits=False) != error]
        self.errors = [*known, error][-_ERRORS_MAX:]
        self._write()

    def reset(self, gpu: str) -> None:
        """Count a GPU's errors no more: it has been reset."""
        self._keep([each for each in self.errors if each.gpu != gpu])

    def recover(self, gpu: str, *, wanted: bool) -> None:
        """Take in whether the driver wants a GPU to be reset: once it no longer does, it was."""
        if wanted:
            self._keep([replace(e, waits=e.waits or e.gpu == gpu) for e in self.errors])
        else:
            self._keep([e for e in self.errors if e.gpu != gpu or not e.waits])

    def settle(self, gpu: str, devices: Collection[str]) -> None:
        """Count the errors of a GPU's instances no more that are gone; these devices are there."""
        there = {None, *devices}
        self._keep([each for each in self.errors if each.gpu != gpu or each.instance in there])

    def _keep(self, errors: list[CriticalError]) -> None:
        if errors != self.errors:
            self.errors = errors
            self._write()

    def _read(self, path: Path) -> None:
        try:
            content: Any = json.loads(path.read_bytes())
            self.gpus = {row["uuid"]: GpuFacts(**row) for row in content["gpus"]}
            if content["boot_id"] == self._boot_id:
                self.errors = [CriticalError(**row) for row in content["errors"]]
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError):
            self.gpus, self.errors = {}, []

    def _write(self) -> None:
        if self._path is None:
            return
        content = {
            "boot_id": self._boot_id,
            "gpus": [asdict(each) for each in self.gpus.values()],
            "errors": [asdict(each) for each in self.errors],
        }
        try:
            replace_file(self._path, json.dumps(content, indent=1))
        except OSError as error:
            # A full disk must not keep the node from saying what it sees: it is said beside.
            self.unwritten = f"what is remembered of GPUs cannot be written: {error.strerror}"
        else:
            self.unwritten = None
