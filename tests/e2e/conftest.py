"""A real server in a process of its own, pools in it, and the command line in front of it."""

import io
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from guides import shell_at_server
from said import Said

from apportion.cli import main
from apportion.client import Client
from apportion.pools.schemas import PoolView
from apportion.testing.builders import gpu, inventory, pool_of

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Server:
    """A running server; its pools are made by tests, each its own."""

    url: str
    token_file: Path

    def client(self) -> Client:
        return Client(self.url, self.token_file.read_text().strip())

    def environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
        return {**clean, "APPORTION_URL": self.url, "APPORTION_TOKEN_FILE": str(self.token_file)}

    def pool(self, model: str, sharing: str, *gpus: tuple[str, ...], **policy: object) -> PoolView:
        """Make a pool with one node whose GPUs are cut into these instances."""
        name = f"p{next(_numbers)}"
        with self.client() as client:
            pool = client.create_pool(pool_of(model, sharing, name=name, **policy))
            if gpus:
                reports = [
                    gpu(model, at, *instances, node=f"{name}-n", numa_node=at % 2)
                    for at, instances in enumerate(gpus)
                ]
                client.join_node(pool.id, inventory(f"{name}-n", *reports))
        return pool


@pytest.fixture(scope="module")
def server(open_module_path):
    command = [sys.executable, "-m", "apportion", "up", "--no-demo", "--port", "0", "--state"]
    process = subprocess.Popen(
        [*command, str(open_module_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")},
    )
    try:
        for line in process.stdout:
            if found := re.search(r"answers at (http://\S+)", line):
                yield Server(found[1], open_module_path / "root.token")
                break
        else:
            pytest.fail("the server did not start")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture
def shell(open_path):
    """Give a shell at an empty server of the test's own."""
    with shell_at_server(open_path, "--no-demo") as shell:
        yield shell


@pytest.fixture
def cli(server, monkeypatch, capsys):
    """Run a command in this process against the server."""
    for name in [name for name in os.environ if name.startswith("APPORTION_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("APPORTION_URL", server.url)
    monkeypatch.setenv("APPORTION_TOKEN_FILE", str(server.token_file))

    def run(*words: str, stdin: str = "") -> Said:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main(words)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def tenant(cli):
    """Create a tenant of this test's own under root."""
    name = f"acme-{next(_numbers)}"
    assert cli("tenant", "create", name).code == 0
    return name


@pytest.fixture
def token(cli, tenant, tmp_path):
    """Give the file with an owner's token of the tenant."""
    path = tmp_path / "acme.token"
    made = cli(
        "token", "create", "admin", "--role", "owner", "--tenant", tenant, "--out", str(path)
    )
    assert made.code == 0, made.err
    return str(path)


@pytest.fixture
def pool(cli, server):
    """Make a pool of one T4 with its owner root."""
    made = server.pool("T4", "exclusive")
    with server.client() as client:
        node = f"{made.name}-n"
        client.join_node(made.id, inventory(node, gpu("T4", 0, node=node)))
    return made
