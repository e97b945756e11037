"""A server and one simulated node with its agent, which die when and as a test likes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from apportion.client import AsyncClient, Client
from apportion.errors import UnavailableError
from apportion.simulated.fleet import pool_of
from apportion.simulated.nodes import Node
from apportion.testing.nvml import MACHINES

KIND = "dgx-h100"

AGENT = """
import os, signal, sys
from apportion.agent.devices.journal import Journal as DeviceJournal
from apportion.agent.mig.journal import Journal as MigJournal

log, deadly, victim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def told(point):
    with open(log, "a+") as file:
        file.write(point + chr(10))
        file.seek(0)
        passed = len(file.readlines())
    if passed == deadly:
        os.kill(victim or os.getpid(), signal.SIGKILL)

for journal in (DeviceJournal, MigJournal):
    def begun(self, *arguments, made=journal.__init__, **named):
        made(self, *arguments, **named)
        self._told = told
    journal.__init__ = begun

from apportion.cli import main
raise SystemExit(main(sys.argv[4:]))
"""
"""An agent that writes down which points of its journals it passes, and kills at one of them."""


class Server:
    """A server that may be killed, and comes back where it was."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.port = 0
        self.start()

    def start(self):
        command = [sys.executable, "-m", "apportion", "up", "--no-demo", "--state", str(self.state)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean,
        )
        for line in self.process.stdout:
            if found := re.search(r"answers at http://[^:]+:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("the server did not start")

    def revive(self):
        """Start it again if it was killed."""
        if self.process.poll() is not None:
            self.process.stdout.close()
            self.start()

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def token_file(self):
        return self.state / "root.token"

    def client(self):
        return Client(self.url, self.token_file.read_text().strip())


class World:
    """A pool with one node on a server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.client = server.client()
        self.node = Node.create(folder / f"{KIND}-1", MACHINES[KIND])
        self.agent = None
        asyncio.run(self._join())

    async def _join(self):
        token = self.server.token_file.read_text().strip()
        async with AsyncClient(self.server.url, token) as client:
            self.pool_id = await pool_of(client, KIND)
            issued = await client.create_join_token(self.pool_id, {"name": "one"})
            await self.node.join(self.server.url, issued.token)

    def start(self, *, deadly=0, victim=0):
        """Start the node's agent, which kills a process (0: itself) at one of its points."""
        said = self.node.log.open("ab")
        words = ("agent", "run", "--node", self.node.name, "--state", str(self.node.agent_state))
        self.agent = subprocess.Popen(
            [
                *(sys.executable, "-c", AGENT, str(self.passed), str(deadly), str(victim)),
                *(*words, "--cdi-dir", str(self.node.cdi_dir)),
            ],
            env={**os.environ, **self.node.environment()},
            stdout=said,
            stderr=said,
        )
        said.close()

    def revive(self):
        """Start again whoever was killed."""
        if self.agent.poll() is not None:
            self.start()
        self.server.revive()

    def stop(self):
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
            self.agent = None

    def ask(self, question):
        """Ask the server until it answers, reviving whoever is dead meanwhile."""
        while True:
            try:
                return question()
            except UnavailableError:
                self.revive()

    def until(self, holds, seconds=60):
        """Wait for what other processes do, reviving those that die over it."""
        end = time.monotonic() + seconds
        while True:
            self.revive()
            found = self.ask(holds)
            if found:
                return found
            assert time.monotonic() < end, f"never: see {self.node.log}"
            time.sleep(0.1)

    @property
    def passed(self):
        return self.node.folder / "points"

    def points(self):
        """Give the points that agents have passed since they were last forgotten."""
        return self.passed.read_text().splitlines() if self.passed.exists() else []

    def is_ready(self):
        """Tell whether the node takes work."""
        view = self.client.get_node(self.node.node_id)
        return view.observed_generation is not None and view.reason is None

    def instances(self):
        """Give the instances that the driver tells another process of: profile, place, UUID."""
        seen = subprocess.run(
            [sys.executable, "-m", "apportion", "agent", "inventory", "-o", "json"],
            env={**os.environ, **self.node.environment()},
            capture_output=True,
            check=True,
        )
        return [
            (each["profile"], each["start"], each["uuid"])
            for gpu in json.loads(seen.stdout)["gpus"]
            for each in gpu["mig"]["instances"]
        ]

    def reserve(self, profile="3g.40gb", **ask):
        chosen = {"key": "migProfile", "op": "In", "values": [profile]}
        device = {"class": "gpu.mig", "selector": {"matchExpressions": [chosen]}}
        body = {"pool_id": self.pool_id, "devices": [device], "duration": "1h", **ask}
        return self.ask(lambda: self.client.create_reservation(body))

    def allocation(self, reservation_id):
        """Give how the one device of a reservation stands, as the server has it."""
        [booking] = self.client.get_reservation(reservation_id).bookings
        return None if booking.allocation is None else booking.allocation.state

    def handed_out(self):
        """Give the files that holders see."""
        files = [*self.node.cdi_dir.glob("*.json"), *(self.node.agent_state / "env").glob("*.env")]
        return sorted(file.suffix for file in files)


@contextmanager
def simulated(path):
    """Run a server and a node of its own below a path, from when the node can take work on."""
    server = Server(path / "server")
    world = World(server, path)
    world.start()
    world.until(world.is_ready)
    yield world
    world.stop()
    world.client.close()
    server.stop()
