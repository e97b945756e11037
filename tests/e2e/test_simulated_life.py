"""From asking to the bill on a simulated node, and the same whoever is killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from datetime import timedelta
from fractions import Fraction

import pytest
from simulated_world import Server, World

from apportion.agent.devices.journal import Step
from apportion.agent.mig.journal import Stage

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def server(open_module_path):
    server = Server(open_module_path / "server")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def world(server, open_module_path):
    world = World(server, open_module_path)
    world.start()
    world.until(world.is_ready)
    yield world
    world.stop()
    world.client.close()


def live(world):
    """Reserve, hold, extend, release; returns what is to be the same whoever dies meanwhile."""
    view = world.reserve(idempotency_key=str(uuid.uuid4()))
    world.until(lambda: world.allocation(view.id) == "ready")
    before = world.instances()
    [(profile, _, device)] = before
    [env] = (world.node.agent_state / "env").glob("*.env")
    assert f"CUDA_VISIBLE_DEVICES={device}\n" in env.read_text()
    [spec] = world.node.cdi_dir.glob("*.json")
    [edits] = json.loads(spec.read_text())["devices"]
    handed_out = world.handed_out()
    longer = world.ask(lambda: world.client.update_reservation(view.id, {"duration": "2h"}))
    generation = world.ask(lambda: world.client.get_spec(world.node.node_id)).generation
    world.until(lambda: world.client.get_node(world.node.node_id).observed_generation >= generation)
    assert world.instances() == before
    nodes = len(edits["containerEdits"]["deviceNodes"])
    world.ask(lambda: world.client.release_reservation(view.id))
    world.until(lambda: not world.instances() and not world.handed_out())
    world.until(lambda: world.client.get_reservation(view.id).state == "ended")
    ended = world.ask(lambda: world.client.get_reservation(view.id))
    usage = world.ask(lambda: world.client.get_usage(view.start, None))
    [total] = usage.totals
    hours = Fraction((ended.end - ended.start) // timedelta(microseconds=1), 3_600_000_000)
    return (
        profile,
        handed_out,
        nodes,
        longer.end - longer.start == 2 * (view.end - view.start),
        ended.state,
        Fraction(total.gpu_hours) / hours,
    )


def test_from_asking_to_the_bill(world):
    assert live(world) == ("3g.40gb", [".env", ".json"], 3, True, "ended", Fraction(3, 7))


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the agent", "the server"])
def test_killed_at_any_point_of_the_agents_journals_it_all_comes_out_the_same(world, whom):
    expected = live(world)
    seen = []
    for deadly in range(1, 60):
        world.stop()
        world.passed.unlink(missing_ok=True)
        victim = world.server.process.pid if whom == "the server" else 0
        world.start(deadly=deadly, victim=victim)
        assert live(world) == expected
        seen += world.points()[deadly - 1 : deadly]
        if len(world.points()) < deadly:
            break
    stages = {str(each) for each in (*Step, *Stage)} | {"gone"}
    assert {point.split()[1] for point in seen} == stages
    assert {point.split()[0] for point in seen} == {"before", "after"}


def test_one_command_runs_a_program_on_what_it_reserves(open_module_path):
    state = open_module_path / "simulated"
    command = [sys.executable, "-m", "apportion", "up", "--simulate", "dgx-h100", "--port", "0"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
    up = subprocess.Popen(
        [*command, "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean,
    )
    try:
        assert any("API answers" in line for line in up.stdout)
        [activate] = state.glob("nodes/*/activate")
        exports = dict(re.findall(r"export (\w+)=(.*)", activate.read_text()))
        program = [sys.executable, "-m", "apportion.testing.nvml.program", "--mib", "1000"]
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "apportion", "run", "--mig", "1g.10gb", "--for", "10m"),
                *("--", *program),
            ],
            env={**clean, **exports},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        device = run.stdout.readline().strip()
        assert device.startswith("MIG-")
        seen = subprocess.run(
            [sys.executable, "-m", "apportion", "agent", "inventory", "-o", "json"],
            env={**clean, **exports},
            capture_output=True,
            text=True,
            check=True,
        )
        gpus = json.loads(seen.stdout)["gpus"]
        assert [each["uuid"] for gpu in gpus for each in gpu["mig"]["instances"]] == [device]
        assert sum(len(gpu["processes"]) for gpu in gpus) == 1
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
        assert "released" in said
        assert run.returncode in {0, 128 + signal.SIGTERM}
    finally:
        up.terminate()
        up.communicate(timeout=60)
