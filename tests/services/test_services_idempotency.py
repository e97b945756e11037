"""One key, one reservation: whoever asks again gets the same, and nothing is booked twice."""

import asyncio
from datetime import timedelta

import pytest

from apportion.authority.service import Caller
from apportion.errors import ConflictError, InvalidInputError, QuotaExceededError
from apportion.pools.service import create_pool, list_pools
from apportion.reservations.service import Reservations
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def exclusive(world, gpus: int = 2):
    return await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(gpus)))
    )


async def test_a_retry_gets_the_first_answer(world):
    pool = await exclusive(world)
    first = await world.create(ask(pool.id, device(), key="k"))
    world.clock.advance(minutes=5)
    world.restart()
    assert await world.create(ask(pool.id, device(), key="k")) == first


async def test_another_ask_with_the_same_key_is_a_conflict_and_changes_nothing(world):
    pool = await exclusive(world)
    first = await world.create(ask(pool.id, device(), key="k"))
    with pytest.raises(ConflictError) as caught:
        await world.create(ask(pool.id, device(count=2), key="k"))
    assert caught.value.field == "idempotency_key"
    assert caught.value.details == {"reservation_id": first.id}
    assert await world.get(first) == first


async def test_two_callers_may_use_the_same_key(world):
    pool = await exclusive(world)
    first = await world.create(ask(pool.id, device(), key="k"))
    world.caller = Caller(world.caller.tenant_id, "tok_other")
    assert (await world.create(ask(pool.id, device(), key="k"))).id != first.id


async def test_a_retry_gets_its_answer_though_the_same_ask_would_now_be_refused(world):
    pool = await exclusive(world)
    request = ask(pool.id, device(), start=world.clock() + timedelta(minutes=1), key="k")
    first = await world.create(request)
    await world.quota(pool, "gpu", 0)
    world.clock.advance(minutes=2)
    again = await world.create(request)
    assert again.id == first.id
    with pytest.raises(InvalidInputError, match="lies in the past"):
        await world.create(request.model_copy(update={"idempotency_key": "other"}))


async def test_twins_in_one_batch_are_one_reservation(world):
    pool = await exclusive(world)
    same, other = ask(pool.id, device(), key="k"), ask(pool.id, device(count=2), key="k")
    first, twin, changed = await world.reservations.create_many(world.caller, [same, same, other])
    assert first == twin
    assert isinstance(changed, ConflictError)
    # Again, and the other one first: the stored reservation decides, not the order.
    changed, first_again = await world.reservations.create_many(world.caller, [other, same])
    assert first_again == first
    assert isinstance(changed, ConflictError)
    assert await world.used(pool) == {"gpu": 1}


@pytest.mark.parametrize("processes", [1, 8])
@pytest.mark.parametrize("vcpu", [0, 1])
async def test_twins_at_once_are_one_reservation(world, processes: int, vcpu: int):
    pool = await exclusive(world, gpus=8)
    services = [Reservations(world.runtime) for _ in range(processes)]
    for service in services:  # each has its picture, so that all plan the same at once
        await service.create(world.caller, ask(pool.id, device(count=8), duration="1s"))
        world.clock.advance(seconds=1)
        await service.lifecycle.advance()
    for number in range(5):
        request = ask(pool.id, device(), vcpu=vcpu, key=f"k{number}")
        views = await asyncio.gather(
            *(services[i % processes].create(world.caller, request) for i in range(8))
        )
        assert len({view.id for view in views}) == 1
        assert len(views[0].bookings) == 1
        assert await world.findings() == []
    assert await world.used(pool) == {"gpu": 5} | ({"vcpu": 5} if vcpu else {})
    world.reservations = services[0]


async def test_twins_do_not_stand_in_each_others_way(world):
    pool = await exclusive(world, gpus=1)
    await world.reservations.lifecycle.advance()
    request = ask(pool.id, device(), key="k")
    views = await asyncio.gather(*(world.create(request) for _ in range(8)))
    assert {view.state for view in views} == {"active"}


async def test_a_refused_ask_keeps_no_key(world):
    pool = await exclusive(world)
    await world.quota(pool, "gpu", 0)
    request = ask(pool.id, device(), key="k")
    with pytest.raises(QuotaExceededError):
        await world.create(request)
    await world.quota(pool, "gpu", 1)
    assert (await world.create(request)).state == "active"


async def test_a_pool_is_made_once_for_a_key_also_by_twins_at_once(world):
    request = pool_of("H100", key="pool-1")
    pools = await asyncio.gather(
        *(create_pool(world.runtime, world.caller, request) for _ in range(8))
    )
    assert len({pool.id for pool in pools}) == 1
    assert len(await list_pools(world.runtime, world.caller)) == 1
    with pytest.raises(ConflictError, match="another sharing"):
        await create_pool(world.runtime, world.caller, pool_of("H100", "mig", key="pool-1"))
    with pytest.raises(ConflictError, match="pool of that name"):
        await create_pool(world.runtime, world.caller, pool_of("H100", key="pool-2"))
