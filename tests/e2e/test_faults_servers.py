"""Server or agent die while a command runs on what it reserved, or a window ends: all goes on.

Real processes, killed (SIGKILL): the server with its database, the agent, and a command between.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from simulated_world import Server, World

pytestmark = pytest.mark.timeout(300)

UNTIL = (
    "import os, sys, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.1)\n"
    "sys.exit(7)"
)
"""A command that goes on until a file is there."""


@pytest.fixture(scope="module")
def server(open_module_path):
    server = Server(open_module_path / "server")
    yield server
    server.revive()
    server.stop()


@pytest.fixture(scope="module")
def made(server, open_module_path):
    world = World(server, open_module_path)
    yield world
    world.stop()
    world.client.close()


@pytest.fixture
def world(made):
    """Give the node with everybody alive; whoever died over a test is alive for the next."""
    if made.agent is None:
        made.start()
    made.until(made.is_ready)
    yield made
    made.revive()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


class Command:
    """`apportion run` with a command that ends, with 7, when it is told to."""

    def __init__(self, world, folder, *words):
        self.world, self.file = world, folder / "enough"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "apportion", "run", *words),
                *("--", sys.executable, "-c", UNTIL, str(self.file)),
            ],
            env={
                **clean,
                **world.node.environment(),
                "APPORTION_URL": world.server.url,
                "APPORTION_TOKEN_FILE": str(world.server.token_file),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        self.listening = threading.Thread(target=self._listen)
        self.listening.start()

    def _listen(self):
        for line in self.process.stderr:
            self.said += line

    def began(self):
        """Wait until the command runs; returns the device that it sees."""
        return self.process.stdout.readline().strip()

    def hears(self, words, seconds=120):
        deadline = time.monotonic() + seconds
        while words not in self.said:
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.05)

    def enough(self):
        self.file.touch()

    def end(self):
        code = self.process.wait(timeout=120)
        self.listening.join()
        self.process.stdout.close()
        self.process.stderr.close()
        assert "Traceback" not in self.said
        return code

    @property
    def reservation(self):
        return next(word.rstrip(":") for word in self.said.split() if word.startswith("res_"))


@pytest.fixture
def run(world, tmp_path):
    commands = []

    def start(*words):
        commands.append(Command(world, tmp_path, *words))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
            command.end()


def test_a_command_outlives_its_server_and_keeps_what_it_has(world, run):
    command = run("--mig", "1g.10gb", "--for", "30s")
    device = command.began()
    assert device.startswith("MIG-")
    kill(world.server.process)
    command.hears("it stays as it is meanwhile")
    assert [uuid for _, _, uuid in world.instances()] == [device]
    world.revive()
    command.hears("is kept until")
    command.enough()
    assert command.end() == 7
    view = world.client.get_reservation(command.reservation)
    assert (view.state in ("ending", "ended"), view.reason["code"]) == (True, "released")
    world.until(lambda: world.client.get_reservation(view.id).state == "ended")
    world.until(lambda: world.instances() == [])


def pause_until(instant):
    time.sleep(max(0.0, (instant - datetime.now(UTC)).total_seconds()))


def test_what_could_not_be_kept_longer_while_the_server_was_away_is_when_it_is_back(world, run):
    command = run("--mig", "1g.10gb", "--for", "60s")
    device = command.began()
    end = world.client.get_reservation(command.reservation).end
    kill(world.server.process)
    command.hears("it stays as it is meanwhile")
    # It asks for more when a quarter is left; nobody answers, and what was promised holds.
    pause_until(end - timedelta(seconds=13))
    assert command.process.poll() is None
    assert [uuid for _, _, uuid in world.instances()] == [device]
    assert "is kept until" not in command.said
    world.revive()
    command.hears("is kept until")
    assert datetime.now(UTC) < end
    command.enough()
    assert command.end() == 7
    told = world.client.list_events(subject=command.reservation).items
    [longer] = [each.data["end"] for each in told if each.type == "reservation.extended"]
    assert datetime.fromisoformat(longer) == end + timedelta(seconds=60)
    world.until(lambda: world.instances() == [])


def test_a_command_whose_time_is_up_while_the_server_is_away_is_ended_on_time(world, run):
    command = run("--mig", "1g.10gb", "--for", "12s")
    assert command.began().startswith("MIG-")
    end = world.client.get_reservation(command.reservation).end
    kill(world.server.process)
    command.hears("its time is up")
    assert end <= datetime.now(UTC) < end + timedelta(seconds=10)
    deadline = time.monotonic() + 60
    while world.handed_out():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    world.revive()
    assert command.end() == 128 + signal.SIGTERM
    view = world.until(
        lambda: (
            found
            if (found := world.client.get_reservation(command.reservation)).state == "ended"
            else None
        )
    )
    assert (view.reason["code"], view.end) == ("expired", end)
    world.until(lambda: world.instances() == [])


def test_what_ends_while_the_server_is_away_is_given_back_when_it_is_there_again(world, run):
    command = run("--mig", "1g.10gb", "--for", "10m")
    assert command.began().startswith("MIG-")
    kill(world.server.process)
    command.enough()
    command.hears("trying on to give")
    world.revive()
    assert command.end() == 7
    view = world.client.get_reservation(command.reservation)
    assert view.reason["code"] == "released"
    world.until(lambda: world.client.get_reservation(view.id).state == "ended")


def test_a_server_that_dies_while_it_is_waited_for_costs_nobody_their_place(world, run):
    everything = {"pool_id": world.pool_id, "duration": "1h"}
    everything["devices"] = [{"class": "gpu", "count": 8}]
    holder = world.client.create_reservation(everything)
    command = run("--mig", "1g.10gb", "--for", "10m")
    command.hears(": pending, units_booked")
    kill(world.server.process)
    command.hears("trying on")
    world.revive()
    world.ask(lambda: world.client.release_reservation(holder.id))
    assert command.began().startswith("MIG-")
    command.enough()
    assert command.end() == 7
    world.until(lambda: world.client.get_reservation(command.reservation).state == "ended")


def test_an_agent_that_is_away_is_waited_for_and_one_that_dies_ends_nothing(world, run):
    world.until(lambda: world.instances() == [])
    world.stop()
    command = run("--mig", "1g.10gb", "--for", "10m")
    command.hears("res_")
    assert (world.handed_out(), world.instances()) == ([], [])
    world.start()
    device = command.began()
    assert [uuid for _, _, uuid in world.instances()] == [device]
    world.stop()
    assert command.process.poll() is None
    world.start()
    world.until(world.is_ready)
    assert [uuid for _, _, uuid in world.instances()] == [device]
    command.enough()
    assert command.end() == 7
    world.until(lambda: world.client.get_reservation(command.reservation).state == "ended")
    assert world.handed_out() == []
    world.until(lambda: world.instances() == [])


def test_a_window_that_ends_while_the_server_is_away_ends_on_time_and_is_told_in_order(world):
    view = world.reserve("3g.40gb", duration="15s")
    world.until(lambda: world.allocation(view.id) == "ready")
    assert world.handed_out() == [".env", ".json"]
    kill(world.server.process)
    deadline = time.monotonic() + 120
    while world.handed_out():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    spool = world.node.agent_state / "spool"
    while len(waiting := sorted(spool.glob("*.json"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert world.server.process.poll() is not None
    numbers = [int(each.stem) for each in waiting]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    world.revive()
    ended = world.until(
        lambda: found if (found := world.client.get_reservation(view.id)).state == "ended" else None
    )
    world.until(lambda: not world.instances() and not [*spool.glob("*.json")])
    assert ended.reason["code"] == "expired"
    told = [each.type for each in world.client.list_events(subject=world.node.node_id).items]
    assert "node.reports_missed" not in told
    of_holder = [each.type for each in world.client.list_events(subject=view.id).items]
    assert "reservation.device_released" in of_holder
    assert "reservation.overrun" not in of_holder
    [total] = world.client.get_usage(view.start, view.end).totals
    assert Fraction(total.gpu_hours) == Fraction(3, 7) * Fraction(15, 3600)
    assert view.end - view.start == timedelta(seconds=15)
