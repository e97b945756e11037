"""Finding pools: as their tenants see them, and as other rooms use them."""

from collections.abc import Collection, Sequence

from apportion.authority.service import Caller, hold_tenant, no_tenant
from apportion.pools.gates import enter_gates
from apportion.pools.quotas import Quota, QuotaKey, quotas_by_key
from apportion.pools.rows import (
    QUERIES,
    PoolRecord,
    hold_own,
    may,
    no_pool,
    record_of,
    select_pool,
    select_pools,
)
from apportion.pools.schemas import PoolView
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime


async def get_pool(runtime: Runtime, caller: Caller, pool_id: str) -> PoolView:
    """Return a pool that the caller owns or is offered; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return await select_pool(connection, caller, pool_id)


async def list_pools(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    name: str | None = None,
    gpu_model: str | None = None,
    sharing: str | None = None,
    cls: str | None = None,
    site_id: str | None = None,
    owned: bool | None = None,
    archived: bool = False,
) -> list[PoolView]:
    """Return pools that the caller owns or is offered by id, in one query whatever their number.

    ``archived`` ones are a list of their own, and only their owner's.
    """
    async with transaction(runtime.db) as connection:
        return await select_pools(
            connection,
            caller,
            {
                "after": after,
                "limit": limit,
                "name": name,
                "model": gpu_model,
                "sharing": sharing,
                "class": cls,
                "site_id": site_id,
                "owned": owned,
                "archived": archived,
            },
        )


async def find_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use and that take new work, by id."""
    cursor = await connection.execute(QUERIES["records"], _named(caller, pool_ids))
    return {row["id"]: record_of(row) for row in await cursor.fetchall()}


async def hold_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use, to place in them in this transaction.

    Who may use them stays as it is until the transaction ends (see `gates`).
    """
    records, _ = await hold_with_quotas(connection, caller, pool_ids)
    return records


async def hold_with_quotas(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> tuple[dict[str, PoolRecord], dict[QuotaKey, Quota]]:
    """Do as `hold_records`, and return the quotas there of the caller and of those above it too.

    What is left of them only `charge` knows in the end.
    """
    of_whom = {"tenant_ids": list(caller.lineage), "pool_ids": list(pool_ids)}
    # One trip for all three; each statement sees what those had done who were waited for.
    async with connection.pipeline():
        await enter_gates(connection, [caller.tenant_id, *pool_ids])
        records = await connection.execute(QUERIES["records"], _named(caller, pool_ids))
        quotas = await connection.execute(QUERIES["quotas"], of_whom)
    return (
        {row["id"]: record_of(row) for row in await records.fetchall()},
        quotas_by_key(await quotas.fetchall()),
    )


def _named(caller: Caller, pool_ids: Collection[str]) -> dict[str, object]:
    return {
        "tenant_id": caller.tenant_id,
        "lineage": list(caller.lineage),
        "ids": list(pool_ids),
    }


async def offered_pools(connection: Connection, caller: Caller) -> list[str]:
    """Return the pools of others that the caller may use."""
    cursor = await connection.execute(
        QUERIES["offered"], {"tenant_id": caller.tenant_id, "lineage": list(caller.lineage)}
    )
    return [row["pool_id"] for row in await cursor.fetchall()]


async def archived_pools(connection: Connection, pool_ids: Collection[str]) -> set[str]:
    """Return those of some pools that are archived."""
    cursor = await connection.execute(QUERIES["archived"], {"ids": list(pool_ids)})
    return {row["id"] for row in await cursor.fetchall()}


async def load_record(connection: Connection, caller: Caller, pool_id: str) -> PoolRecord:
    """Return one pool that the caller may use; NotFoundError for any other."""
    found = await find_records(connection, caller, [pool_id])
    if pool_id not in found:
        raise no_pool(pool_id)
    return found[pool_id]


async def hold_record(
    connection: Connection,
    caller: Caller,
    action: str,
    pool_id: str,
    *,
    members: Collection[str] = (),
    field: str = "tenant_id",
) -> PoolRecord:
    """Lock a pool of the caller's own to change what is in it, an archived one too.

    Raises NotFoundError for any other pool and for one of the tenants ``members`` that the caller
    is not above of, ForbiddenError when the caller may not do this to the pool.
    """
    await may(connection, caller, action, pool_id)
    for tenant_id in sorted(members):
        if caller.tenant_id not in await hold_tenant(connection, tenant_id, field=field):
            raise no_tenant(tenant_id, field=field)
    row = await hold_own(connection, caller, pool_id)
    return record_of({**row, "quota_tenant_id": row["tenant_id"]})


async def changed_pools(connection: Connection, since: str) -> list[str]:
    """Return the pools whose users or policy may have changed since a transaction id."""
    cursor = await connection.execute(QUERIES["changed"], {"since": since})
    return [row["id"] for row in await cursor.fetchall()]


async def gpu_models(connection: Connection, pool_ids: Sequence[str]) -> dict[str, str]:
    """Return the GPU model of some pools, archived ones too: what they were used for is billed."""
    cursor = await connection.execute(QUERIES["models"], {"ids": list(pool_ids)})
    return {row["id"]: row["gpu_model"] for row in await cursor.fetchall()}
