"""Machines in folders: made once, joined once, and each with its agent for as long as we run."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apportion.agent.alone import at_work
from apportion.agent.identity import keep, kept
from apportion.errors import UnavailableError
from apportion.testing.nvml import MachineKind, Simulation

_AGAIN_SECONDS: Final = 1
_PATIENCE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated machine and what its agent keeps, in one folder."""

    name: str
    folder: Path
    machine: Simulation

    @classmethod
    def create(cls, folder: Path, kind: MachineKind) -> "Node":
        """Make a machine of a kind in a folder named as the node, or take the one that is there."""
        machine_folder = folder / "machine"
        if (machine_folder / "state").exists():
            machine = Simulation(machine_folder)
        else:
            machine = Simulation.create(machine_folder, kind, name=folder.name)
        return cls(folder.name, folder, machine)

    @property
    def agent_state(self) -> Path:
        """Where its agent keeps its key, its journals and its reports."""
        return self.folder / "agent"

    @property
    def cdi_dir(self) -> Path:
        """Where its agent writes CDI specs."""
        return self.folder / "cdi"

    @property
    def log(self) -> Path:
        """What its agent has said."""
        return self.folder / "agent.log"

    @property
    def node_id(self) -> str:
        """What the server calls it; it has joined."""
        identity = kept(self.agent_state)
        assert identity is not None  # noqa: S101 - asked for after joining alone
        return identity.node_id

    def knows(self, url: str) -> bool:
        """Tell whether it has joined the server, which may have moved to another port since."""
        identity = kept(self.agent_state)
        if identity is not None and identity.url != url:
            keep(self.agent_state, identity.model_copy(update={"url": url}))
        return identity is not None

    def environment(self) -> Mapping[str, str]:
        """Return what a process needs to be on this machine, and known as being there."""
        return {
            **self.machine.environment(),
            "APPORTION_NODE": self.name,
            "APPORTION_AGENT_STATE": str(self.agent_state),
        }

    def write_activation(self, url: str, token_file: Path) -> Path:
        """Write a file for `source`, with which a shell is on this machine; returns it."""
        variables = {
            **self.environment(),
            "APPORTION_URL": url,
            "APPORTION_TOKEN_FILE": str(token_file),
        }
        path = self.folder / "activate"
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    async def join(self, url: str, token: str) -> None:
        """Join the pool of a join token; UnavailableError with what the agent said."""
        process = await self._agent("join", "--server", url, "--token-file", "-")
        said, _ = await process.communicate(token.encode())
        if process.returncode != 0:
            raise UnavailableError(f"{self.name} cannot join: {said.decode().strip()}")

    async def run_agent(self) -> None:
        """Run its agent until this is cancelled; one that ended is started again.

        One that outlived whoever started it ends first: agents may be killed at any moment.
        """
        if (left := at_work(self.agent_state)) is not None:
            os.kill(left, signal.SIGKILL)
        while True:
            process = await self._agent("run", "--cdi-dir", str(self.cdi_dir), to_log=True)
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    await _end(process)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _agent(
        self, verb: str, *arguments: str, to_log: bool = False
    ) -> "asyncio.subprocess.Process":
        command = [sys.executable, "-m", "apportion", "agent", verb, "--node", self.name]
        command += ["--state", str(self.agent_state), *arguments]
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **self.environment()},
                stdin=asyncio.subprocess.DEVNULL if to_log else asyncio.subprocess.PIPE,
                stdout=log if to_log else asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )


async def _end(process: "asyncio.subprocess.Process") -> None:
    """Ask an agent to end, and make it: it goes on where it was, whenever it is started again."""
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _PATIENCE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
