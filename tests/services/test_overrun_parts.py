"""Parts of GPUs, gangs and series make way for who has not left, as whole GPUs do."""

from datetime import timedelta

import pytest
from test_holder_overrun import ENDING, key, place
from test_overrun_makes_way import BOUND, FREE, asked, nodes_of

from apportion.nodes.service import KEPT
from apportion.reservations.window_schemas import SeriesCreate
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)


async def mig_of(world, *names):
    return await nodes_of(world, *names, pool=pool_of("H100", "mig", migLayout="dynamic"))


async def instance(nodes, profile, **window):
    return await nodes.world.create(
        ask(nodes.pool.id, device("gpu.mig", profile=profile), **window)
    )


async def test_of_parts_of_a_gpu_those_make_way_that_have_some_of_the_same_units(world):
    nodes = await mig_of(world, "n1")
    large = await instance(nodes, "4g.40gb", duration="1h")
    other = await instance(nodes, "3g.40gb", duration="4h")
    small = [await instance(nodes, "1g.10gb", start=MONDAY + HOUR, duration="2h") for _ in range(3)]
    assert {each.state for each in small} == {"placed"}
    await nodes.say(**{key(large): BOUND, key(other): BOUND})
    await world.tick(hours=1)
    for each in small:
        view = await world.get(each)
        assert (view.reason["code"], view.start) == ("blocked_by_overrun", MONDAY + HOUR + KEPT)
    assert (await world.get(other)).state == "active"
    third = await instance(nodes, "1g.10gb", duration="30m")
    assert third.state == "pending", "one slice was nobody's, and somebody is on it"
    await nodes.say(**{key(large): FREE, key(other): BOUND})
    await world.tick(seconds=1)
    assert {(await world.get(each)).start for each in small} == {world.clock()}
    assert (await world.get(third)).state == "placed"


async def test_a_large_one_after_small_ones_waits_for_the_last_of_them(world):
    nodes = await mig_of(world, "n1")
    other = await instance(nodes, "3g.40gb", duration="4h")
    small = [await instance(nodes, "1g.10gb", duration="1h") for _ in range(4)]
    large = await instance(nodes, "4g.40gb", start=MONDAY + HOUR, duration="1h")
    assert large.state == "placed"
    words = {key(each): BOUND for each in (other, *small)}
    await nodes.say(**words)
    await world.tick(hours=1)
    for each in small:
        assert (await world.get(large)).reason["code"] == "blocked_by_overrun"
        words[key(each)] = FREE
        await nodes.say(**words)
        await world.tick(seconds=1)
    assert (await world.get(large)).start == world.clock()


async def test_what_was_blocked_in_part_is_not_anybody_elses_once_its_window_has_passed(world):
    """The one before had more units than the next one: who comes third must not get the rest."""
    nodes = await mig_of(world, "n1")
    large = await instance(nodes, "4g.40gb", duration="1h")
    await instance(nodes, "3g.40gb", duration="9h")
    small = await instance(nodes, "1g.10gb", start=MONDAY + HOUR, duration="10m")
    await nodes.say(**{key(large): BOUND})
    await world.tick(hours=1)
    await nodes.say(**{key(large): ENDING})
    for _ in range(30):
        await world.tick(minutes=1)
        assert (await instance(nodes, "1g.10gb", duration="1m")).state == "pending"
    assert (await world.get(small)).state == "failed"


async def test_a_gang_is_put_off_whole_and_gives_its_host_to_others_meanwhile(world):
    nodes = await nodes_of(world, "n1", "n2")
    window = {"start": MONDAY + HOUR, "duration": "1h"}
    held = await place(nodes, duration="1h")
    gang = await world.create(
        ask(nodes.pool.id, device(), vcpu=4, gang={"members": 2, "apart": True}, **window)
    )
    assert gang.state == "placed"
    on = held.bookings[0].node
    await nodes.say(on, **{key(held): BOUND})
    await world.tick(hours=1)
    view = await world.get(gang)
    assert {each.start for each in view.bookings} == {MONDAY + HOUR + KEPT}
    assert (view.reason["blocked"], view.reason["on"]) == (1, on)
    assert await asked(nodes, "n1") == await asked(nodes, "n2") == set()
    starts = await world.rows("SELECT lower(during) AS at FROM host_bookings")
    assert {row["at"] for row in starts} == {MONDAY + HOUR + KEPT}
    await nodes.say(on, **{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(gang)
    assert {each.start for each in view.bookings} == {world.clock()}
    assert len({each.node for each in view.bookings}) == 2
    assert await asked(nodes, "n1") == await asked(nodes, "n2") == {gang.id}


async def slots_of(world):
    """Give a node of three slots, and what takes one or two of them."""
    nodes = await nodes_of(world, "n1", pool=pool_of("H100", "timeslice", replicas=3))

    async def take(units=1, **window):
        return await world.create(ask(nodes.pool.id, device("gpu.slot", units=units), **window))

    return nodes, take


async def test_who_has_a_slot_next_gets_another_one_at_once_where_one_is_free(world):
    nodes, take = await slots_of(world)
    held = await take(duration="1h")
    after = await take(start=MONDAY + HOUR, duration="1h")
    assert after.bookings[0].units == held.bookings[0].units
    await nodes.say(**{key(held): BOUND})
    await world.tick(hours=1)
    view = await world.get(after)
    assert (view.start, view.end) == (MONDAY + HOUR, MONDAY + 2 * HOUR)
    assert view.bookings[0].units != held.bookings[0].units
    assert await asked(nodes) == {after.id}


async def test_who_has_two_slots_next_waits_till_two_are_free(world):
    nodes, take = await slots_of(world)
    held, beside = await take(duration="1h"), await take(duration="3h")
    after = await take(2, start=MONDAY + HOUR, duration="1h")
    assert after.state == "placed"
    await nodes.say(**{key(held): BOUND, key(beside): BOUND})
    await world.tick(hours=1)
    assert (await world.get(after)).reason["code"] == "blocked_by_overrun"
    one = await take(duration="1m")
    assert one.state == "placed", "one slot is free till the next one may begin"
    await nodes.say(**{key(held): FREE, key(beside): BOUND, key(one): BOUND})
    await world.tick(seconds=30)
    assert (await world.get(after)).start > world.clock()
    await world.release(one)
    await nodes.say(**{key(beside): BOUND, key(one): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert (view.start, view.end) == (world.clock(), MONDAY + 2 * HOUR)


async def test_one_of_a_series_is_put_off_and_its_series_is_charged_its_peak(world):
    nodes = await nodes_of(world, "n1", gpus=2)
    hours = {"days": ["mon", "tue", "wed"], "start": "10:00", "end": "11:00", "zone": "UTC"}
    held, beside = await place(nodes, duration="1h"), await place(nodes, duration="2h")
    request = SeriesCreate.model_validate(
        {
            "pool_id": nodes.pool.id,
            "devices": [device().model_dump(by_alias=True)],
            "recurrence": {**hours, "until": "2026-03-04"},
        }
    )
    series = await world.reservations.series.create(world.caller, request)
    view, _ = await world.reservations.series.get(world.caller, series)
    await nodes.say(**{key(held): BOUND, key(beside): BOUND})
    await world.tick(hours=1)
    first = view.reservations[0]
    assert (await world.get(first)).reason["code"] == "blocked_by_overrun"
    assert await world.used(nodes.pool) == {"gpu": 3}
    await world.release(beside)
    await nodes.say(**{key(held): ENDING, key(beside): FREE})
    await world.tick(seconds=1)
    assert (await world.get(first)).start == world.clock()
    assert await world.used(nodes.pool) == {"gpu": 2}
    await nodes.say(**{key(held): FREE, key(first): BOUND})
    await world.tick(hours=1)
    await nodes.say(**{key(first): FREE})
    await world.tick(seconds=1)
    assert await world.used(nodes.pool) == {"gpu": 1}, "the next two live on it"
    await world.reservations.series.release(world.caller, series)
    assert await world.all_used(nodes.pool) == {}


async def test_one_of_a_series_after_another_that_stays_lives_on_what_that_is_charged(world):
    nodes = await nodes_of(world, "n1", gpus=2)
    days = {"days": ["mon", "tue"], "start": "10:00", "end": "10:00", "zone": "UTC"}
    beside = await place(nodes, duration="49h")
    request = SeriesCreate.model_validate(
        {
            "pool_id": nodes.pool.id,
            "devices": [device().model_dump(by_alias=True)],
            "recurrence": {**days, "until": "2026-03-03"},
        }
    )
    series = await world.reservations.series.create(world.caller, request)
    view, _ = await world.reservations.series.get(world.caller, series)
    first, second = view.reservations
    await world.tick(hours=1)
    await nodes.say(**{key(beside): BOUND, key(first): BOUND})
    await world.tick(hours=23)
    await world.release(beside)
    await nodes.say(**{key(beside): FREE, key(first): BOUND})
    await world.tick(hours=1)
    assert (await world.get(first)).state == "ending"
    moved = await world.get(second)
    assert (moved.start, moved.end) == (world.clock(), second.end)
    assert moved.bookings[0].gpu_id != first.bookings[0].gpu_id
    assert await world.used(nodes.pool) == {"gpu": 1}, "its peak, not its sum"
    await nodes.say(**{key(first): FREE, key(second): BOUND})
    await world.tick(seconds=1)
    assert await world.used(nodes.pool) == {"gpu": 1}
    await world.reservations.series.release(world.caller, series)
    await nodes.say(**{key(second): FREE})
    await world.tick(seconds=1)
    assert await world.all_used(nodes.pool) == {}
