"""Batches by the policy exact: planned together, taken where still free, and the promise shown."""

import pytest
from services_world import World

from apportion import solving
from apportion.errors import InvalidInputError
from apportion.pools.schemas import PoolUpdate
from apportion.pools.service import get_pool, update_pool
from apportion.reservations import batches
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
EXACT = {"policy": "exact"}
FIFTHS = (30, 60, 40, 70, 50, 50)
"""Hundredths that first-come places on four GPUs, and a plan on three."""


async def shared(world: World, **policy):
    return await world.pool(
        pool_of("T4", "mps", shares=100, **policy),
        inventory("n1", *(gpu("T4", at) for at in range(6))),
    )


def pieces(pool, placement, sizes=FIFTHS):
    return [
        ask(pool.id, device("gpu.share", units=units), placement=placement, key=f"{at}/{units}")
        for at, units in enumerate(sizes)
    ]


def gpus_of(views):
    return len({booking.gpu_id for view in views for booking in view.bookings})


async def test_a_batch_is_placed_on_the_fewest_gpus_and_says_that_no_fewer_would_do(world: World):
    pool = await shared(world)
    views, [plan] = await world.reservations.create_all(world.caller, pieces(pool, EXACT))
    assert {view.state for view in views} == {"active"}
    assert (plan.asks, plan.placed, plan.gpus, plan.bound, plan.optimal) == (6, 6, 3, 3, True)
    assert gpus_of(views) == 3
    assert views[0].placement.policy == "exact"


async def test_the_pools_policy_plans_batches_and_places_one_ask_as_ever(world: World):
    pool = await shared(world, placement="exact")
    one = await world.create(ask(pool.id, device("gpu.share", units=100)))
    assert one.state == "active"
    views, [plan] = await world.reservations.create_all(world.caller, pieces(pool, {}))
    assert (gpus_of(views), plan.gpus, plan.optimal) == (3, 3, True)
    # Who names another policy is not planned.
    _, plans = await world.reservations.create_all(
        world.caller, pieces(pool, {"policy": "best"}, (10, 11))
    )
    assert plans == []


async def test_most_asks_come_before_few_gpus(world: World):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    views, [plan] = await world.reservations.create_all(
        world.caller, pieces(pool, EXACT, (80, 50, 50))
    )
    assert [view.state for view in views] == ["pending", "active", "active"]
    assert (plan.asks, plan.placed, plan.gpus) == (3, 2, 1)


async def test_who_comes_between_costs_the_plan_its_promise_and_nobody_a_place(
    world: World, monkeypatch
):
    pool = await shared(world)
    plan_of = batches._plan

    async def overtaken(*args):
        plan = await plan_of(*args)
        taken = ask(pool.id, device("gpu.share", count=6, units=60))
        await world.reservations.create_many(world.caller, [taken])
        return plan

    monkeypatch.setattr(batches, "_plan", overtaken)
    views, [plan] = await world.reservations.create_all(world.caller, pieces(pool, EXACT))
    assert [view.state for view in views].count("active") == plan.placed == 2
    assert (plan.optimal, plan.bound) == (False, None)


async def test_a_retry_of_a_batch_makes_nothing_new(world: World):
    pool = await shared(world)
    first, _ = await world.reservations.create_all(world.caller, pieces(pool, EXACT))
    again, [plan] = await world.reservations.create_all(world.caller, pieces(pool, EXACT))
    assert [view.id for view in again] == [view.id for view in first]
    assert (plan.placed, plan.optimal) == (0, False)


@pytest.mark.parametrize("more", [{"gang": {"members": 2}}, {"end_before": "2026-03-03T00:00:00Z"}])
async def test_what_is_no_part_of_one_plan_is_refused_by_itself(world: World, more):
    pool = await shared(world)
    wrong = ask(pool.id, device("gpu.share", units=10), placement=EXACT, **more)
    answers, plans = await world.reservations.create_all(
        world.caller, [wrong, *pieces(pool, EXACT)]
    )
    assert answers[0].field == "placement.policy"
    assert {view.state for view in answers[1:]} == {"active"}
    assert len(plans) == 1


async def test_one_ask_is_no_batch(world: World):
    pool = await shared(world)
    with pytest.raises(InvalidInputError, match="this is one") as refused:
        await world.create(pieces(pool, EXACT)[0])
    assert refused.value.field == "placement.policy"


async def test_without_the_solver_it_is_refused_with_what_installs_it(world: World, monkeypatch):
    pool = await shared(world)
    other = await world.pool(pool_of("H100"), inventory("n2", gpu("H100", 0, node="n2")))
    before = await world.pool(pool_of("H100", placement="exact", name="before"))
    monkeypatch.setattr(solving, "find_spec", lambda _: None)
    answers, plans = await world.reservations.create_all(world.caller, pieces(pool, EXACT))
    assert {each.field for each in answers} == {"placement.policy"}
    assert "apportion[exact]" in answers[0].hint
    assert plans == []
    request = PoolUpdate(version=1, policy={"placement": "exact"})
    with pytest.raises(InvalidInputError) as refused:
        await update_pool(world.runtime, world.caller, other.id, request)
    assert refused.value.field == "policy.placement"
    # A pool that said so while it could goes on, one ask after the other.
    await world.report(
        before, inventory("n3", gpu("H100", 0, node="n3"), gpu("H100", 1, node="n3"))
    )
    views, plans = await world.reservations.create_all(
        world.caller, [ask(before.id, device()) for _ in range(2)]
    )
    assert ({view.state for view in views}, plans) == ({"active"}, [])
    assert (await get_pool(world.runtime, world.caller, before.id)).policy["placement"] == "exact"
