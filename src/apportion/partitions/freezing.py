"""What a change of a pool's policy means for its nodes: each stays as it is cut till its turn.

Loaded with the room's service, so that no cut changes past the gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.nodes.service import Cut, cut_of, cut_text
from apportion.partitions.rows import QUERIES, desired_of, why
from apportion.pools.policy import read_stored
from apportion.pools.service import PoolChange, PoolRecord, register_follow_up
from apportion.store.connections import Connection

Row = Mapping[str, Any]


async def follow_change(
    connection: Connection, caller: Caller, change: PoolChange, now: datetime
) -> None:
    """Freeze the nodes of a pool whose cut changes; the pool is held by the caller."""
    if change.pool_id is None or change.before is None:
        return
    was, will = read_stored(change.before.policy), read_stored(change.policy)
    if cut_of(was) != cut_of(will):
        await freeze(connection, caller, change.pool_id, (cut_of(was), cut_of(will)), now)
    mode_change = will.mig_layout is not None and was.mode_change != will.mode_change
    if mode_change or was.time_slice != will.time_slice:
        await nodes.raise_specs(connection, change.pool_id)


async def freeze(
    connection: Connection,
    caller: Caller,
    pool_id: str,
    cuts: tuple[Cut, Cut],
    now: datetime,
    *,
    node: int | None = None,
) -> int:
    """Let every node that follows its pool, or one alone, become the second cut in its turn.

    The first is what a node that was never gated is cut into. What was pending and is no longer
    wanted is dropped; returns how many nodes have something pending because of it.
    """
    before, after = cuts
    await drop(connection, caller, pool_id, after or None, now, node=node)
    if not after:
        return 0
    reason = why("change_pending", f"it is to be cut into {cut_text(after)}, in its turn")
    cursor = await connection.execute(
        QUERIES["freeze"],
        {
            "pool_id": pool_id,
            "node": node,
            "before": Jsonb(before),
            "after": Jsonb(after),
            "reason": Jsonb(reason),
            "now": now,
        },
    )
    frozen = await cursor.fetchall()
    await append(
        connection, caller, now, [_event("node.mig.pending", row, row["pending"]) for row in frozen]
    )
    return len(frozen)


@dataclass(frozen=True, slots=True)
class Following:
    """A node that begins or ends to have its MIG layout from itself; its pool is held."""

    connection: Connection
    caller: Caller
    pool: PoolRecord
    node: Row
    now: datetime


async def follow_own_word(turn: Following, own: str | None) -> None:
    """Follow a node that has a layout from its own file by now, or has it no more (None).

    What it waited for to be cut into is nobody's wish any more while it has.
    """
    before = turn.node["own_layout"]
    if before is not None and own is None:
        await return_to_pool(turn, {"migLayout": before})
    elif before is None and own is not None:
        pool_id, node = turn.pool.id, turn.node["id"]
        await drop(turn.connection, turn.caller, pool_id, None, turn.now, node=node)


async def return_to_pool(turn: Following, left: Cut) -> None:
    """Let a node become what is asked for in its turn; ``left`` is what it is cut into until then.

    That is ``{}`` where it is as it is found.
    """
    pool, node, now = turn.pool, turn.node, turn.now
    if pool.sharing != "mig" or node["agent"] is None or pool.agent == "none":
        return
    reason = why(
        "own_layout_ended", "it had its MIG layout from itself, and stays so till its turn"
    )
    parameters = {"node": node["id"], "cut": Jsonb(left), "now": now, "reason": Jsonb(reason)}
    await turn.connection.execute(QUERIES["stand_as"], parameters)
    cuts = left, desired_of({**node, "own_layout": None}, cut_of(pool.policy))
    await freeze(turn.connection, turn.caller, pool.id, cuts, now, node=node["id"])


async def drop(
    connection: Connection,
    caller: Caller,
    pool_id: str,
    after: Cut | None,
    now: datetime,
    *,
    node: int | None = None,
) -> int:
    """Drop what is pending where nodes are cut as asked already, or all of it (None).

    Of all nodes that follow their pool, or of one alone.

    A change that was granted completes. Returns how many nodes had something pending.
    """
    cursor = await connection.execute(
        QUERIES["unwanted"],
        {"pool_id": pool_id, "node": node, "after": None if after is None else Jsonb(after)},
    )
    unwanted = await cursor.fetchall()
    await _release(connection, [row for row in unwanted if row["state"] == "scheduled"], now)
    reason = why("cancelled", "the change that it waited for is not wanted any more")
    cursor = await connection.execute(
        QUERIES["drop_pending"],
        {
            "ids": [row["node_id"] for row in unwanted],
            "now": now,
            "reason": Jsonb(reason),
        },
    )
    dropped = await cursor.fetchall()
    await append(
        connection,
        caller,
        now,
        [_event("node.mig.cancelled", row, row["granted"]) for row in dropped],
    )
    return len(dropped)


async def _release(connection: Connection, scheduled: Sequence[Row], now: datetime) -> None:
    for row in scheduled:
        cursor = await connection.execute(QUERIES["forget_gpus"], {"node_id": row["node_id"]})
        for gpu in await cursor.fetchall():
            await bookings.release_partition_change(connection, gpu["booking_id"], now)


def _event(kind: str, row: Row, cut: Cut) -> Event:
    facts = {"pool_id": row["pool_id"], "name": row["name"], "cut": cut}
    after = {name: row[name] for name in ("state", "granted", "pending")}
    return Event(kind, row["tenant_id"], row["uid"], facts, after=after)


# Before the nodes' own: what they derive anew is cut as it was.
register_follow_up("cuts", follow_change)
