"""What `apportion up --simulate` shows: nodes coming up, and how to be on one of them."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.cli.output import table
from apportion.cli.showing import next_lines

if TYPE_CHECKING:
    from apportion.simulated.nodes import Node


async def run(url: str, token_file: Path, state: Path, kinds: Sequence[str], *, once: bool) -> None:
    """Keep a node of each kind up until this is cancelled, or with ``once`` until all are."""
    from apportion.client import AsyncClient
    from apportion.simulated.fleet import simulated_fleet

    environment = {"APPORTION_URL": url, "APPORTION_TOKEN_FILE": str(token_file)}
    async with (
        AsyncClient.from_environment(environment) as client,
        simulated_fleet(client, state, token_file, kinds, _Line().show) as nodes,
    ):
        sys.stdout.write("\n".join(_report(nodes, url)) + "\n")
        sys.stdout.flush()
        if not once:
            await asyncio.Event().wait()


def _report(nodes: Sequence["Node"], url: str) -> list[str]:
    rows = [(node.name, node.node_id, str(node.log)) for node in nodes]
    first = nodes[0].folder
    return [
        "",
        table(("node", "id", "its agent says"), rows),
        "",
        f"The API answers at {url}. Ctrl-C ends the server and the agents; all is kept.",
        *next_lines(
            f". {first / 'activate'}",
            "apportion gpu list",
            "apportion run --mig 1g.10gb --for 10m -- env",
        ),
    ]


class _Line:
    """One line that rewrites itself on a terminal, and a line for each change elsewhere."""

    def __init__(self) -> None:
        self._said = ""

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
        elif text != self._said:
            sys.stderr.write(text + "\n")
        self._said = text
        sys.stderr.flush()
