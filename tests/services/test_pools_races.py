"""Many who change one pool at once: each change stands alone, and what may not be never is."""

import asyncio

import pytest
from pools_acting import archive, limit, limits, offer, unoffer, update

from apportion.authority.service import Caller
from apportion.errors import ConflictError, InvalidStateError, NotFoundError
from apportion.pools import service
from apportion.pools.schemas import PoolCreate, SiteCreate, SiteUpdate
from apportion.store.connections import open_pool
from apportion.store.runtime import Runtime
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import KEY, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def crowded(world, dsn):
    """Let the world act on enough connections that nobody waits for one."""
    async with open_pool(dsn, size=20) as db:
        first, world.runtime = world.runtime, Runtime(db, world.clock, key=KEY)
        yield world
        world.runtime = first


def kinds(outcomes):
    return [type(each) for each in outcomes if isinstance(each, Exception)]


async def all_at_once(*acts):
    return await asyncio.gather(*acts, return_exceptions=True)


async def test_a_single_tenant_pool_is_offered_to_one_of_sixteen(crowded):
    world = crowded
    tenants = [await world.tenant(f"t{index}") for index in range(16)]
    pool = await world.pool(pool_of("H100", singleTenant=True))
    outcomes = await all_at_once(*(offer(world, pool, tenant) for tenant in tenants))
    assert kinds(outcomes) == [InvalidStateError] * 15
    [won] = [each for each in outcomes if not isinstance(each, Exception)]
    [row] = await world.rows("SELECT tenant_id FROM offers")
    assert row["tenant_id"] == won.tenant_id
    rows = await world.rows("SELECT DISTINCT tenant_id FROM quotas ORDER BY 1")
    assert [row["tenant_id"] for row in rows] == sorted(["root", won.tenant_id])
    assert len(await world.rows("SELECT 1 FROM events WHERE type = 'pool.offered'")) == 2


async def test_of_many_updates_of_one_version_one_is_made(crowded):
    world = crowded
    pool = await world.pool(pool_of("H100"))
    outcomes = await all_at_once(
        *(update(world, pool, 1, policy={"maxPending": f"{hours}h"}) for hours in range(1, 13))
    )
    assert kinds(outcomes) == [ConflictError] * 11
    [won] = [each for each in outcomes if not isinstance(each, Exception)]
    view = await service.get_pool(world.runtime, world.caller, pool.id)
    assert (view.version, view.policy) == (2, won.policy)
    assert len(await world.rows("SELECT 1 FROM events WHERE type = 'pool.updated'")) == 1


async def test_what_is_offered_while_it_is_archived_is_in_the_list_or_refused(crowded):
    world = crowded
    tenants = [await world.tenant(f"t{index}") for index in range(10)]
    pool = await world.pool(pool_of("H100"))
    acts = [offer(world, pool, tenant) for tenant in tenants]
    acts.insert(5, archive(world, pool))
    acts.append(archive(world, pool))
    outcomes = await all_at_once(*acts)
    assert set(kinds(outcomes)) <= {InvalidStateError}
    offered = sorted(
        each.tenant_id
        for each in outcomes
        if not isinstance(each, Exception) and each.__class__.__name__ == "OfferView"
    )
    assert await world.rows("SELECT 1 FROM offers") == []
    [row] = await world.rows(
        "SELECT data FROM events WHERE type = 'pool.archived' AND tenant_id = 'root'"
    )
    assert row["data"]["unoffered"] == offered
    for tenant in tenants:
        for most, used in (await limits(world, tenant, pool)).values():
            assert (most, used) == ("0", "0")


async def test_a_limit_set_while_an_offer_is_taken_back_does_not_outlive_it(crowded):
    world = crowded
    acme = await world.tenant("acme")
    pool = await world.pool(pool_of("H100"))
    for _ in range(5):
        await offer(world, pool, acme, {"gpu": 4})
        outcomes = await all_at_once(
            *(limit(world, pool, acme, "gpu", most) for most in (5, 6, 7)),
            unoffer(world, pool, acme),
        )
        assert set(kinds(outcomes)) <= {InvalidStateError}
        assert not isinstance(outcomes[-1], Exception)
        assert (await limits(world, acme, pool))["gpu"] == ("0", "0")


async def test_twins_with_one_key_make_one_pool(crowded):
    world = crowded
    request = PoolCreate(name="twin", gpu_model="H100", idempotency_key="k")
    made = await all_at_once(
        *(service.create_pool(world.runtime, world.caller, request) for _ in range(12))
    )
    assert kinds(made) == []
    assert len({each.id for each in made}) == 1
    assert len(await world.rows("SELECT 1 FROM events WHERE type = 'pool.created'")) == 1
    assert len(await world.rows("SELECT 1 FROM quotas")) == 2


async def test_a_site_is_deleted_or_gets_a_pool_and_never_both(crowded):
    world = crowded
    for index in range(6):
        site = await service.create_site(
            world.runtime, world.caller, SiteCreate(name=f"s{index}", region="r")
        )
        request = pool_of("H100", name=f"p{index}").model_copy(update={"site_id": site.id})
        deleted, made, _ = await all_at_once(
            service.delete_site(world.runtime, world.caller, site.id),
            service.create_pool(world.runtime, world.caller, request),
            service.update_site(
                world.runtime, world.caller, site.id, SiteUpdate(region="elsewhere")
            ),
        )
        outcome = (isinstance(deleted, Exception), isinstance(made, Exception))
        assert outcome in {(True, False), (False, True)}
        lost = deleted if isinstance(deleted, Exception) else made
        assert isinstance(lost, InvalidStateError | NotFoundError)


async def test_tenants_machines_and_offers_never_meet_in_one_pool(crowded):
    world = crowded
    acme = await world.tenant("acme")
    for index in range(5):
        pool = await world.pool(pool_of("H100", name=f"p{index}"))
        node = inventory("n1", gpu("H100", 0, node=f"m{index}"), owner_tenant_id="acme")
        joined, offered = await all_at_once(world.report(pool, node), offer(world, pool, acme))
        lost = [each for each in (joined, offered) if isinstance(each, Exception)]
        assert kinds([joined, offered]) == [InvalidStateError]
        assert "tenant-owned nodes" in str(lost[0])


async def test_nothing_is_made_for_a_tenant_while_it_is_deleted(crowded):
    world = crowded
    pool = await world.pool(pool_of("H100"))
    for index in range(4):
        tenant = await world.tenant(f"t{index}")
        caller = Caller(tenant.tenant_id, "tok", ancestors=tenant.ancestors)
        site = await service.create_site(world.runtime, caller, SiteCreate(name="hall", region="r"))
        request = pool_of("H100").model_copy(update={"site_id": site.id})
        outcomes = await all_at_once(
            service.create_pool(world.runtime, caller, request),
            offer(world, pool, tenant),
            delete_tenant(world.runtime, world.caller, tenant.tenant_id),
            service.create_site(world.runtime, caller, SiteCreate(name="late", region="r")),
        )
        assert set(kinds(outcomes)) <= {NotFoundError}
        assert not isinstance(outcomes[2], Exception)
        rows = await world.rows(
            "SELECT 1 FROM pools WHERE tenant_id = %s AND NOT archived", tenant.tenant_id
        )
        assert rows == []
        assert await world.rows("SELECT 1 FROM offers") == []
        for most, used in (await limits(world, tenant, pool)).values():
            assert most == used


async def test_one_pool_changed_in_every_way_at_once_ends_whole(crowded):
    """Deadlocks are retried: what is refused is refused for a reason of its own."""
    world = crowded
    tenants = [await world.tenant(f"t{index}") for index in range(4)]
    pools = [await world.pool(pool_of("H100", name=f"p{index}")) for index in range(2)]
    acts = []
    for pool in pools:
        for turn in range(6):
            for tenant in tenants:
                acts += [
                    offer(world, pool, tenant, {"gpu": turn}, include_descendants=turn % 2 == 0),
                    unoffer(world, pool, tenant),
                    limit(world, pool, tenant, "gpu", turn),
                ]
            acts.append(update(world, pool, turn + 1, policy={"maxPending": f"{turn + 1}h"}))
    acts += [delete_tenant(world.runtime, world.caller, tenants[0].tenant_id)]
    acts += [archive(world, pools[0])]
    outcomes = await all_at_once(*acts)
    allowed = {NotFoundError, InvalidStateError, ConflictError}
    assert set(kinds(outcomes)) <= allowed
    rows = await world.rows(
        "SELECT 1 FROM offers JOIN pools ON pools.id = pool_id JOIN tenants ON tenants.id ="
        " offers.tenant_id WHERE pools.archived OR deleted_at IS NOT NULL"
    )
    assert rows == []
