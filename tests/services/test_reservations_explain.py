"""Explaining a quota: its limit, by which live reservations it is used, and what is left."""

import asyncio

import pytest
from pools_acting import archive, limit, offer

from apportion.errors import NotFoundError
from apportion.reservations.explain import explain_quota
from apportion.reservations.service import Reservations
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
async def pool(world, acme):
    cuts = [f"1g.10gb@{at}" for at in range(4)] + ["3g.40gb@4"]
    gpus = [gpu("H100", 0, *cuts), *(gpu("H100", index) for index in range(1, 5))]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))
    await offer(world, pool, acme, {"gpu": 4, "gpu.mig": 5}, include_descendants=True)
    return pool


async def explain(world, caller, pool, tenant_id, resource, **page):
    return await explain_quota(world.runtime, caller, (tenant_id, pool.id, resource), **page)


async def test_it_names_each_live_reservation_with_what_it_takes_also_of_tenants_below(
    world, pool, acme, lab
):
    reserve = world.reservations.create
    own = await reserve(acme, ask(pool.id, device("gpu.mig", 2, profile="1g.10gb"), name="night"))
    below = await reserve(lab, ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    ended = await reserve(acme, ask(pool.id, device("gpu.mig", profile="1g.10gb")))
    await world.reservations.release(acme, ended.id)
    await world.create(ask(pool.id, device(count=4)))
    waits = await reserve(acme, ask(pool.id, device()))
    assert waits.state == "pending"
    found = await explain(world, acme, pool, "acme", "gpuEquivalents")
    assert (found.quota.max, found.quota.used, found.quota.available) == (
        "unlimited",
        "5/7",
        "unlimited",
    )
    assert found.accounted == "5/7"
    uses = {each.id: each for each in found.uses}
    assert {each: (use.amount, use.tenant_id) for each, use in uses.items()} == {
        own.id: ("2/7", "acme"),
        below.id: ("3/7", "acme-lab"),
    }
    night = uses[own.id]
    assert (night.name, night.state, night.start, night.end) == (
        "night",
        "active",
        MONDAY,
        own.end,
    )
    counts = await explain(world, acme, pool, "acme", "gpu.mig")
    assert (counts.quota.max, counts.quota.used, counts.quota.available) == (5, 3, 2)
    assert sorted(use.amount for use in counts.uses) == [1, 2]
    # What a reservation takes nothing of does not list it.
    assert (await explain(world, acme, pool, "acme", "gpu")).uses == []


async def test_the_owner_and_those_above_see_it_and_nobody_else(world, pool, acme, lab):
    beta = await world.tenant("beta")
    await offer(world, pool, beta, {"gpu": 1})
    view = await world.reservations.create(lab, ask(pool.id, device()))
    for caller in (world.caller, acme):
        found = await explain(world, caller, pool, "acme", "gpu")
        assert [use.id for use in found.uses] == [view.id]

    async def refusal(caller, *key):
        with pytest.raises(NotFoundError) as caught:
            await explain(world, caller, *key)
        return str(caught.value)

    never = await refusal(beta, pool, "nobody", "gpu")
    # Not to one below that merely uses it: what others have there is no business of its.
    for caller in (lab, beta, await world.tenant("gamma")):
        assert await refusal(caller, pool, "acme", "gpu") == never
    assert await refusal(acme, pool, "root", "gpu") == never
    assert await refusal(world.caller, pool, "acme", "hugepages1Gi") != ""
    assert (await explain(world, beta, pool, "beta", "gpu")).uses == []


async def test_it_comes_in_pages_by_id_and_accounts_for_all_on_each(world):
    gpus = [gpu("T4", index) for index in range(2)]
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", *gpus))
    asks = [ask(pool.id, device("gpu.share", units=3)) for _ in range(23)]
    made = await world.reservations.create_many(world.caller, asks)
    seen, after = [], ""
    while page := await explain(
        world, world.caller, pool, "root", "gpu.share", after=after, limit=5
    ):
        assert page.accounted == page.quota.used == 69
        if not page.uses:
            break
        assert len(page.uses) <= 5
        seen += [use.id for use in page.uses]
        after = seen[-1]
    assert seen == sorted(made)


async def test_it_still_explains_what_runs_in_an_archived_pool_and_under_a_lowered_limit(
    world, pool, acme
):
    view = await world.reservations.create(acme, ask(pool.id, device(count=3)))
    await limit(world, pool, acme, "gpu", 1)
    found = await explain(world, acme, pool, "acme", "gpu")
    assert (found.quota.max, found.quota.used, found.quota.available) == (1, 3, 0)
    await archive(world, pool)
    for caller in (world.caller, acme):
        found = await explain(world, caller, pool, "acme", "gpu")
        assert [(use.id, use.amount) for use in found.uses] == [(view.id, 3)]


async def test_what_is_used_and_by_whom_is_one_picture_while_others_reserve(world, pool, acme):
    """Whoever explains sees all of a change or nothing of it."""
    stop = asyncio.Event()

    async def come_and_go():
        service = Reservations(world.runtime)
        while not stop.is_set():
            made = await service.create_many(acme, [ask(pool.id, device())])
            for each in made:
                if isinstance(each, str):
                    await service.release(acme, each)

    people = [asyncio.create_task(come_and_go()) for _ in range(3)]
    amounts = set()
    for _ in range(60):
        found = await explain(world, acme, pool, "acme", "gpu")
        assert found.accounted == found.quota.used == sum(use.amount for use in found.uses)
        amounts.add(found.accounted)
    stop.set()
    await asyncio.gather(*people)
    assert len(amounts) > 1
