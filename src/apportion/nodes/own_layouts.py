"""MIG layouts that nodes have from their own files, which nobody else can undo."""

from collections.abc import Mapping
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.nodes.schemas import NodeReport
from apportion.pools.policy import DYNAMIC
from apportion.pools.service import PoolRecord
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

Node = Mapping[str, Any]


def own_layout_of(pool: PoolRecord, report: NodeReport) -> str | None:
    """Return the layout that a node says to have from its own file; None where its pool says it.

    Raises InvalidInputError for one that only a pool can say.
    """
    if pool.sharing != "mig" or report.mig_layout is None:
        return None
    name = report.mig_layout.layout.lower()
    if name == DYNAMIC:
        raise InvalidInputError(
            "is the pool's: a node does not know which instances are asked for",
            field="mig_layout.layout",
            given=report.mig_layout.layout,
            allowed="a layout's name",
        )
    return name


async def note_own_layout(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    *,
    pool: PoolRecord,
    node: Node,
    report: NodeReport,
) -> None:
    """Take in where a node has its layout from by now, and ask anew of it where that changed."""
    own = own_layout_of(pool, report)
    parameters = {"id": node["id"], "layout": own}
    cursor = await connection.execute(_QUERIES["set_own_layout"], parameters)
    row = await cursor.fetchone()
    if row is None:
        return
    before = {"own_layout": node["own_layout"], "mig_layout_from": node["mig_layout_from"]}
    after = {
        "own_layout": own,
        "mig_layout_from": row["mig_layout_from"] if own is None else "node",
    }
    facts = {
        "pool_id": pool.id,
        "name": node["name"],
        "pinned_layout": node["pinned_layout"],
        "generation": row["spec_generation"],
    }
    told = Event(
        "node.updated", pool.tenant_id, node["uid"], facts | after, before=before, after=after
    )
    await append(connection, caller, runtime.now(), [told])


def check_can_follow_pool(node: Node) -> None:
    """Refuse to have a node take its pool's layout while its own file says which one it has."""
    if node["own_layout"] is not None:
        raise InvalidStateError(
            f"its own file says that it has {node['own_layout']}",
            field="mig_layout_from",
            given=node["name"],
            hint="Take migLayout out of the file that its agent reads, and restart the agent",
        )
