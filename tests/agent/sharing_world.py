"""A node with GPUs to share: the stand-in of the MPS daemon, in processes of its own."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from uuid import uuid4

from nvml_world import driving

from apportion.agent.nvml import Driver
from apportion.agent.sharing.driver import SharingDriver
from apportion.agent.sharing.environment import mps_root, pipe_directory, slot_environment
from apportion.agent.sharing.gpu import Tools
from apportion.agent.sharing.journal import Journal
from apportion.agent.sharing.processes import Processes
from apportion.agent.sharing.unit import SharingUnit
from apportion.testing.mps import MpsStandIn
from apportion.testing.nvml import Simulation
from apportion.testing.nvml.hosts import began
from apportion.testing.nvml.machines import MACHINES

NOW = datetime(2036, 12, 1, 9, tzinfo=UTC)
MEMORY = 81559
QUARTER = Fraction(1, 4)
FOUR = {"mode": "mps", "replicas": 4, "mps_units": 25}
SLICES = {"mode": "timeslice", "replicas": 4}


class World:
    """A node: state directory, driver, stand-in, and the unit as a fresh agent would have it."""

    def __init__(self, directory, gpus):
        self.directory = directory
        self.state = directory / "s"
        kind = replace(MACHINES["dgx-h100"], models=MACHINES["dgx-h100"].models[:gpus])
        self.machine = Simulation.create(directory / "m", kind, name=uuid4().hex)
        self.gpus = [gpu.uuid.decode() for gpu in self.machine.read().gpus[:gpus]]
        self.stand_in = MpsStandIn(self.machine.folder / "bin")
        self.clients = []

    @property
    def gpu(self):
        return self.gpus[0]

    @property
    def driver(self):
        return SharingDriver(Driver())

    def change(self, gpu=None, **fields):
        """Change what the driver has of a GPU."""
        with self.machine.change() as machine:
            for name, value in fields.items():
                setattr(machine.gpus[self.gpus.index(gpu or self.gpu)], name, value)

    def hold(self, pid, gpu=None, **how):
        """Let a process be on a GPU till it ends."""
        self.machine.hold(self.gpus.index(gpu or self.gpu), pid, begun=began(pid), **how)

    def journal(self, told=lambda _point: None):
        return Journal(self.state / "sharing", told)

    def record(self):
        return self.journal().read(self.gpu)

    def boot_id(self):
        return (self.machine.root / "proc/sys/kernel/random/boot_id").read_text("utf-8").strip()

    def unit(self, patience_s=10, told=lambda _point: None, **tools):
        return SharingUnit(
            Tools(
                driver=self.driver,
                journal=self.journal(told),
                state=self.state,
                boot_id=self.boot_id(),
                patience_s=patience_s,
                **{
                    "mps_control": self.stand_in.control,
                    "nvidia_smi": str(self.machine.folder / "bin" / "nvidia-smi"),
                    **tools,
                },
            )
        )

    def converge(self, wanted=FOUR, after_s=0, **how):
        return self.unit(**how).converge(wanted, NOW + timedelta(seconds=after_s))

    def ours(self, gpu=None):
        """Return daemon and servers of a GPU, by their mark."""
        mark = str(mps_root(self.state, gpu or self.gpu))
        return [one for one in Processes().alive() if one.mark == mark]

    def daemon(self, gpu=None):
        return next((one for one in self.ours(gpu) if one.control), None)

    def ask(self, command, gpu=None):
        """Give the daemon a command as an operator would; None where there is none."""
        pipe = pipe_directory(self.state, gpu or self.gpu)
        ran = subprocess.run(
            [self.stand_in.control],
            input=command + "\n",
            env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout.strip() if ran.returncode == 0 else None

    def client(self, share, gpu=None, **environment):
        """Start an application as a holder of a share, and have it on the GPU as NVML shows it."""
        gpu = gpu or self.gpu
        handed = slot_environment(state=self.state, gpu_uuid=gpu, memory_mib=MEMORY, share=share)
        client = subprocess.Popen(
            [self.stand_in.client],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"CUDA_VISIBLE_DEVICES": gpu, **handed, **environment},
        )
        self.clients.append(client)
        self.hold(client.pid, gpu, mps=True)
        return client

    def connect_as(self, uid, gpu=None):
        """Connect as another user's application; a daemon goes by whom the socket is from."""
        connection = socket.socket(socket.AF_UNIX)
        os.seteuid(uid)
        try:
            connection.connect(str(pipe_directory(self.state, gpu or self.gpu) / "control"))
        finally:
            os.seteuid(0)
        connection.sendall(b'{"percentage": 100, "memory": {}}\n')
        return connection

    def said(self, client):
        return json.loads(client.stdout.readline())

    def leave(self, client):
        client.stdin.close()
        client.wait(10)
        client.stdout.close()
        self.clients.remove(client)

    def close(self):
        for client in list(self.clients):
            client.kill()
            self.leave(client)
        for process in Processes().alive():
            if (process.mark or process.pipe).startswith(str(self.directory)):
                os.kill(process.pid, signal.SIGKILL)


@contextmanager
def world(gpus=1, *, alone=False):
    """Give a node in a directory that is short enough for sockets, and that other users reach.

    An agent looks at every MPS daemon of the machine: ``alone`` keeps away those of other tests,
    which run at the same time.
    """
    with Path(tempfile.gettempdir(), "apportion-mps.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        directory = Path(tempfile.mkdtemp(prefix="mps-"))
        directory.chmod(0o755)
        made = World(directory, gpus)
        try:
            with driving(made.machine):
                yield made
        finally:
            made.close()
            shutil.rmtree(directory, ignore_errors=True)


def until(holds, seconds=10):
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.01)
