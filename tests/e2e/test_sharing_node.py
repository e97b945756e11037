"""A pool of MPS slots from the ask to the process that is capped, server and agent apart."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import pytest

from apportion.agent.sharing.processes import Processes
from apportion.testing.mps.stand_in import CLIENT
from apportion.testing.nvml import Simulation

QUOTAS = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB")


class Node:
    """A simulated machine with its agent, which dies when a test likes."""

    def __init__(self, server, folder, policy):
        self.server, self.folder = server, folder
        self.machine = Simulation.create(folder / "m", "a30x4", name=folder.name)
        self.state = folder / "a"
        self.environment = {
            **server.environment(),
            **self.machine.environment(),
            "APPORTION_CDI_DIR": str(folder / "cdi"),
        }
        with server.client() as client:
            self.pool = client.create_pool(
                {
                    "name": folder.name,
                    "agent": "apportion",
                    "owner_quota": dict.fromkeys(QUOTAS, "unlimited"),
                    "gpu_model": "A30",
                    "sharing": "mps",
                    "policy": {"reportInterval": "1s", **policy},
                }
            )
            token = client.create_join_token(self.pool.id, {"name": folder.name}).token
        self.run("join", "--server", server.url, "--token", token).wait()
        self.agent = None

    def run(self, verb, *words):
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "apportion", "agent", verb, "--node", self.folder.name),
                    *("--state", str(self.state), *words),
                ],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def start(self):
        self.agent = self.run("run")

    def log(self):
        return (self.folder / "log").read_text("utf-8")

    def kill(self):
        self.agent.kill()
        self.agent.wait()

    def view(self):
        with self.server.client() as client:
            [summary] = client.list_nodes(pool_id=self.pool.id).items
            return client.get_node(summary.id)

    def said(self):
        return self.view().outcomes.get("gpu-sharing", {"done": False, "message": ""})

    def handed_out(self, reservation):
        """Return the environment of a reservation's first piece, None before it is there."""
        path = self.state / "env" / f"{reservation}.0.env"
        lines = path.read_text("utf-8").splitlines() if path.exists() else ()
        return dict(line.split("=", 1) for line in lines) or None

    def daemon(self, gpu):
        return next(
            one
            for one in Processes().alive()
            if one.control and one.environment["CUDA_VISIBLE_DEVICES"] == gpu
        )

    def close(self):
        if self.agent is not None:
            self.kill()
        for one in Processes().alive():
            if (one.mark or "").startswith(str(self.folder)):
                os.kill(one.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def node(server):
    folder = Path(tempfile.gettempdir()).resolve() / f"mps-{uuid4().hex[:8]}"
    folder.mkdir()
    made = Node(server, folder, {"replicas": 4})
    yield made
    made.close()


def come(about, what):
    deadline = time.monotonic() + 60
    while not (found := about()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return found


def test_two_slots_come_as_half_a_gpu_to_one_process_which_outlives_agent_and_crashes(node, cli):
    node.start()
    come(lambda: node.said()["done"], node.log)
    words = ("--pool", node.pool.name, "--slots", "2", "--for", "1h", "-o", "json")
    come(lambda: node.view().reason is None, node.view)
    reservation = cli("reserve", *words).data["id"]
    variables = come(lambda: node.handed_out(reservation), node.said)
    gpu = variables["CUDA_VISIBLE_DEVICES"]
    client = subprocess.Popen(
        [str(node.machine.folder / "bin" / CLIENT)],
        env={**node.environment, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with client, client.stdin, client.stdout:
        got = json.loads(client.stdout.readline())
        assert (got["percentage"], got["memory"]) == (50, {gpu: 24576 // 2})
        before = node.daemon(gpu)
        node.kill()
        last = node.view().observed_at
        node.start()
        come(lambda: node.view().observed_at > last, node.log)
        assert node.said()["done"]
        assert node.daemon(gpu) == before
        assert client.poll() is None
        client.stdin.close()
        client.wait(10)
    os.kill(before.pid, signal.SIGKILL)
    come(lambda: "started 2 times" in node.said()["message"], node.said)
    assert node.said()["message"].startswith("soft: MPS")
    assert cli("reservation", "release", reservation, "--yes").code == 0
    come(lambda: node.handed_out(reservation) is None, node.said)
