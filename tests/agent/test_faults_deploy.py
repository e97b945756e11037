"""What is deployed fits the command line, and is run as it will be."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api_server import served as serve
from apportion.agent.identity import FILE
from apportion.cli import agent_daemon, main
from apportion.client import Client
from apportion.testing.builders import pool_of
from apportion.testing.nvml import Simulation

ROOT = Path(__file__).parents[2]
DEPLOYED = ROOT / "deploy"
UNIT, ENTRY = DEPLOYED / "apportion-agent.service", DEPLOYED / "agent-entrypoint.sh"
OF_THE_ENTRY_POINT = {"APPORTION_SERVER", "APPORTION_JOIN_TOKEN_FILE"}


def commands():
    """Give the calls of the command line that stand in what is deployed: verb and flags."""
    text = "\n".join(path.read_text() for path in (UNIT, ENTRY)).replace("\\\n", " ")
    found = re.findall(r"apportion agent (\w+)([^\n]*)", text)
    return [(verb, re.findall(r"--[a-z-]+", rest)) for verb, rest in found]


def test_every_verb_and_flag_that_is_deployed_exists(capsys):
    assert {verb for verb, _ in commands()} == {"join", "run"}
    for verb, flags in commands():
        assert main(("agent", verb, "--help")) == 0
        known = capsys.readouterr().out
        assert [flag for flag in flags if flag not in known] == []


def test_every_variable_and_path_that_is_deployed_is_the_agent_s():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for path in (UNIT, ENTRY):
        text = path.read_text()
        named = set(re.findall(r"APPORTION_\w+", text)) - OF_THE_ENTRY_POINT
        assert {name for name in named if f'"{name}"' not in source} == set()
        assert set(re.findall(r"/var/lib/[\w-]+", text)) == {agent_daemon.STATE}
        assert FILE in text
    unit = UNIT.read_text()
    assert f"StateDirectory={Path(agent_daemon.STATE).name}\n" in unit
    # The daemon that shares a GPU, and who holds one, outlive the agent.
    assert "KillMode=process\n" in unit


def test_systemd_finds_nothing_wrong_with_the_unit():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of Debian's package systemd")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


class Container:
    """A machine on which the entry point is the first process."""

    def __init__(self, served, folder):
        self.folder = folder
        machine = Simulation.create(folder / "machine", "dgx-h100", name="c1")
        programs = folder / "bin"
        programs.mkdir()
        apportion = programs / "apportion"
        apportion.write_text(f'#!/bin/sh\nexec {sys.executable} -m apportion "$@"\n')
        apportion.chmod(0o755)
        own = machine.environment()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
        self.environment = {
            **clean,
            **own,
            "PATH": f"{programs}:{own['PATH']}",
            "APPORTION_NODE": "c1",
            "APPORTION_AGENT_STATE": str(folder / "state"),
            "APPORTION_CDI_DIR": str(folder / "cdi"),
        }
        self.client = Client(served.url, served.token)
        self.pool_id = self.client.create_pool(pool_of("H100", "mig", name="p")).id
        self.token = folder / "token"
        self.token.write_text(self.client.create_join_token(self.pool_id, {"name": "c1"}).token)
        self.joining = {
            "APPORTION_SERVER": served.url,
            "APPORTION_JOIN_TOKEN_FILE": str(self.token),
        }

    def start(self, *words, **more):
        return subprocess.Popen(
            [str(ENTRY), *words],
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words, **more):
        process = self.start(*words, **more)
        said, _ = process.communicate(timeout=100)
        return process.returncode, said

    def node(self):
        [node] = self.client.list_nodes(pool_id=self.pool_id).items
        return node


@pytest.fixture
def container(dsn, tmp_path):
    with serve(dsn) as served:
        container = Container(served, tmp_path)
        yield container
        container.client.close()


def test_a_container_joins_once_and_is_the_agent_from_then_on(container):
    code, said = container.run("--once")
    assert (code != 0, "APPORTION_SERVER: needed to join" in said) == (True, True)
    code, said = container.run("--once", APPORTION_SERVER=container.joining["APPORTION_SERVER"])
    assert (code != 0, "APPORTION_JOIN_TOKEN_FILE: needed to join" in said) == (True, True)
    code, said = container.run("--once", **container.joining)
    assert (code, "this machine is node_" in said, "0 reports wait" in said) == (0, True, True)
    assert (container.node().gpus, container.node().health) == (8, "healthy")
    container.token.unlink()
    before = container.node().observed_at
    process = container.start()  # anew, with the volume and without what it joined with
    deadline = time.monotonic() + 100
    while container.node().observed_at == before:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
