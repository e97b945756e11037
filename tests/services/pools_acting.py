"""Short ways to do to pools what their tests are about."""

import pytest

from apportion.events.service import list_events
from apportion.pools import service
from apportion.pools.schemas import OfferPut, PoolUpdate, QuotaSet

UNLIMITED = 2147483647


async def offer(world, pool, tenant, quota=None, *, by=None, **terms):
    request = OfferPut(quota={"gpu": 32} if quota is None else quota, **terms)
    return await service.offer_pool(
        world.runtime, by or world.caller, pool.id, tenant.tenant_id, request
    )


async def unoffer(world, pool, tenant, *, by=None):
    done = await service.unoffer_pool(world.runtime, by or world.caller, pool.id, tenant.tenant_id)
    return done.removed


async def seen(world, caller, pool):
    return await service.get_pool(world.runtime, caller, pool.id)


async def listed(world, caller, **filters):
    return [each.id for each in await service.list_pools(world.runtime, caller, **filters)]


async def update(world, pool, version, *, by=None, **fields):
    request = PoolUpdate(version=version, **fields)
    return await service.update_pool(world.runtime, by or world.caller, pool.id, request)


async def archive(world, pool, *, by=None):
    return await service.archive_pool(world.runtime, by or world.caller, pool.id)


async def limit(world, pool, tenant, resource, most, *, by=None):
    request = QuotaSet(tenant_id=tenant.tenant_id, pool_id=pool.id, resource=resource, max=most)
    return await service.set_quota(world.runtime, by or world.caller, request)


async def limits(world, tenant, pool):
    """Return (max, used) of a tenant's quotas on a pool, by resource, as they are stored."""
    rows = await world.rows(
        "SELECT resource, max::text, used::text FROM quotas WHERE tenant_id = %s AND pool_id = %s",
        *(tenant.tenant_id, pool.id),
    )
    return {row["resource"]: (row["max"], row["used"]) for row in rows}


async def told(world, tenant, kind=None):
    """Return (type, data) of what a tenant was told about pools, sites and quotas."""
    events = await list_events(world.runtime, tenant, limit=1000)
    return [
        (each.type, each.data)
        for each in events
        if each.type.startswith(kind or ("pool.", "site.", "quota."))
    ]


async def written(world):
    """Return every row of what pools are about."""
    tables = ("sites", "pools", "offers", "quotas", "events", "reservations", "bookings")
    return {
        table: [
            {key: value for key, value in row.items() if key != "changed_xid"}
            for row in await world.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3")  # noqa: S608
        ]
        for table in tables
    }


async def refusal(awaitable, kind):
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value
