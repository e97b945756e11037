"""CPU and memory of a node over time, with devices and without."""

from datetime import timedelta

import pytest

from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def host(world, cpus: int = 10, memory_gib: int = 64):
    return await world.pool(
        pool_of("H100"),
        inventory("n1", gpu("H100", 0), gpu("H100", 1), cpus=cpus, memory_gib=memory_gib),
    )


def cpus(pool, amount, start: int, hours: int):
    return ask(pool.id, vcpu=amount, start=MONDAY + start * HOUR, duration=f"{hours}h")


async def test_host_resources_alone_are_a_reservation(world):
    pool = await host(world)
    view = await world.create(ask(pool.id, vcpu="2.5", memory_gib="0.5"))
    assert (view.state, view.devices, view.bookings) == ("active", [], [])
    assert (view.resources.vcpu, view.resources.memory_gib) == ("2.5", "0.5")
    await world.tick(hours=1)
    assert (await world.get(view)).state == "ended"
    assert await world.gpu_hours() == 0


async def test_it_is_the_peak_that_counts_and_not_the_sum(world):
    pool = await host(world)
    assert (await world.create(cpus(pool, 6, 0, 1))).state == "active"
    assert (await world.create(cpus(pool, 6, 1, 1))).state == "placed"
    assert (await world.create(cpus(pool, 4, 0, 2))).state == "active"
    refused = await world.create(cpus(pool, "0.001", 0, 2))
    assert (refused.state, refused.reason["code"]) == ("pending", "host_resources_short")
    assert (await world.create(cpus(pool, 10, 2, 1))).state == "placed"


@pytest.mark.parametrize("amounts", [{"vcpu": 11}, {"memory_gib": 65}])
async def test_more_than_the_node_has_will_never_fit(world, amounts):
    pool = await host(world)
    view = await world.create(ask(pool.id, device(), **amounts))
    assert view.reason["code"] == "larger_than_any_node"


async def test_a_gpu_without_the_cpus_that_it_needs_is_not_booked(world):
    pool = await host(world)
    await world.create(cpus(pool, 8, 0, 4))
    view = await world.create(ask(pool.id, device(), vcpu=4))
    assert (view.state, view.reason["code"]) == ("pending", "host_resources_short")
    assert await world.used(pool) == {"vcpu": 8}
    assert (await world.create(ask(pool.id, device(), vcpu=2))).state == "active"


async def test_releasing_gives_the_host_back_from_that_moment(world):
    pool = await host(world)
    held = await world.create(cpus(pool, 10, 0, 4))
    waiting = await world.create(cpus(pool, 10, 1, 1))
    later = await world.create(cpus(pool, 10, 4, 1))
    assert (waiting.state, later.state) == ("pending", "placed")
    world.clock.advance(minutes=30)
    await world.release(held)
    assert (await world.get(waiting)).state == "placed"
    await world.release(later)
    assert (await world.create(cpus(pool, 10, 4, 1))).state == "placed"


async def test_two_nodes_are_filled_and_never_mixed(world):
    nodes = [
        inventory(name, gpu("H100", 0, node=name), cpus=8, memory_gib=8) for name in ("n1", "n2")
    ]
    pool = await world.pool(pool_of("H100"), *nodes)
    fives = [await world.create(ask(pool.id, vcpu=5, memory_gib=1)) for _ in range(3)]
    assert [view.state for view in fives] == ["active", "active", "pending"]
    assert (await world.create(ask(pool.id, vcpu=6))).reason["code"] == "host_resources_short"
    with_gpu = [await world.create(ask(pool.id, device(), vcpu=3)) for _ in range(2)]
    assert {b.node for view in with_gpu for b in view.bookings} == {"n1", "n2"}
