"""The length of time slices, which only `nvidia-smi` sets; not every driver and GPU has one to set.

It is the quantum of a whole GPU: nobody gets a larger share by it, and it says nothing of memory.
"""

import re
import subprocess
from typing import Final

from apportion.agent.sharing.faults import Hindered

UNSUPPORTED: Final = "time_slice_unsupported"

LENGTHS: Final = ("default", "short", "medium", "long")
"""The lengths that drivers know, in the order of their numbers; in ms they say nothing."""


class TimeSlices:
    """The driver's time slices. ``executable`` is ``nvidia-smi``, by name or path."""

    def __init__(self, executable: str, *, patience_s: int) -> None:
        self._executable = executable
        self._patience_s = patience_s

    def read(self, uuid: str) -> str:
        """Return a GPU's length. Raises Hindered ``time_slice_unsupported`` where none is told."""
        said = self._run(uuid, "--list")
        match = re.search(rf"timeslice\W+({'|'.join(LENGTHS)})\b", said, re.IGNORECASE)
        if match is None:
            raise self._unsupported(uuid, said)
        return match[1].lower()

    def set(self, uuid: str, length: str) -> None:
        """Set it, and see that it is set. Raises Hindered ``time_slice_unsupported`` else."""
        said = self._run(uuid, f"--set-timeslice={LENGTHS.index(length)}")
        if self.read(uuid) != length:
            raise self._unsupported(uuid, said)

    def _run(self, uuid: str, option: str) -> str:
        try:
            ran = subprocess.run(  # noqa: S603 - the executable is the operator's setting
                [self._executable, "compute-policy", "-i", uuid, option],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._patience_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._unsupported(uuid, str(error)) from error
        said = ran.stdout.decode("utf-8", "replace").strip()
        if ran.returncode != 0:
            raise self._unsupported(uuid, said)
        return said

    def _unsupported(self, uuid: str, said: str) -> Hindered:
        message = f"{self._executable} does not set the time slice of {uuid}: {said or 'no answer'}"
        return Hindered(UNSUPPORTED, message, uuid)
