"""Nodes that nobody hears of any more: nothing new is booked on them, and what is booked stays.

Level-triggered, like all that the clock does. A node that joined by itself, or whose agent has
reported, is stale after three reports that did not come; the next one that comes ends it. Where
this server or its database was away, nodes had nobody to tell, so their silence counts from when it
is back. A node whose inventory is imported is as its last document says, however old that is.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from apportion.authority.service import SYSTEM, Caller
from apportion.events.service import Event, append
from apportion.pools.policy import read_stored
from apportion.pools.schemas import StaleNodes
from apportion.pools.service import hold_record, register_stale_nodes
from apportion.quantities.windows import format_instant
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

MISSED_MAX: Final = 3
"""How many reports may fail to come before a node is stale."""
LOOK_EVERY: Final = timedelta(seconds=2)
_GAP: Final = timedelta(seconds=10)
"""How long without a look is an absence of ours."""


class Watch:
    """Marks nodes that are not heard of; one a server."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._looked = self._listening = runtime.now()

    async def advance(self) -> int:
        """Mark what is due; returns how many nodes that were."""
        now = self._runtime.now()
        if now - self._looked > _GAP:
            self._listening = now
        elif timedelta(0) < now - self._looked < LOOK_EVERY:
            return 0
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(_QUERIES["heard_of"])
            pools = await cursor.fetchall()
        self._looked = now
        return sum([await self._mark(pool, now) for pool in pools])

    async def _mark(self, pool: Mapping[str, Any], now: datetime) -> int:
        deadline = now - MISSED_MAX * read_stored(pool["policy"]).report_interval
        if pool["oldest"] > deadline or self._listening > deadline:
            return 0
        owner = Caller(pool["tenant_id"], SYSTEM.actor)

        async def work(connection: Connection) -> int:
            await hold_record(connection, owner, "compute:pools:manage", pool["pool_id"])
            parameters = {"pool_id": pool["pool_id"], "deadline": deadline, "now": now}
            cursor = await connection.execute(_QUERIES["mark_stale"], parameters)
            stale = await cursor.fetchall()
            if stale:
                await connection.execute(
                    _QUERIES["touch_pool"],
                    {"pool_id": pool["pool_id"], "holds_tenant_nodes": False},
                )
            await append(connection, SYSTEM, now, [_told(pool, each, now) for each in stale])
            return len(stale)

        return await retrying(self._runtime.db, work)


def _told(pool: Mapping[str, Any], node: Mapping[str, Any], now: datetime) -> Event:
    heard = format_instant(node["heard_at"])
    return Event(
        "node.stale",
        pool["tenant_id"],
        node["uid"],
        {
            "pool_id": pool["pool_id"],
            "name": node["name"],
            "heard_at": heard,
            "gpus": node["gpus"],
        },
        before={"stale_since": None},
        after={"stale_since": format_instant(now)},
    )


async def stale_nodes(connection: Connection, pool_ids: Sequence[str]) -> dict[str, StaleNodes]:
    """Return what is stale in each of some pools, by id."""
    cursor = await connection.execute(_QUERIES["stale_nodes"], {"pool_ids": list(pool_ids)})
    return {row.pop("pool_id"): StaleNodes(**row) for row in await cursor.fetchall()}


register_stale_nodes("nodes", stale_nodes)
