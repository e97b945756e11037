"""An agent that is killed on its report's way: none is lost, none counts twice, order is kept."""

import json
import os
import signal
import subprocess
import sys

import pytest

from api_server import served as serve
from apportion.agent.uplink import Way
from apportion.client import Client
from apportion.testing.builders import gpu, inventory, pool_of

POINTS = [f"{when} {way}" for way in Way for when in ("before", "after")]

AGENT = """
import os, signal, sys
from apportion.agent.uplink import Uplink

log, name, deadly = sys.argv[1:4]

def told(point):
    with open(log, "a") as file:
        file.write(f"{name} {point}{chr(10)}")
    if point == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

def begun(self, *arguments, made=Uplink.__init__, **named):
    made(self, *arguments, told=told, **named)

Uplink.__init__ = begun
from apportion.cli import main
raise SystemExit(main(sys.argv[4:]))
"""
"""An agent that writes down how far a report has come, and dies at one point of its way."""


class Reporter:
    """A node of which somebody else says what there is, and lives of its agent, a round each."""

    def __init__(self, served, folder):
        self.state, self.document = folder / "agent", folder / "node.json"
        self.log = folder / "log"
        self.log.touch()
        self.client = Client(served.url, served.token)
        pool = self.client.create_pool(pool_of("H100", name="p"))
        token = self.client.create_join_token(pool.id, {"name": "m"}).token
        self.say("joined")
        words = ("join", "--server", served.url, "--token", token)
        assert self.agent("joined", "never", *words).returncode == 0
        [node] = self.client.list_nodes(pool_id=pool.id).items
        self.node_id = node.id

    def say(self, name):
        """Let the document be another one, which what is told of it shows."""
        document = inventory("m1", gpu("H100", 0, node="m1"), agent="test")
        data = document.model_dump(mode="json", by_alias=True)
        self.document.write_text(json.dumps({**data, "problems": [name]}))

    def agent(self, name, deadly, *words):
        return subprocess.run(
            [
                *(sys.executable, "-c", AGENT, str(self.log), name, deadly, "agent", *words),
                *("--state", str(self.state), "--inventory", str(self.document), "--node", "m1"),
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")},
            capture_output=True,
            check=False,
        )

    def round(self, name, deadly):
        """Let an agent make one report, and die at that point of its way, or of an older one's."""
        self.say(name)
        return self.agent(name, deadly, "run", "--once").returncode

    def made(self):
        """Give the reports that were ever on disk, in their order."""
        lines = [line.split(" ", 1) for line in self.log.read_text().splitlines()]
        return [name for name, point in lines if point == f"after {Way.SPOOLED}"]

    def taken_in(self):
        told = self.client.list_events(type_prefix="node.reported", limit=1000).items
        return [each.data["health_reason"] for each in told]


@pytest.fixture
def reporter(dsn, tmp_path):
    with serve(dsn) as served:
        reporter = Reporter(served, tmp_path)
        yield reporter
        reporter.client.close()


@pytest.mark.timeout(300)
def test_killed_at_any_point_of_its_way_a_report_gets_there_once_and_in_its_order(reporter):
    assert reporter.round("first", "never") == 0
    for number, point in enumerate(POINTS):
        assert reporter.round(f"r{number}", point) == -signal.SIGKILL
    assert reporter.round("last", "never") == 0
    assert {line.split(" ", 1)[1] for line in reporter.log.read_text().splitlines()} == {*POINTS}
    made = reporter.made()
    assert len(made) > len(POINTS) - 2
    assert reporter.taken_in() == made
    assert reporter.client.list_events(type_prefix="node.reports_missed").items == []
    assert list((reporter.state / "spool").glob("*.json")) == []
    assert int((reporter.state / "sequence").read_text()) == len(made)
