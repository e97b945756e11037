"""A pool of simulated nodes, brought up through the API as any other."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from apportion.client import AsyncClient
from apportion.errors import InvalidInputError, UnavailableError
from apportion.geometry import board_by_key
from apportion.simulated.nodes import Node
from apportion.testing.nvml import MACHINES, MachineKind

MIXED: Final = "mixed"
"""One node of each kind after the other, each in the pool of its kind."""

_KINDS: Final = tuple(kind for kind in MACHINES if kind != MIXED)
_REPORT_INTERVAL: Final = "2s"  # somebody sits before them
_LONGEST_SECONDS: Final = 120
_AGAIN_SECONDS: Final = 0.5
_QUOTAS: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB")

Tell = Callable[[str], None]


def kinds_of(kind: str, count: int) -> Sequence[str]:
    """Return the kind of each of so many nodes; InvalidInputError for one that is not known."""
    if kind == MIXED:
        return [_KINDS[number % len(_KINDS)] for number in range(count)]
    if kind not in MACHINES:
        raise InvalidInputError(
            "no such machine", field="--simulate", given=kind, allowed=", ".join(MACHINES)
        )
    return [kind] * count


@asynccontextmanager
async def simulated_fleet(
    client: AsyncClient, state: Path, token_file: Path, kinds: Sequence[str], tell: Tell
) -> AsyncGenerator[Sequence[Node]]:
    """Give a node of each kind, with its agent, in the pool of its kind.

    Machines, keys and pools that are there from before are taken again. Raises UnavailableError
    where a node cannot join, or takes no work after two minutes.
    """
    pools = {kind: await pool_of(client, kind) for kind in dict.fromkeys(kinds)}
    nodes: list[Node] = []
    for number, kind in enumerate(kinds, 1):
        tell(f"starting node {number} of {len(kinds)}")
        node = Node.create(state / "nodes" / f"{kind}-{number}", MACHINES[kind])
        node.write_activation(client.url, token_file)
        if not node.knows(client.url):
            issued = await client.create_join_token(pools[kind], {"name": node.name})
            await node.join(client.url, issued.token)
        nodes.append(node)
    agents = [asyncio.create_task(node.run_agent()) for node in nodes]
    try:
        await _take_work(client, nodes, tell)
        yield nodes
    finally:
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


async def pool_of(client: AsyncClient, kind: str) -> str:
    name = f"simulated-{kind}"
    found = await client.list_pools(name=name, owned=True, archived=False)
    for pool in found.items:
        return pool.id
    created = await client.create_pool(
        {
            "name": name,
            "agent": "apportion",
            "owner_quota": dict.fromkeys(_QUOTAS, "unlimited"),
            **_split_of(MACHINES[kind]),
        }
    )
    return created.id


def _split_of(kind: MachineKind) -> dict[str, Any]:
    """Return what the pool of a kind of machine is cut into: instances made on demand, if any."""
    model = kind.models[0]
    policy = {"reportInterval": _REPORT_INTERVAL, "acceptance": [{"kind": "diag.nvml"}]}
    if model.board is None:
        return {"gpu_model": "L4", "sharing": "exclusive", "policy": policy}
    board = board_by_key(model.board)
    mode_change = "reset" if board.mode_change_needs_reset else "idle"
    policy |= {"migLayout": "dynamic", "modeChange": mode_change}
    return {"gpu_model": board.family, "sharing": "mig", "policy": policy}


async def _take_work(client: AsyncClient, nodes: Sequence[Node], tell: Tell) -> None:
    """Wait until all nodes take work."""
    waiting = {node.node_id: node for node in nodes}
    for _ in range(int(_LONGEST_SECONDS / _AGAIN_SECONDS)):
        for node_id in list(waiting):
            view = await client.get_node(node_id)
            if view.observed_generation is not None and view.reason is None:
                del waiting[node_id]
        if not waiting:
            return
        tell(f"waiting for {len(waiting)} of {len(nodes)} nodes to say that they are ready")
        await asyncio.sleep(_AGAIN_SECONDS)
    late = next(iter(waiting.values()))
    raise UnavailableError(f"{late.name} takes no work yet", hint=f"It has said: {late.log}")
