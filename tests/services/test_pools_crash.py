"""Whatever statement a connection dies at, a pool is changed whole or not at all."""

import pytest
from pools_acting import archive, limit, limits, offer, unoffer, update, written
from test_services_crash import Killer

from apportion.pools import service
from apportion.pools.schemas import PoolCreate, SiteCreate
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


@pytest.fixture
async def shared(world):
    """Give a pool that two tenants are offered, one of which uses it."""
    acme, beta = await world.tenant("acme"), await world.tenant("beta")
    node = inventory("n1", *[gpu("H100", index) for index in range(4)])
    pool = await world.pool(pool_of("H100"), node)
    await offer(world, pool, acme, {"gpu": 4, "vcpu": 2})
    await offer(world, pool, beta, {"gpu": 2})
    await world.reservations.create(acme, ask(pool.id, device()))
    return pool, acme, beta


async def dies_whole(world, killer, act):
    before = await written(world)

    async def check():
        assert await written(world) == before

    died, outcome = await killer.at_each_statement(act, check)
    assert await written(world) != before
    return died, outcome


async def test_a_creation(world, killer):
    request = PoolCreate(name="p", gpu_model="H100", idempotency_key="k")
    died, pool = await dies_whole(
        world, killer, lambda: service.create_pool(world.runtime, world.caller, request)
    )
    assert died > 6
    assert await service.create_pool(world.runtime, world.caller, request) == pool


async def test_a_site(world, killer):
    request = SiteCreate(name="s", region="r", idempotency_key="k")
    died, site = await dies_whole(
        world, killer, lambda: service.create_site(world.runtime, world.caller, request)
    )
    assert died > 2
    assert await service.create_site(world.runtime, world.caller, request) == site


async def test_an_offer(world, killer, shared):
    pool, acme, _ = shared
    died, _ = await dies_whole(
        world, killer, lambda: offer(world, pool, acme, {"gpu": 3, "gpu.mig": 1}, priority=5)
    )
    assert died > 7
    assert (await limits(world, acme, pool))["gpu"] == ("3", "1")


async def test_a_pool_taken_back(world, killer, shared):
    pool, acme, _ = shared
    died, removed = await dies_whole(world, killer, lambda: unoffer(world, pool, acme))
    assert (died > 6, removed) == (True, True)
    assert (await limits(world, acme, pool))["gpu"] == ("1", "1")


async def test_an_archive(world, killer, shared):
    pool, acme, beta = shared
    died, _ = await dies_whole(world, killer, lambda: archive(world, pool))
    assert died > 8
    assert (await limits(world, acme, pool))["gpu"] == ("1", "1")
    assert (await limits(world, beta, pool))["gpu"] == ("0", "0")


async def test_an_update(world, killer, shared):
    pool, _, _ = shared
    policy = {"overcommit": {"vcpu": 2}}
    died, view = await dies_whole(world, killer, lambda: update(world, pool, 1, policy=policy))
    assert (died > 6, view.version) == (True, 2)


async def test_a_limit(world, killer, shared):
    pool, acme, _ = shared
    died, _ = await dies_whole(world, killer, lambda: limit(world, pool, acme, "gpu", 9))
    assert died > 4


async def test_a_tenants_deletion(world, killer, shared):
    pool, acme, _ = shared
    died, done = await dies_whole(
        world, killer, lambda: delete_tenant(world.runtime, world.caller, "acme")
    )
    assert died > 10
    assert (done.withdrawn_offers, done.ended_reservations) == ([pool.id], 1)
    assert set((await limits(world, acme, pool)).values()) == {("0", "0")}
