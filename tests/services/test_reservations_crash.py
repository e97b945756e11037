"""Whatever statement a connection dies at, what was charged, failed or deleted is so in whole."""

import pytest
from pools_acting import archive, limits, offer
from test_services_crash import Killer, rows_of

from apportion.tenants.service import delete_tenant
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


@pytest.fixture
async def pool(world, acme):
    gpus = [gpu("H100", 0, "1g.10gb@0", "3g.40gb@4"), gpu("H100", 1)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))
    await offer(world, pool, acme, {"gpu": 4, "gpu.mig": 4, "vcpu": 4})
    return pool


async def test_a_charge_of_an_offered_tenant_that_dies_leaves_every_table_as_it_was(
    world, killer, pool, acme
):
    request = ask(pool.id, device("gpu.mig", profile="3g.40gb"), device(), vcpu=2, key="once")
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.drift() == {}

    died, made = await killer.at_each_statement(
        lambda: world.reservations.create_many(acme, [request]), check
    )
    assert died > 10
    view = await world.reservations.create(acme, request)
    assert made == [view.id]
    assert view.charges == {"gpu.mig": 1, "gpu": 1, "vcpu": 2, "gpuEquivalents": "10/7"}


async def test_a_retry_that_dies_while_it_fails_what_waited_fails_it_later_once(
    world, killer, pool, acme
):
    await world.reservations.create(acme, ask(pool.id, device()))
    waits = await world.reservations.create(acme, ask(pool.id, device()))
    await archive(world, pool)
    before = await rows_of(world)
    seen = set()

    async def check():
        view = await world.reservations.get(acme, waits.id)
        seen.add(view.state)
        assert (await rows_of(world) == before) == (view.state == "pending")
        assert await world.findings() == []
        assert await world.drift() == {}

    # A step of several transactions, of which the last one fails what waited.
    died, _ = await killer.at_each_statement(world.reservations.lifecycle.retry_pending, check)
    assert died > 6
    assert seen == {"pending"}
    view = await world.reservations.get(acme, waits.id)
    assert (view.state, view.reason["code"]) == ("failed", "PoolGone")
    told = await world.rows("SELECT type FROM events WHERE subject = %s ORDER BY id", waits.id)
    assert [row["type"] for row in told] == ["reservation.pending", "reservation.failed"]


async def test_a_deletion_that_dies_leaves_the_tenant_all_that_it_had(world, killer, pool, acme):
    await world.reservations.create(acme, ask(pool.id, device(), vcpu=1))
    await world.reservations.create(acme, ask(pool.id, device("gpu.mig", 2)))
    await world.reservations.create(acme, ask(pool.id, device()))
    world.clock.advance(minutes=1)
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.findings() == []

    died, done = await killer.at_each_statement(
        lambda: delete_tenant(world.runtime, world.caller, "acme"), check
    )
    assert died > 10
    assert done.ended_reservations == 3
    assert {used for _, used in (await limits(world, acme, pool)).values()} == {"0"}
