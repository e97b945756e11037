"""The files that hand an allocation out: a process its environment, a container its CDI spec."""

import json
from pathlib import Path

from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.capabilities import control_nodes
from apportion.agent.devices.cdi import cdi_spec, spec_file
from apportion.agent.devices.environment import env_file, environment_of, inside_container
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.journal import Device
from apportion.agent.files import replace_file, sync_directory
from apportion.agent.sharing.environment import pipe_directory
from apportion.errors import InvalidInputError


class HandedOut:
    """Both directories: ``env`` below the agent's state, and the one where runtimes look."""

    def __init__(self, state: Path, cdi_dir: Path, root: Path) -> None:
        """``root`` is where the host's own ``/proc`` is."""
        self._state, self._cdi, self._root = state, cdi_dir, root
        self._env = state / "env"

    def env_path(self, allocation_id: str) -> Path:
        """Return where an allocation's environment is."""
        return self._env / f"{allocation_id}.env"

    def write(self, assignment: Assignment, device: Device, mps_memory_mib: int | None) -> None:
        """Write both, each whole or not at all; what is there already stays as it is.

        HeldUpError ``files_not_written`` where the disk does not take one.
        """
        try:
            variables = environment_of(
                assignment, device, state=self._state, mps_memory_mib=mps_memory_mib
            )
        except InvalidInputError as error:
            raise HeldUpError("share_not_possible", str(error)) from error
        pipe = str(pipe_directory(self._state, assignment.gpu))
        document = cdi_spec(
            assignment.allocation_id,
            devices=device.nodes,
            controls=control_nodes(self._root),
            environment=inside_container(variables),
            mounts=() if mps_memory_mib is None else (pipe,),
        )
        try:
            self._env.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cdi.mkdir(parents=True, exist_ok=True)
            _write(self.env_path(assignment.allocation_id), env_file(variables), mode=0o600)
            text = json.dumps(document, indent=1) + "\n"
            _write(self._cdi / spec_file(assignment.allocation_id), text, mode=0o644)
        except OSError as error:
            message = f"the files of {assignment.allocation_id}: {error.strerror}"
            raise HeldUpError("files_not_written", message) from error

    def remove(self, allocation_id: str) -> None:
        """Take both away, if they are there: nobody new gets in by them."""
        try:
            for path in (self._cdi / spec_file(allocation_id), self.env_path(allocation_id)):
                if path.exists():
                    path.unlink()
                    sync_directory(path.parent)
        except OSError as error:
            raise HeldUpError("files_not_removed", str(error)) from error


def _write(path: Path, text: str, *, mode: int) -> None:
    """Replace a file, unless it says the same already: each round comes by here."""
    if not path.exists() or path.read_text("utf-8") != text:
        replace_file(path, text, mode=mode)
