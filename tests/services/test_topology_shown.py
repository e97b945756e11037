"""How well the GPUs of a reservation reach each other is told with it."""

import pytest

from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


def linked(index, *peers, numa):
    links = [{"peer": f"GPU-n1-{peer}", "links": 18} for peer in peers]
    return gpu("H100", index, numa_node=numa, nvlink=links)


@pytest.fixture
async def pool(world):
    """Make a node whose GPUs 0 and 1 are linked; 2 and 3 share only a NUMA node."""
    gpus = [linked(0, 1, numa=0), linked(1, 0, numa=0), linked(2, numa=1), linked(3, numa=1)]
    return await world.pool(pool_of("H100"), inventory("n1", *gpus))


async def shown(world, pool, *indexes, count=2):
    where = [("gpuIndex", "In", indexes)]
    made = await world.create(ask(pool.id, device(count=count, where=where)))
    read = await world.reservations.get(world.caller, made.id)
    assert read.topology == made.topology
    await world.reservations.release(world.caller, made.id)
    return None if made.topology is None else (made.topology.score, made.topology.link)


@pytest.mark.parametrize(
    ("indexes", "told"),
    [((0, 1), (4, "nvlink")), ((2, 3), (2, "numa")), ((1, 2), (1, "node"))],
)
async def test_the_worst_pair_is_told(world, pool, indexes, told):
    assert await shown(world, pool, *indexes) == told


async def test_one_gpu_has_nobody_to_reach(world, pool):
    assert await shown(world, pool, 0, count=1) is None


async def test_of_a_gang_the_member_that_fares_worst_is_told(world, pool):
    made = await world.create(ask(pool.id, device(count=2), gang={"members": 2}))
    assert (made.topology.score, made.topology.link) == (2, "numa")


async def test_one_that_waited_tells_it_when_it_is_placed(world, pool):
    first = await world.create(ask(pool.id, device(count=4)))
    waits = await world.create(ask(pool.id, device(count=2)))
    assert waits.topology is None
    await world.reservations.release(world.caller, first.id)
    await world.reservations.lifecycle.advance()
    placed = await world.reservations.get(world.caller, waits.id)
    assert (placed.topology.score, placed.topology.link) == (4, "nvlink")
