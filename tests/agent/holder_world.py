"""An agent's unit ``devices`` on a simulated machine, and processes that hold its devices."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pynvml
from nvml_world import create, fill, instances_of, profiles_of

from apportion.agent.devices.unit import Devices
from apportion.testing.nvml import hosts

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


class HolderNode:
    """A machine and its agent, which may be started anew at any time."""

    def __init__(self, machine, driver, folder):
        self.machine, self.driver, self.folder = machine, driver, folder
        self.state, self.cdi = folder / "state", folder / "cdi"
        self.now = NOW
        self.shared: dict[str, str] = {}
        self.made: dict[str, str] = {}
        self.uuids = [driver.uuid(at) for at in range(driver.gpu_count())]
        self.rows: dict[str, dict] = {}
        self.release: dict = {"grace_seconds": 0, "reset": True}

    def unit(self, told=None):
        more = {} if told is None else {"told": told}
        return Devices(
            self.driver,
            state=self.state,
            cdi_dir=self.cdi,
            root=self.machine.root,
            shared_by=self.shared.get,
            made_for=self.made.get,
            **more,
        )

    def ask(self, name, cls="gpu", gpu=0, *, ends=HOUR, share="1", **fields):
        """Put an assignment into the spec."""
        self.rows[name] = {
            "allocation_id": name,
            "reservation_id": name.partition(".")[0],
            "gpu": self.uuids[gpu],
            "class": cls,
            "share": share,
            "begins": NOW.isoformat(),
            "ends": None if ends is None else (NOW + ends).isoformat(),
            **fields,
        }

    def ask_mig(self, name, profile, start, **fields):
        self.ask(name, "gpu.mig", share="1/7", profile=profile, start=start, **fields)

    @property
    def wanted(self):
        return {"assignments": list(self.rows.values()), "release": self.release}

    def converge(self, told=None):
        return self.unit(told).converge(self.wanted, self.now)

    def told(self):
        """Give how the report says that each allocation stands."""
        unit = self.unit()
        outcome = unit.converge(self.wanted, self.now)
        return outcome, {row["allocation_id"]: row for row in unit.facts()["allocations"]}

    def states(self):
        return {name: row["state"] for name, row in self.told()[1].items()}

    def make(self, profile, start, gpu=0):
        """Make an instance that fills its place; returns its device's UUID."""
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        [number] = [at for at, info in profiles_of(handle).items() if _name(info) == profile]
        _, device = fill(create(handle, number, start))
        return pynvml.nvmlDeviceGetUUID(device)

    def destroy(self, gpu=0):
        """Destroy all instances of a GPU."""
        for each in self.driver.instances(self.uuids[gpu]):
            for compute in each.computes:
                self.driver.destroy_compute(self.uuids[gpu], each.gi_id, compute.ci_id)
            self.driver.destroy_instance(self.uuids[gpu], each.gi_id)

    def mig(self, gpu=0):
        self.driver.set_mig_mode(self.uuids[gpu], on=True)

    def env(self, name):
        path = self.state / "env" / f"{name}.env"
        if not path.exists():
            return None
        return dict(line.split("=", 1) for line in path.read_text().splitlines())

    def spec(self, name):
        path = self.cdi / f"apportion-{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def nodes(self, name):
        [device] = self.spec(name)["devices"]
        return [
            (each["path"], each["major"], each["minor"])
            for each in device["containerEdits"]["deviceNodes"]
        ]

    @contextmanager
    def holder(self, name, code="", gpu=0, used_mib=100, **place):
        """Run a process that uses a GPU, or an instance of it, with an allocation's environment."""
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import signal, time; {code}\nprint(flush=True); time.sleep(600)",
            ],
            env={**os.environ, **(self.env(name) or {})},
            stdout=subprocess.PIPE,
        )
        try:
            process.stdout.readline()
            begun = hosts.began(process.pid)
            self.machine.hold(gpu, process.pid, begun=begun, used_bytes=used_mib << 20, **place)
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            self.machine.leave(process.pid)


def _name(info):
    name = info.name.decode() if isinstance(info.name, bytes) else info.name
    return name.removeprefix("MIG ")


def gi_of(node, start, gpu=0):
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    [found] = [gi for gi, _, at, _ in instances_of(handle) if at == start]
    return found
