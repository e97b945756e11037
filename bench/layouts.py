"""What a change of the layout of 10,000 GPUs costs: planned, and then asked for, all at once.

Planning reads every GPU of the pool and says when its turn comes; asking freezes them, in one
transaction. Both are also given as multiples of one bare SELECT of the same GPUs from the same
database, so that figures of different machines can be compared.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from apportion.authority.service import ROOT, Caller
from apportion.nodes.service import import_inventories
from apportion.partitions.schemas import LayoutAsk
from apportion.partitions.service import cancel_layout, plan_layout, set_layout
from apportion.pools.service import create_pool
from apportion.server.system import System, running
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

NODES: Final = 1_250
GPUS_A_NODE: Final = 8
ROUNDS: Final = 5
CALLER: Final = Caller(ROOT, "bench")
SMALL: Final = "all-1g.10gb"
LARGE: Final = "mixed:2x3g.40gb"
_IMPORTED_AT_ONCE: Final = 250

Step = Callable[[], Awaitable[object]]


def run() -> dict[str, float]:
    """Time plans, requests and the bare SELECT in turn, so that a busy machine slows all alike."""
    with tempfile.TemporaryDirectory() as state:
        return asyncio.run(_measure(Path(state)))


async def _measure(state: Path) -> dict[str, float]:
    seconds: dict[str, list[float]] = {"read": [], "plan": [], "set": []}
    async with running(state) as system:
        pool = await _fleet(system)
        change = LayoutAsk(layout=LARGE)
        steps: dict[str, Step] = {
            "read": lambda: _read(system),
            "plan": lambda: plan_layout(system.runtime, system.reservations, CALLER, pool, change),
            "set": lambda: set_layout(system.runtime, CALLER, pool, change),
        }
        for turn in range(ROUNDS + 1):
            for name, step in steps.items():
                began = time.perf_counter()
                await step()
                if turn:  # with the first the server meets its pool
                    seconds[name].append(time.perf_counter() - began)
            await cancel_layout(system.runtime, CALLER, pool)
    read = statistics.median(seconds["read"])
    figures = {"layouts.gpus": float(NODES * GPUS_A_NODE)}
    for name in ("plan", "set"):
        figures[f"layouts.{name}_seconds"] = statistics.median(seconds[name])
        figures[f"layouts.{name}_ratio_to_select"] = statistics.median(seconds[name]) / read
    return figures


async def _fleet(system: System) -> str:
    """Make a pool whose nodes are all cut alike, with one reservation that a change waits for."""
    wanted = pool_of("H100", "mig", migLayout=SMALL)
    pool = await create_pool(system.runtime, CALLER, wanted)
    nodes = [
        inventory(
            f"n{at}",
            *(gpu("H100", index, "7g.80gb@0", node=f"n{at}") for index in range(GPUS_A_NODE)),
        )
        for at in range(NODES)
    ]
    for at in range(0, NODES, _IMPORTED_AT_ONCE):
        some = nodes[at : at + _IMPORTED_AT_ONCE]
        await import_inventories(system.runtime, CALLER, pool.id, some)
    request = ask(pool.id, device("gpu.mig", profile="7g.80gb"), duration="2h")
    await system.reservations.create(CALLER, request)
    return pool.id


async def _read(system: System) -> None:
    async with system.runtime.db.connection() as connection:
        await (await connection.execute("SELECT * FROM gpus")).fetchall()
