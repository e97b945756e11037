"""A node with GPUs to share: the stand-in of the MPS daemon, in processes of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from apportion.agent.sharing.driver import SharedGpu
from apportion.agent.sharing.environment import pipe_directory, slot_environment
from apportion.agent.sharing.faults import Hindered
from apportion.agent.sharing.gpu import Tools
from apportion.agent.sharing.journal import Journal
from apportion.agent.sharing.processes import Processes
from apportion.agent.sharing.unit import SharingUnit
from apportion.testing.mps import MpsStandIn

NOW = datetime(2036, 12, 1, 9, tzinfo=UTC)
MEMORY = 81559
FOUR = {"mode": "mps", "replicas": 4, "mps_units": 25}
SLICES = {"mode": "timeslice", "replicas": 4}


class FileDriver:
    """What a driver keeps, in a file: it is there for the next process as well."""

    def __init__(self, path):
        self.path = path

    def state(self):
        return json.loads(self.path.read_text("utf-8"))

    def change(self, uuid, **fields):
        state = self.state()
        state[uuid] |= fields
        self.path.with_suffix(".new").write_text(json.dumps(state), "utf-8")
        self.path.with_suffix(".new").replace(self.path)

    def gpus(self):
        return [
            SharedGpu(uuid, index, MEMORY, gpu["mig"])
            for index, (uuid, gpu) in enumerate(self.state().items())
            if not gpu["lost"]
        ]

    def compute_mode(self, uuid):
        return self.state()[uuid]["mode"]

    def set_compute_mode(self, uuid, mode):
        if self.state()[uuid]["refuses"]:
            raise Hindered("driver_refused", f"the driver refuses {mode} on {uuid}", uuid)
        self.change(uuid, mode=mode)

    def processes(self, uuid):
        return [pid for pid in self.state()[uuid]["processes"] if Path(f"/proc/{pid}").exists()]


class World:
    """A node: state directory, driver, stand-in, and the unit as a fresh agent would have it."""

    def __init__(self, directory, gpus=1):
        self.directory = directory
        self.state = directory / "s"
        self.driver = FileDriver(directory / "driver.json")
        self.gpus = [f"GPU-{uuid4()}" for _ in range(gpus)]
        fresh = {"mode": "default", "mig": False, "lost": False, "refuses": False, "processes": []}
        self.driver.path.write_text(json.dumps(dict.fromkeys(self.gpus, fresh)), "utf-8")
        self.stand_in = MpsStandIn(directory / "bin")
        self.clients = []

    @property
    def gpu(self):
        return self.gpus[0]

    def journal(self, told=lambda _point: None):
        return Journal(self.state / "sharing", told)

    def unit(self, boot_id="boot-1", patience_s=10, told=lambda _point: None, **tools):
        return SharingUnit(
            Tools(
                driver=self.driver,
                journal=self.journal(told),
                state=self.state,
                boot_id=boot_id,
                patience_s=patience_s,
                **{"mps_control": self.stand_in.control, **tools},
            )
        )

    def converge(self, wanted=FOUR, after_s=0, **how):
        return self.unit(**how).converge(wanted, NOW + timedelta(seconds=after_s))

    def ours(self, gpu=None):
        """Return daemon and servers of a GPU, by their mark."""
        mark = str(self.state / "mps" / (gpu or self.gpu))
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
        self.driver.change(gpu, processes=[*self.driver.state()[gpu]["processes"], client.pid])
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
def world(gpus=1):
    """Give a node in a directory that is short enough for sockets, and that other users reach."""
    directory = Path(tempfile.mkdtemp(prefix="mps-"))
    directory.chmod(0o755)
    made = World(directory, gpus)
    try:
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
