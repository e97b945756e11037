"""Machines with simulated GPUs, for whoever tests what runs on a node."""

from contextlib import ExitStack

import pytest
from holder_world import HolderNode
from inventory_world import Agent
from nvml_world import driving

from apportion.agent.nvml import open_driver
from apportion.testing.nvml import Simulation


@pytest.fixture
def on(tmp_path):
    """Give a function that puts this process on a new machine of a kind, until the next one."""
    opened = []

    def start(kind="dgx-h100"):
        stop()
        context = driving(Simulation.create(tmp_path / kind, kind))
        opened.append(context)
        return context.__enter__()

    def stop():
        while opened:
            opened.pop().__exit__(None, None, None)

    yield start
    stop()


@pytest.fixture
def root(tmp_path):
    """Give the root of a new machine, where its kernel's files are."""
    return Simulation.create(tmp_path / "m", "a30x4").root


@pytest.fixture
def handing(on, tmp_path, monkeypatch):
    """Give a function that makes a machine of a kind whose agent hands out its devices."""

    def start(kind="dgx-h100"):
        machine = on(kind)
        monkeypatch.setenv("PATH", machine.environment()["PATH"])
        return HolderNode(machine, stack.enter_context(open_driver()), tmp_path)

    with ExitStack() as stack:
        yield start


@pytest.fixture
def agent(on, tmp_path):
    """Give a function that starts an agent on a machine of a kind."""
    running = []

    def start(kind="dgx-h100"):
        (tmp_path / "state").mkdir(exist_ok=True)
        running.append(Agent(on(kind), tmp_path / "state"))
        return running[-1]

    yield start
    for each in running:
        each.stop()
