"""Finding pools: as their tenants see them, and as other rooms use them."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from apportion.authority.service import Caller, hold_tenant, no_tenant
from apportion.pools.gates import Turn, enter_gates, take_turn
from apportion.pools.quotas import Quota, QuotaKey, quotas_by_key
from apportion.pools.rows import (
    QUERIES,
    PoolRecord,
    Row,
    find_own,
    hold_own,
    may,
    no_pool,
    record_of,
    select_pool,
    select_pools,
)
from apportion.pools.schemas import PoolView
from apportion.pools.unheard import with_stale
from apportion.store.batches import as_rows
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

PoolUse = tuple[str, str]
"""(tenant that uses it, pool): whose quota it is charged to may differ from tenant to tenant."""


async def get_pool(runtime: Runtime, caller: Caller, pool_id: str) -> PoolView:
    """Return a pool that the caller owns or is offered; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        [view] = await with_stale(connection, [await select_pool(connection, caller, pool_id)])
        return view


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
        found = await select_pools(
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
        return await with_stale(connection, found)


async def find_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use and that take new work, by id."""
    return _of(caller, await find_all_records(connection, [(caller, pool_ids)]))


async def find_all_records(
    connection: Connection, asking: Iterable[tuple[Caller, Collection[str]]]
) -> dict[PoolUse, PoolRecord]:
    """Do as `find_records` for several callers, each with the pools that it asks for."""
    cursor = await connection.execute(QUERIES["records"], {"asking": _asking(asking)})
    return _by_use(await cursor.fetchall())


async def hold_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use, to place in them in this transaction.

    Who may use them stays as it is until the transaction ends (see `gates`).
    """
    records, _ = await hold_with_quotas(connection, [caller], pool_ids)
    return _of(caller, records)


async def hold_with_quotas(
    connection: Connection,
    callers: Iterable[Caller],
    pool_ids: Collection[str],
    turn: Turn | None = None,
) -> tuple[dict[PoolUse, PoolRecord], dict[QuotaKey, Quota]]:
    """Do as `hold_records` for several callers, and return their quotas there too.

    Whoever is to place takes a ``turn`` first.

    Those of the tenants above them are among them. What is left of a quota only `charge` knows in
    the end.
    """
    tenants = {caller.tenant_id: caller for caller in callers}
    lineages = {each for caller in tenants.values() for each in caller.lineage}
    asking = _asking((caller, pool_ids) for caller in tenants.values())
    of_whom = {"tenant_ids": sorted(lineages), "pool_ids": list(pool_ids)}
    # One trip for all; each statement sees what those had done who were waited for.
    async with connection.pipeline():
        await enter_gates(connection, [*tenants, *pool_ids])
        if turn is not None:
            await take_turn(connection, pool_ids, turn)
        records = await connection.execute(QUERIES["records"], {"asking": asking})
        quotas = await connection.execute(QUERIES["quotas"], of_whom)
    return _by_use(await records.fetchall()), quotas_by_key(await quotas.fetchall())


def _asking(asking: Iterable[tuple[Caller, Collection[str]]]) -> str:
    return as_rows(
        [
            {"tenant_id": caller.tenant_id, "lineage": caller.lineage, "ids": list(pool_ids)}
            for caller, pool_ids in asking
        ]
    )


def _by_use(rows: Iterable[Row]) -> dict[PoolUse, PoolRecord]:
    return {(row["user_tenant_id"], row["id"]): record_of(row) for row in rows}


def _of(caller: Caller, records: Mapping[PoolUse, PoolRecord]) -> dict[str, PoolRecord]:
    return {
        pool_id: record
        for (tenant_id, pool_id), record in records.items()
        if tenant_id == caller.tenant_id
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
    return _own_record(row)


async def own_record(connection: Connection, caller: Caller, pool_id: str) -> PoolRecord:
    """Return a pool of the caller's own, an archived one too; NotFoundError for any other."""
    return _own_record(await find_own(connection, caller, pool_id))


def _own_record(row: Row) -> PoolRecord:
    return record_of({**row, "quota_tenant_id": row["tenant_id"], "priority": 0})


async def changed_pools(connection: Connection, since: str) -> list[str]:
    """Return the pools whose users or policy may have changed since a transaction id."""
    cursor = await connection.execute(QUERIES["changed"], {"since": since})
    return [row["id"] for row in await cursor.fetchall()]


async def changed_quotas(connection: Connection, since: str) -> list[QuotaKey]:
    """Return the quotas that may have come to cover more since a transaction id."""
    cursor = await connection.execute(QUERIES["changed_quotas"], {"since": since})
    return [(row["tenant_id"], row["pool_id"], row["resource"]) for row in await cursor.fetchall()]


async def priorities(
    connection: Connection, pairs: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Return the priority of each (tenant, pool) that may be used so: that of the nearest offer."""
    parameters = {"tenants": [each[0] for each in pairs], "pools": [each[1] for each in pairs]}
    cursor = await connection.execute(QUERIES["priorities"], parameters)
    return {(row["tenant_id"], row["pool_id"]): row["priority"] for row in await cursor.fetchall()}


async def gpu_models(connection: Connection, pool_ids: Sequence[str]) -> dict[str, str]:
    """Return the GPU model of some pools, archived ones too: what they were used for is billed."""
    cursor = await connection.execute(QUERIES["models"], {"ids": list(pool_ids)})
    return {row["id"]: row["gpu_model"] for row in await cursor.fetchall()}
