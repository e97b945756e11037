"""A large ask is not starved by small ones: it gets a start that they cannot take."""

from datetime import timedelta

import pytest

from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def exclusive(world, gpus=4, name="pool", **policy):
    machine = inventory(name, *(gpu("H100", index, node=name) for index in range(gpus)))
    return await world.pool(pool_of("H100", name=name, **policy), machine)


async def streamed(world, length, **policy):
    """Keep small ones coming for half a day; returns how long a whole node was waited for, or None.

    One of four GPUs frees every quarter of the length, and a small one waits already to take it.
    """
    pool = await exclusive(world, maxPending="72h", **policy)
    for at in range(4):
        await world.create(ask(pool.id, device(), duration=f"{length * (at + 1) // 4}m"))
    large = await world.create(ask(pool.id, device(count=4), duration="1h"))
    began = world.clock()
    while world.clock() < began + 12 * HOUR:
        for _ in range(2):
            await world.create(ask(pool.id, device(), duration=f"{length}m"))
        await world.tick(minutes=length // 4)
        if (await world.get(large)).state == "active":
            return world.clock() - began
    return None


@pytest.mark.parametrize("length", [60, 120])
async def test_a_whole_node_is_had_within_bounds_though_small_ones_never_stop(world, length):
    waited = await streamed(world, length)
    assert waited is not None
    # It waits an hour for its start to be reserved, and then for the longest that runs.
    assert waited <= HOUR + timedelta(minutes=length + 2 * length // 4)


async def test_without_the_rule_it_starves(world):
    assert await streamed(world, 60, reserveAfter="0s") is None


async def test_the_start_is_kept_from_others_and_told_as_such(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="3h"))
    large = await world.create(ask(pool.id, device(count=4), duration="2h"))
    await world.tick(minutes=59, seconds=59)
    assert (await world.get(large)).state == "pending"
    await world.tick(seconds=1)
    view = await world.get(large)
    assert (view.state, view.start, view.end) == ("placed", held.end, held.end + 2 * HOUR)
    assert view.reason["code"] == "reserved_start"
    assert (view.reason["since"], view.reason["reserved_at"]) == (
        "2026-03-02T09:00:00Z",
        "2026-03-02T10:00:00Z",
    )
    assert (await world.used(pool))["gpu"] == 5
    beside = await world.create(ask(pool.id, device(), duration="2h"))
    assert (beside.state, beside.end) == ("active", held.end)
    late = await world.create(ask(pool.id, device(), duration="2h1m"))
    assert late.state == "pending"
    await world.tick(hours=2)
    assert (await world.get(large)).state == "active"
    told = await world.rows("SELECT type FROM events WHERE subject = %s ORDER BY id", large.id)
    assert [each["type"].removeprefix("reservation.") for each in told][:3] == [
        "pending",
        "placed",
        "started",
    ]


async def test_it_is_not_reserved_beyond_its_patience(world):
    pool = await exclusive(world, maxPending="2h")
    await world.create(ask(pool.id, device(), duration="3h"))
    large = await world.create(ask(pool.id, device(count=4)))
    await world.tick(hours=1)
    assert (await world.get(large)).state == "pending"
    await world.tick(hours=1)
    assert (await world.get(large)).reason["code"] == "PendingTimeout"


async def test_a_start_that_was_asked_for_is_never_another_one(world):
    pool = await exclusive(world)
    await world.create(ask(pool.id, device(), duration="5h"))
    start = world.clock() + 2 * HOUR
    fixed = await world.create(ask(pool.id, device(count=4), start=start, duration="1h"))
    await world.tick(hours=1, minutes=30)
    assert (await world.get(fixed)).state == "pending"


async def test_no_more_are_given_at_a_time_than_the_bound_and_those_in_front_first(
    world, monkeypatch
):
    monkeypatch.setattr("apportion.reservations.reserving.PER_POOL", 2)
    pool = await exclusive(world)
    await world.create(ask(pool.id, device(), duration="3h"))
    large = []
    for _ in range(4):
        large.append(await world.create(ask(pool.id, device(count=4), duration="1h")))
        world.clock.advance(seconds=1)
    await world.tick(hours=1)
    assert [(await world.get(each)).state for each in large] == [
        "placed",
        "placed",
        *["pending"] * 2,
    ]
    # The first begins, and another one's start is reserved behind the two.
    await world.tick(hours=2)
    await world.tick(seconds=2)
    views = [await world.get(each) for each in large]
    assert [each.state for each in views] == ["active", "placed", "placed", "pending"]
    assert [each.start for each in views[:3]] == [views[0].start + n * HOUR for n in range(3)]


async def test_who_gets_no_start_is_left_alone_for_some_minutes(world):
    pool = await exclusive(world, maxPending="90m")
    await world.create(ask(pool.id, device(), duration="9h"))
    large = await world.create(ask(pool.id, device(count=4)))
    await world.tick(hours=1)
    when = "SELECT reserve_at FROM reservations WHERE id = %s"
    [row] = await world.rows(when, large.id)
    assert row["reserve_at"] == world.clock() + timedelta(minutes=10)
    assert (await world.get(large)).reason == large.reason


async def test_what_is_over_by_then_still_gets_in_while_it_waits_for_its_start(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="2h"))
    large = await world.create(ask(pool.id, device(count=4)))
    await world.tick(hours=1)
    assert (await world.get(large)).start == held.end
    small = await world.create(ask(pool.id, device(count=3), duration="1h"))
    assert small.state == "active"
    await world.tick(hours=1)
    assert (await world.get(large)).state == "active"
