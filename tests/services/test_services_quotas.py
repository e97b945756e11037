"""Quotas: absent grants nothing, 0 blocks, a limit holds exactly, and what ends gives back once."""

import asyncio
from datetime import timedelta

import pytest

from apportion.errors import QuotaExceededError
from apportion.pools.service import get_pool
from apportion.reservations.service import Reservations
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def shared(world, **quota):
    return await world.pool(
        pool_of("T4", "mps", shares=100, quota=quota),
        inventory("n1", *(gpu("T4", index) for index in range(4))),
    )


async def shares_of(world, pool):
    quotas = (await get_pool(world.runtime, world.caller, pool.id)).quotas
    return [quota for quota in quotas if quota.resource == "gpu.share"]


async def refusal_of(world, request) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught:
        await world.create(request)
    return caught.value


async def test_a_default_quota_covers_whole_gpus_only(world):
    request = pool_of("H100", "mig").model_copy(update={"owner_quota": {"gpu": 2147483647}})
    pool = await world.pool(request, inventory("n1", gpu("H100", 0, "3g.40gb@4"), gpu("H100", 1)))
    error = await refusal_of(world, ask(pool.id, device("gpu.mig")))
    assert "no quota row, which grants 0" in str(error)
    assert error.details["resource"] == "gpu.mig"
    assert (await world.create(ask(pool.id, device()))).state == "active"


@pytest.mark.parametrize("limit", [None, 0])
async def test_absent_and_nought_block_one_and_not_none(world, limit):
    quota = {} if limit is None else {"vcpu": limit}
    pool = await shared(world, **{"gpu.share": 10, **quota})
    error = await refusal_of(world, ask(pool.id, device("gpu.share"), vcpu=1))
    assert error.details["resource"] == "vcpu"
    # A request of 0 never needs a quota.
    assert (await world.create(ask(pool.id, device("gpu.share")))).state == "active"


async def test_unlimited_is_a_word_and_no_number(world):
    pool = await shared(world, **{"gpu.share": "unlimited"})
    await world.create(ask(pool.id, device("gpu.share", count=4, units=100)))
    [quota] = await shares_of(world, pool)
    assert (quota.max, quota.used, quota.available) == ("unlimited", 400, "unlimited")


async def test_a_tenth_and_two_tenths_fit_three_tenths_exactly(world):
    pool = await shared(world, **{"gpu.share": 30})
    for units in (10, 20):
        await world.create(ask(pool.id, device("gpu.share", units=units)))
    [quota] = await shares_of(world, pool)
    assert (quota.used, quota.available) == (30, 0)
    error = await refusal_of(world, ask(pool.id, device("gpu.share", units=1)))
    assert error.details == {
        "pool_id": pool.id,
        "tenant_id": "root",
        "resource": "gpu.share",
        "asked": "1",
        "max": "30",
        "used": "30",
    }


async def test_a_count_is_charged_in_total_and_not_per_gpu(world):
    pool = await shared(world, **{"gpu.share": 100, "vcpu": 8, "memoryGiB": 16})
    error = await refusal_of(world, ask(pool.id, device("gpu.share", count=2, units=60)))
    assert error.details["asked"] == "120"
    request = ask(pool.id, device("gpu.share", count=2, units=50), vcpu="0.5", memory_gib="1.5")
    await world.create(request)
    assert await world.used(pool) == {
        "gpu.share": 100,
        "vcpu": "0.5",
        "memoryGiB": "1.5",
    }


async def test_a_limit_below_what_is_used_stops_new_work_and_ends_nothing(world):
    pool = await shared(world, **{"gpu.share": 100})
    held = await world.create(ask(pool.id, device("gpu.share", units=60)))
    quota = await world.quota(pool, "gpu.share", 10)
    assert (quota.used, quota.available) == (60, 0)
    await refusal_of(world, ask(pool.id, device("gpu.share", units=1)))
    assert (await world.get(held)).state == "active"
    await world.release(held)
    assert await world.used(pool) == {}
    await world.create(ask(pool.id, device("gpu.share", units=10)))


async def test_what_ends_by_any_way_gives_back_exactly_once(world):
    pool = await shared(world, **{"gpu.share": 100, "vcpu": 10})
    request = {"devices": device("gpu.share", units=25), "vcpu": 2}

    def wanted(**window):
        return ask(pool.id, request["devices"], vcpu=2, **window)

    later = world.clock() + timedelta(hours=2)
    released, expired, cancelled = [
        await world.create(wanted(**window))
        for window in ({"duration": "4h"}, {"duration": "1h"}, {"start": later, "duration": "1h"})
    ]
    assert await world.used(pool) == {"gpu.share": 75, "vcpu": 6}
    world.clock.advance(minutes=30)
    for _ in range(2):
        await world.release(released)
        await world.release(cancelled)
    assert await world.used(pool) == {"gpu.share": 25, "vcpu": 2}
    for _ in range(2):
        await world.tick(hours=1)
        await world.release(expired)
    assert await world.used(pool) == {}
    states = [(await world.get(each)).reason["code"] for each in (released, expired, cancelled)]
    assert states == ["released", "expired", "cancelled"]


async def test_what_is_over_by_the_clock_no_longer_counts_before_the_next_tick(world):
    pool = await shared(world, **{"gpu.share": 100})
    await world.create(ask(pool.id, device("gpu.share", units=100)))
    world.clock.advance(hours=1)
    assert (await world.create(ask(pool.id, device("gpu.share", units=100)))).state == "active"


async def test_a_pending_one_is_charged_nothing_and_tested_again_at_each_try(world):
    pool = await shared(world, **{"gpu.share": 500})
    held = [await world.create(ask(pool.id, device("gpu.share", units=100))) for _ in range(4)]
    waiting = await world.create(ask(pool.id, device("gpu.share", units=50)))
    assert await world.used(pool) == {"gpu.share": 400}
    await world.quota(pool, "gpu.share", 340)
    await world.release(held[0])
    view = await world.get(waiting)
    assert (view.state, view.reason["code"]) == ("pending", "quota_exceeded")
    assert view.reason["message"] == (f"asks for 50 gpu.share of {pool.name}, and there is 40 left")
    await world.quota(pool, "gpu.share", 350)
    await world.tick(seconds=1)
    assert (await world.get(waiting)).state == "active"
    assert await world.used(pool) == {"gpu.share": 350}


async def test_a_quota_that_holds_one_of_two_candidates_back_is_news_when_it_is_raised(world):
    poor = await shared(world, **{"gpu.share": 0})
    full = await world.pool(
        pool_of("T4", "mps", name="full", shares=100), inventory("n2", gpu("T4", 0, node="n2"))
    )
    await world.create(ask(full.id, device("gpu.share", units=100)))
    waiting = await world.create(ask([poor.id, full.id], device("gpu.share")))
    assert waiting.state == "pending"
    assert "quota" in waiting.reason["message"]
    await world.tick(seconds=1)
    await world.quota(poor, "gpu.share", 1)
    await world.tick(seconds=1)
    view = await world.get(waiting)
    assert (view.state, view.pool_id) == ("active", poor.id)


async def test_sixteen_that_race_for_a_quota_of_ten_get_ten(world):
    """Each on a GPU of its own, so that nothing but the quota is in the way."""
    gpus = [gpu("H100", index) for index in range(16)]
    pool = await world.pool(pool_of("H100", quota={"gpu": 10}), inventory("n1", *gpus))
    outcomes = await asyncio.gather(
        *(
            Reservations(world.runtime).create(
                world.caller, ask(pool.id, device(where=[("gpuUuid", "In", [each.uuid])]))
            )
            for each in gpus
        ),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, Exception)]
    assert len(refused) == 6
    assert {type(each) for each in refused} == {QuotaExceededError}
    assert await world.used(pool) == {"gpu": 10}


async def test_giving_back_needs_no_row(world):
    """A quota that was taken away does not keep what it once granted from ending."""
    pool = await shared(world, **{"gpu.share": 10, "vcpu": 4})
    held = await world.create(ask(pool.id, device("gpu.share"), vcpu=1))
    await world.rows("DELETE FROM quotas WHERE resource = 'vcpu'")
    assert (await world.release(held)).state == "ended"
    assert await world.used(pool) == {}
