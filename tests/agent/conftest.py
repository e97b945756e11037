"""Machines with simulated GPUs, for whoever tests what runs on a node."""

import pytest
from nvml_world import driving

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
