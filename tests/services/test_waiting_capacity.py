"""Beside what is free stands the largest request that fits: it is placed, and one more is not."""

from random import Random

import pytest
from pools_acting import offer

from apportion.errors import InvalidInputError, NotFoundError
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def capacity(world, pool, duration="1h", caller=None):
    told = await world.reservations.capacity(caller or world.caller, pool.id, duration)
    return {each.class_: each for each in told.free}


async def test_a_sum_on_many_nodes_says_how_much_one_of_them_has(world):
    nodes = [inventory(f"n{at}", gpu("H100", 0, node=f"n{at}")) for at in range(3)]
    both = inventory("big", *(gpu("H100", index, node="big") for index in range(2)))
    pool = await world.pool(pool_of("H100"), *nodes, both)
    free = (await capacity(world, pool))["gpu"]
    assert (free.free, free.largest_count) == (5, 2)
    await world.create(ask(pool.id, device(count=2), duration="2h"))
    free = (await capacity(world, pool))["gpu"]
    assert (free.free, free.largest_count) == (3, 1)
    for _ in range(3):
        await world.create(ask(pool.id, device(), duration="2h"))
    free = (await capacity(world, pool))["gpu"]
    assert (free.free, free.largest_count) == (0, 0)


async def test_what_is_reserved_ahead_counts_for_as_long_as_is_asked(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    later = world.clock().replace(hour=11)
    await world.create(ask(pool.id, device(), start=later, duration="1h"))
    assert (await capacity(world, pool, "2h"))["gpu"].largest_count == 2
    assert (await capacity(world, pool, "3h"))["gpu"].largest_count == 1


async def test_instances_and_slots_have_their_own_largest(world):
    cut = gpu("H100", 0, "3g.40gb@0", "1g.10gb@4", "1g.10gb@5")
    mig = await world.pool(pool_of("H100", "mig"), inventory("n1", cut))
    free = (await capacity(world, mig))["gpu.mig"]
    assert (free.free, free.largest_profile) == (3, "3g.40gb")
    await world.create(ask(mig.id, device("gpu.mig", profile="3g.40gb"), duration="2h"))
    free = (await capacity(world, mig))["gpu.mig"]
    assert (free.free, free.largest_profile) == (2, "1g.10gb")
    slots = await world.pool(
        pool_of("T4", "timeslice", replicas=4),
        inventory("n2", *(gpu("T4", index, node="n2") for index in range(2))),
    )
    for _ in range(2):
        await world.create(ask(slots.id, device("gpu.slot", units=3), duration="2h"))
    free = (await capacity(world, slots))["gpu.slot"]
    assert (free.free, free.largest_units) == (2, 1)


@pytest.mark.parametrize("seed", range(4))
async def test_the_largest_is_placed_and_one_more_waits(world, seed):
    draw = Random(seed)
    nodes = [
        inventory(f"n{at}", *(gpu("H100", i, node=f"n{at}") for i in range(draw.randint(1, 6))))
        for at in range(3)
    ]
    pool = await world.pool(pool_of("H100"), *nodes)
    for _ in range(draw.randrange(5)):
        view = await world.create(ask(pool.id, device(count=draw.randint(1, 3)), duration="5h"))
        if view.state == "pending":
            await world.release(view)
    most = (await capacity(world, pool))["gpu"].largest_count
    more = await world.create(ask(pool.id, device(count=most + 1)))
    assert more.state == "pending", seed
    await world.release(more)
    if most:
        assert (await world.create(ask(pool.id, device(count=most)))).state == "active", seed


async def test_who_may_use_the_pool_sees_it_and_nobody_else(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    acme, other = await world.tenant("acme"), await world.tenant("other")
    await offer(world, pool, acme, {"gpu": 1})
    assert (await capacity(world, pool, caller=acme))["gpu"].free == 1
    with pytest.raises(NotFoundError):
        await capacity(world, pool, caller=other)
    with pytest.raises(InvalidInputError) as caught:
        await capacity(world, pool, "soon")
    assert caught.value.field == "duration"
