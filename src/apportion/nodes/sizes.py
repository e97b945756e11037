"""How large pools are, and how much of that nobody hears of."""

from dataclasses import dataclass
from typing import Final

from apportion.authority.service import Caller
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How many nodes and present GPUs a pool has, and how many of the GPUs nobody hears of."""

    nodes: int = 0
    gpus: int = 0
    stale_gpus: int = 0


async def count_fleet(connection: Connection, caller: Caller) -> dict[str, FleetSize]:
    """Return the size of each of the caller's pools that has nodes, by id."""
    cursor = await connection.execute(_QUERIES["count_fleet"], {"tenant_id": caller.tenant_id})
    return {row.pop("pool_id"): FleetSize(**row) for row in await cursor.fetchall()}
