"""A node with its whole agent beside a real server, by one clock, for faults of the machine."""

import json
import resource
import secrets
import signal
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count

import pytest
from holder_world import gi_of
from nvml_world import driving

from apportion.agent.identity import link_of
from apportion.agent.joining import join
from apportion.agent.loop import Loop
from apportion.agent.machine import Places, machine
from apportion.agent.uplink import Uplink
from apportion.cli import main
from apportion.client import Client
from apportion.testing.builders import ask, device
from apportion.testing.nvml import Simulation

QUOTAS = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB")
ROUNDS_MAX = 8
GRACE = timedelta(seconds=30)

_numbers = count(1)


class FaultyNode:
    """A simulated machine, its agent in this process, and a pool that has nothing else."""

    def __init__(self, served, simulation, folder, clock, monkeypatch, *, name, **policy):
        self.served, self.simulation, self.clock, self.name = served, simulation, clock, name
        self.state, self.cdi = folder / "agent", folder / "cdi"
        environment = simulation.environment()
        for variable in ("PATH", "APPORTION_HOST_ROOT"):
            monkeypatch.setenv(variable, environment[variable])
        monkeypatch.setenv("APPORTION_URL", served.url)
        monkeypatch.setenv("APPORTION_TOKEN", served.token)
        self.client = Client(served.url, served.token)
        self.pool_id = self.client.create_pool(
            {
                "name": name,
                "agent": "apportion",
                "owner_quota": dict.fromkeys(QUOTAS, "unlimited"),
                **policy,
            }
        ).id
        self.life = ExitStack()
        self.start()

    def start(self):
        """Begin a life of the agent, which joins in its first one."""
        self.life.close()
        places = Places(state=self.state, cdi_dir=self.cdi)
        self.machine = self.life.enter_context(machine(places, self.name, None, self.clock))
        how = {"now": self.clock, "entropy": secrets.token_bytes}
        if not (self.state / "node.json").exists():
            token = self.client.create_join_token(self.pool_id, {"name": self.name}).token
            join(self.state, self.served.url, token, self.machine.observe(), **how)
        link = link_of(self.state, **how)
        self.life.callback(link.close)
        self.loop = Loop(self.state, link, Uplink(self.state, link), self.machine, self.clock)
        self.rounds()

    def reboot(self):
        self.simulation.reboot()
        self.start()

    def rounds(self):
        """Let the agent go round until it has nothing to do at once any more."""
        for _ in range(ROUNDS_MAX):
            self.clock.now += timedelta(seconds=1)
            if self.loop.round() > 1:
                return
        raise AssertionError(f"it does not settle: {self.outcomes()}")

    def pass_time(self, span):
        """Let time pass for both, as agent and server spend it."""
        end = self.clock.now + span
        while self.clock.now < end:
            self.clock.now += min(end - self.clock.now, timedelta(seconds=5))
            self.loop.round()
            self.served.tick()
        self.rounds()

    def close(self):
        self.life.close()
        self.client.close()

    # -- what happens ------------------------------------------------------------------------------

    def reserve(self, profile=None, **more):
        wanted = device("gpu") if profile is None else device("gpu.mig", profile=profile)
        self.held = self.client.create_reservation(
            ask(self.pool_id, wanted, duration="1h", **more)
        ).id
        self.rounds()

    def release(self):
        self.client.release_reservation(self.held)
        self.rounds()

    @contextmanager
    def full_disk(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)

    # -- what is seen ------------------------------------------------------------------------------

    def outcomes(self):
        """Give how far the agent says that its units are, as the server has it."""
        return self.view.outcomes

    @property
    def view(self):
        [node] = self.client.list_nodes(pool_id=self.pool_id).items
        return node

    @property
    def booking(self):
        [booking] = self.client.get_reservation(self.held).bookings
        return booking

    @property
    def allocation(self):
        return self.booking.allocation

    @property
    def gpu(self):
        """Which of the machine's GPUs the holder has one of."""
        found = self.client.list_gpus(pool_id=self.pool_id, limit=1000).items
        return next(each.index for each in found if each.id == self.booking.gpu_id)

    @property
    def start_slice(self):
        place = self.booking.atom.rpartition("@")[2]
        return int(place)

    @property
    def gi_id(self):
        return gi_of(self, self.start_slice, self.gpu)

    def instances(self):
        """Give the instances that the driver has: profile, start, UUID (None where it is half)."""
        document = self.machine.observe()
        return [
            (each["profile"], each["start"], each["uuid"])
            for gpu in document["gpus"]
            for each in gpu["mig"]["instances"]
        ]

    def handed_out(self):
        return sorted(path.suffix for path in (*self.cdi.glob("*.json"), *self.env_files()))

    def env_files(self):
        return [*(self.state / "env").glob("*.env")]

    def env(self):
        [path] = self.env_files()
        return dict(line.split("=", 1) for line in path.read_text().splitlines())

    def minors(self):
        """Give the minor numbers of the capabilities that a container gets."""
        [spec] = self.cdi.glob("*.json")
        [device] = json.loads(spec.read_text())["devices"]
        nodes = device["containerEdits"]["deviceNodes"]
        return {each["minor"] for each in nodes if "nvidia-caps" in each["path"]}

    def events(self, kind):
        """Give what was told of this node, or of who holds something of it."""
        found = self.client.list_events(type_prefix=kind, limit=1000).items
        return [each for each in found if each.data.get("pool_id") == self.pool_id]

    def said(self, capsys):
        """Give what the command line says of the node, and of whoever holds something of it."""
        capsys.readouterr()
        assert main(("node", "show", self.name, "--pool", self.pool_id)) == 0
        node = capsys.readouterr().out
        assert main(("reservation", "explain", self.held)) == 0
        return node, capsys.readouterr().out


@pytest.fixture
def faulty(served, clock, tmp_path, monkeypatch):
    """Give a function that makes a node of a kind of machine in a pool of its own."""
    with ExitStack() as stack:

        def make(kind="dgx-h100", *, policy=None):
            name = f"n{next(_numbers)}"
            simulation = stack.enter_context(driving(Simulation.create(tmp_path / name, kind)))
            node = FaultyNode(
                served,
                simulation,
                tmp_path,
                clock,
                monkeypatch,
                name=name,
                gpu_model={"dgx-h100": "H100", "a100x8": "A100"}[kind],
                sharing="mig",
                policy={"migLayout": "dynamic", **(policy or {})},
            )
            stack.callback(node.close)
            return node

        yield make
