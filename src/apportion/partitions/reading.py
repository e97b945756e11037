"""Where the nodes of a pool stand, as it is shown."""

from apportion.authority.service import Caller
from apportion.nodes.service import cut_of
from apportion.partitions.rows import QUERIES, desired_of, why
from apportion.partitions.schemas import NodeLayoutView
from apportion.pools.service import own_record
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime


async def list_layouts(
    runtime: Runtime,
    caller: Caller,
    pool_id: str,
    *,
    after: str = "",
    limit: int = 100,
    state: str | None = None,
) -> list[NodeLayoutView]:
    """Return where the nodes of a pool stand, by id; NotFoundError for a pool of somebody else."""
    async with transaction(runtime.db) as connection:
        pool = await own_record(connection, caller, pool_id)
        desired = dict(cut_of(pool.policy))
        cursor = await connection.execute(
            QUERIES["list"], {"pool_id": pool_id, "after": after, "limit": limit, "state": state}
        )
        rows = await cursor.fetchall()
    never = why("never_changed", "it is cut as its pool says, and was never asked otherwise")
    return [
        NodeLayoutView.model_validate(
            {
                **row,
                "desired": wanted,
                "granted": wanted if row["granted"] is None else row["granted"],
                "reason": row["reason"] or never,
            }
        )
        for row in rows
        for wanted in (desired_of(row, desired),)
    ]
