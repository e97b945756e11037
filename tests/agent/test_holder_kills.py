"""Killed after any step of its journal, the agent goes on, and the end is the same."""

import os
import signal
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from holder_world import HolderNode
from nvml_world import apart

from apportion.agent.devices.journal import Step
from apportion.agent.nvml import open_driver

POINTS = [
    f"{when} {step}"
    for step in [*(each.value for each in Step), "gone"]
    for when in ("before", "after")
]


@pytest.fixture
def node(on, tmp_path):
    with ExitStack() as stack:
        machine = on("dgx-h100")
        node = HolderNode(machine, stack.enter_context(open_driver()), tmp_path)
        node.mig()
        node.make("3g.40gb", 4)
        node.ask_mig("r.0", "3g.40gb", 4)
        yield node


def agent(node, point: str) -> list[str]:
    """Let the agent go round once in a process of its own, killed at a point; what it reached."""

    def go_round(say):
        def told(reached):
            say(reached)
            if reached == point:
                os.kill(os.getpid(), signal.SIGKILL)

        with open_driver() as driver:
            node.driver = driver
            node.converge(told)

    code, reached = apart(go_round)
    assert code == (-signal.SIGKILL if point in reached else 0)
    return reached


def life(node, point: str) -> list[str]:
    """Hand out, take back and forget, with one kill on the way; every point that was reached."""
    reached = agent(node, point) + agent(node, "")
    assert node.env("r.0") is not None
    assert node.spec("r.0") is not None
    assert node.states() == {"r.0": "bound"}
    node.rows.clear()
    reached += agent(node, point)
    # Whatever was killed when: the device is not anybody else's before it is released.
    held = [each.gpu for each in node.unit().holds()]
    assert (held == []) == ("after released" in reached)
    reached += agent(node, "")
    assert (node.env("r.0"), node.spec("r.0")) == (None, None)
    assert node.states() == {"r.0": "released"}
    node.now += timedelta(minutes=11)
    reached += agent(node, point) + agent(node, "")
    assert not [*Path(node.state, "devices").iterdir(), *node.cdi.iterdir()]
    return reached


def test_the_journal_s_own_list_is_what_is_killed_at(node):
    assert list(dict.fromkeys(life(node, "never"))) == POINTS


@pytest.mark.parametrize("point", POINTS)
def test_killed_there_it_goes_on(node, point):
    assert point in life(node, point)
