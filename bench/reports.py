"""What the signed reports of a thousand nodes cost one server and its database.

Each node has joined with a key of its own and keeps one connection; it reports every ten seconds,
the fleet spread evenly over them, and one report in a hundred has a changed inventory. Server and
PostgreSQL are processes of their own, whose processor time the kernel counts; the nodes' side is
made beforehand as far as it can be and does not count. At the end every node's last report has to
be there, and no gap before it.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from apportion.client import Client
from apportion.nodes.schemas import NodeReport
from apportion.signatures import PrivateKey, private_key, public_text, sign_request
from apportion.testing.builders import gpu, inventory, pool_of
from bench.replay.report import QUICK, show

NODES: Final = 100 if QUICK else 1000
GPUS_A_NODE: Final = 8
EVERY_SECONDS: Final = 10
ROUNDS: Final = 3 if QUICK else 7
"""The first of them is not counted: what is warm from then on was cold before."""
CHANGED: Final = 100
"""One report in so many has a changed inventory."""
JOINING_AT_ONCE: Final = 16
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ANSWERS_AT: Final = re.compile(r"answers at http://127\.0\.0\.1:(\d+)")


@dataclass(slots=True)
class Node:
    """A node's side of the wire."""

    name: str
    key: PrivateKey
    id: str
    generation: int = 1
    sequence: int = 0
    taken: int = 0
    numa: int = 0

    def request(self, method: str, path: str, document: Mapping[str, Any] | None) -> bytes:
        """Return a signed request as it goes over the wire."""
        body = None if document is None else json.dumps(document).encode()
        headers = sign_request(
            self.key,
            self.id or public_text(self.key.public_key()),
            method,
            path,
            body,
            created=datetime.now(UTC),
            nonce=os.urandom(12).hex(),
        )
        headers |= {"Host": "bench", "Content-Length": str(len(body or b""))}
        if body is not None:
            headers["Content-Type"] = "application/json"
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + (body or b"")

    def inventory(self) -> dict[str, Any]:
        """Say what there is: a machine as DGX boards make it."""
        gpus = [
            gpu("H100", at, node=self.name, numa_node=(at + self.numa) % 2, pcie_root=f"pci{at}")
            for at in range(GPUS_A_NODE)
        ]
        document = inventory(self.name, *gpus, agent="apportion")
        return document.model_dump(mode="json", by_alias=True)

    def report(self) -> bytes:
        """Return the node's next report."""
        self.sequence += 1
        report = NodeReport.model_validate(
            {
                "sequence": self.sequence,
                "observed_generation": self.generation,
                "converged": {"devices": self.generation},
                "inventory": self.inventory(),
            }
        )
        document = report.model_dump(mode="json", by_alias=True)
        return self.request("POST", f"/v1/nodes/{self.id}/report", document)


def run() -> dict[str, float]:
    """Measure one fleet and print what it costs."""
    with tempfile.TemporaryDirectory() as directory, _server(Path(directory)) as (pid, port):
        token = (Path(directory) / "root.token").read_text("utf-8").strip()
        figures = asyncio.run(_fleet(pid, port, token))
    show(
        f"{NODES} nodes that report every {EVERY_SECONDS} s, 1 % changed",
        ("figure", "value"),
        [(key.removeprefix("reports."), f"{value:.3f}") for key, value in figures.items()],
    )
    return figures


async def _fleet(pid: int, port: int, token: str) -> dict[str, float]:
    nodes = await _joined(port, token)
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in nodes]
    latencies: list[float] = []
    began, used = 0.0, {}
    for turn in range(ROUNDS):
        if turn == 1:
            latencies.clear()
            began, used = time.monotonic(), _processor_seconds(pid)
        await _round(nodes, lines, turn, latencies)
    seconds = time.monotonic() - began
    spent = {name: each - used.get(name, 0) for name, each in _processor_seconds(pid).items()}
    lost = sum(node.sequence - node.taken for node in nodes)
    with Client(f"http://127.0.0.1:{port}", token) as client:
        missed = len(list(client.list_events(type_prefix="node.reports_missed", limit=10).items))
    if lost or missed:
        raise RuntimeError(f"{lost} reports were lost, and {missed} gaps told")
    latencies.sort()
    return {
        "reports.cores": sum(spent.values()) / seconds,
        "reports.server_cores": spent["server"] / seconds,
        "reports.postgres_cores": spent["postgres"] / seconds,
        "reports.per_second": len(latencies) / seconds,
        "reports.taken_in": float(sum(node.taken for node in nodes)),
        "reports.lost": float(lost),
        "reports.p50_ms": 1000 * latencies[len(latencies) // 2],
        "reports.p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
    }


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _round(nodes: list[Node], lines: list[Line], turn: int, latencies: list[float]) -> None:
    """Let every node report once within the interval, each at its own moment."""
    due = time.monotonic()

    async def report(at: int, node: Node) -> None:
        if at % CHANGED == turn % CHANGED:
            node.numa += 1
        request = node.report()
        await asyncio.sleep(max(0, due + at * EVERY_SECONDS / NODES - time.monotonic()))
        sent = time.monotonic()
        answer = await _ask(lines[at], request)
        latencies.append(time.monotonic() - sent)
        if not answer["accepted"]:
            raise RuntimeError(f"{node.name}: {answer}")
        node.taken, node.generation = answer["sequence"], answer["generation"]

    # Made in small groups, so that the signing of one does not delay the sending of another.
    async with asyncio.TaskGroup() as tasks:
        for at, node in enumerate(nodes):
            tasks.create_task(report(at, node))
            if at % 10 == 0:
                ahead = due + (at - 50) * EVERY_SECONDS / NODES - time.monotonic()
                await asyncio.sleep(max(0, ahead))
    await asyncio.sleep(max(0, due + EVERY_SECONDS - time.monotonic()))


async def _ask(line: Line, request: bytes) -> dict[str, Any]:
    reader, writer = line
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    [length] = re.findall(r"(?im)^content-length: (\d+)", head)
    body = await reader.readexactly(int(length))
    if not re.match(r"HTTP/1\.1 20[01]", head):
        raise RuntimeError(body.decode())
    return json.loads(body)


async def _joined(port: int, token: str) -> list[Node]:
    """Let all nodes join with a token each, read their spec, and take work."""
    nodes = [Node(f"n{at}", private_key(os.urandom(32)), "") for at in range(NODES)]
    with Client(f"http://127.0.0.1:{port}", token) as client:
        pool = client.create_pool(pool_of("H100", name="fleet"))
        tokens = [client.create_join_token(pool.id, {"name": "m"}).token for _ in nodes]
    room = asyncio.Semaphore(JOINING_AT_ONCE)

    async def join(node: Node, secret: str) -> None:
        document = {
            "evidence": {"token": secret},
            "public_key": public_text(node.key.public_key()),
            "inventory": node.inventory(),
        }
        async with room:
            line = await asyncio.open_connection("127.0.0.1", port)
            told = await _ask(line, node.request("POST", "/v1/join", document))
            node.id = told["node_id"]
            spec = await _ask(line, node.request("GET", f"/v1/nodes/{node.id}/spec", None))
            node.generation = spec["generation"]
            line[1].close()

    async with asyncio.TaskGroup() as tasks:
        for node, secret in zip(nodes, tokens, strict=True):
            tasks.create_task(join(node, secret))
    return nodes


@contextmanager
def _server(state: Path) -> Generator[tuple[int, int]]:
    command = [sys.executable, "-m", "apportion", "up", "--no-demo", "--port", "0"]
    with subprocess.Popen(
        [*command, "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**_plain_environment(), "APPORTION_LOG_LEVEL": "warning"},
    ) as server:
        try:
            for told in server.stdout or ():
                if found := _ANSWERS_AT.search(told):
                    yield server.pid, int(found[1])
                    break
        finally:
            server.terminate()
            server.wait()


def _plain_environment() -> dict[str, str]:
    return {name: each for name, each in os.environ.items() if not name.startswith("APPORTION_")}


def _processor_seconds(pid: int) -> dict[str, float]:
    """Return what a server and all processes below it, its database, have used so far."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8").rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        # With what its children used that have ended: backends come and go.
        own, gone = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        used[number] = (own + (0 if number == pid else gone)) / _TICKS
    below = {each for each in parents if pid in _above(each, parents)}
    return {"server": used[pid], "postgres": sum(used[each] for each in below)}


def _above(number: int, parents: Mapping[int, int]) -> Generator[int]:
    while number in parents:
        number = parents[number]
        yield number
