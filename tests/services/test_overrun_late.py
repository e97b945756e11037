"""Way is made also where a word came late, a tick did not come, or a part was handed out."""

from datetime import timedelta

import pytest
from test_ending import bound, stands
from test_holder_overrun import ENDING, key, place
from test_overrun_makes_way import BOUND, FREE, asked, kinds, nodes_of, one_after_the_other

from apportion.nodes.service import KEPT
from apportion.reservations.rows import QUERIES
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
BLOCKED = {"state": "waiting", "reason": "held_by_another", "message": "somebody has it"}


@pytest.fixture
async def whole(world):
    return await nodes_of(world, "n1")


async def test_what_was_asked_for_before_the_word_came_is_asked_for_no_more(whole):
    world = whole.world
    held = await place(whole, duration="1h")
    after = await place(whole, start=MONDAY + HOUR, duration="1h")
    await world.tick(hours=1)
    assert await asked(whole) == {after.id}
    before = (await whole.spec("n1")).generation
    await whole.say(**{key(held): ENDING, key(after): BLOCKED})
    await world.tick(seconds=1)
    assert await asked(whole) == set()
    assert (await whole.spec("n1")).generation > before
    view = await world.get(after)
    assert view.reason["code"] == "blocked_by_overrun"
    assert (view.start, view.delayed_from) == (world.clock() + KEPT, MONDAY + HOUR)
    assert (await world.get(held)).bookings[0].held_until == view.start
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await asked(whole) == {after.id}
    await whole.say(**{key(after): BOUND})
    await world.tick(seconds=1)
    assert (await world.get(after)).state == "active"


async def test_what_somebody_has_been_given_a_part_of_stays_where_it_is(world):
    nodes = await nodes_of(world, "n1", "n2")
    held = await place(nodes, duration="1h")
    gang = await world.create(
        ask(
            nodes.pool.id,
            device(),
            gang={"members": 2, "apart": True},
            start=MONDAY + HOUR,
            duration="1h",
        )
    )
    await world.tick(hours=1)
    on = held.bookings[0].node
    [other] = {"n1", "n2"} - {on}
    pieces = {each.node: f"{gang.id}__{at}" for at, each in enumerate(gang.bookings)}
    await nodes.say(other, **{pieces[other]: BOUND})
    await nodes.say(on, **{key(held): ENDING, pieces[on]: BLOCKED})
    await world.tick(seconds=1)
    view = await world.get(gang)
    assert (view.state, view.start) == ("placed", gang.start)
    assert view.reason["code"] == "blocked_by_overrun"
    assert await asked(nodes, other) == {gang.id}
    await nodes.say(on, **{key(held): FREE, pieces[on]: BOUND})
    await world.tick(seconds=1)
    assert (await world.get(gang)).state == "active"


async def test_who_asks_between_an_end_and_the_next_tick_does_not_get_what_is_not_left(whole):
    world, held = whole.world, await bound(whole, duration="1h")
    world.clock.advance(hours=1)
    third = await place(whole, duration="1h")
    assert (third.state, third.reason["code"]) == ("pending", "units_booked")
    assert (await world.get(held)).state == "ending"


async def test_who_asks_between_a_start_and_the_next_tick_gets_nothing_before_who_was_first(world):
    nodes = await nodes_of(world, "n1", gpus=2)
    held, beside = await place(nodes, duration="1h"), await place(nodes, duration="2h")
    after = await place(nodes, start=MONDAY + HOUR, duration="1h")
    await nodes.say(**{key(held): BOUND, key(beside): BOUND})
    world.clock.advance(minutes=59)
    await world.reservations.release(world.caller, beside.id)
    await nodes.say(**{key(held): BOUND, key(beside): FREE})
    world.clock.advance(minutes=1)
    third = await place(nodes, duration="1h")
    assert third.state == "pending"
    assert (await world.get(after)).start == world.clock()


async def test_a_server_that_was_away_makes_way_before_it_takes_work(whole):
    world = whole.world
    held, after = await one_after_the_other(whole, duration="3h")
    world.clock.advance(hours=2)
    world.restart()
    await world.reservations.lifecycle.end_due()
    assert (await world.get(held)).state == "ending"
    assert (await world.get(after)).start == world.clock() + KEPT
    assert (await place(whole, duration="1m")).state == "pending"
    assert await asked(whole) == set()


async def test_it_counts_for_none_of_the_reserved_starts_that_a_pool_gives(whole):
    world = whole.world
    _, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    assert (await world.get(after)).delayed_from is not None
    rows = await world.rows(QUERIES["reserved"].replace("%(now)s", "%s"), world.clock())
    assert rows == []


async def test_a_window_that_passed_without_a_tick_while_somebody_was_there_was_nobodys(whole):
    world = whole.world
    held, after = await one_after_the_other(whole, duration="10m")
    last = await place(whole, start=MONDAY + 2 * HOUR, duration="1h")
    world.clock.advance(hours=2)
    await world.reservations.lifecycle.advance()
    assert await stands(world, after) == ("failed", "blocked_by_overrun")
    assert (await world.get(after)).reason["since"] == "2026-03-02T10:00:00Z"
    # It lies between them no more: who is there is kept on, and the last one makes way.
    assert (await world.get(held)).bookings[0].held_until == world.clock() + KEPT
    assert (await world.get(last)).start == world.clock() + KEPT
    for _ in range(5):
        await world.tick(seconds=1)
    assert await kinds(world, last) == ["placed", "delayed"]
    assert (await place(whole, duration="1m")).state == "pending"
    assert await world.gpu_hours() == 1


async def test_what_is_released_before_the_tick_that_puts_it_off_is_billed_for_nothing(whole):
    world = whole.world
    held, after = await one_after_the_other(whole)
    world.clock.advance(hours=1, seconds=1)
    await world.reservations.release(world.caller, after.id)
    assert await stands(world, after) == ("ended", "cancelled")
    await world.tick(seconds=1)
    assert (await world.get(held)).bookings[0].held_until > world.clock() + MINUTE
    await whole.say(**{key(held): FREE})
    assert await world.gpu_hours() == 1


async def test_beside_what_was_handed_out_in_part_nothing_is_put_off_again_and_again(world):
    """Who is there cannot be kept over it: what comes after is asked for, and waits at its node."""
    nodes = await nodes_of(world, "n1", "n2")
    window = {"start": MONDAY + HOUR, "duration": "1h"}
    gang = {"members": 2, "apart": True}
    held = await place(nodes, duration="1h")
    both = await world.create(ask(nodes.pool.id, device(), gang=gang, **window))
    last = await world.create(
        ask(nodes.pool.id, device(), gang=gang, start=MONDAY + 2 * HOUR, duration="1h")
    )
    await world.tick(hours=1)
    on = held.bookings[0].node
    [other] = {"n1", "n2"} - {on}
    pieces = {each.node: f"{both.id}__{at}" for at, each in enumerate(both.bookings)}
    await nodes.say(other, **{pieces[other]: BOUND})
    await nodes.say(on, **{key(held): ENDING, pieces[on]: BLOCKED})
    await world.tick(minutes=59)
    await nodes.say(other, **{pieces[other]: BOUND})
    await world.tick(minutes=1)
    await nodes.say(other, **{pieces[other]: FREE})
    assert (await world.get(both)).state == "ending"
    for _ in range(3):
        await nodes.say(on, **{key(held): ENDING})
        await world.tick(seconds=1)
    # The piece that it never had is nobody's but theirs who never left it.
    assert (await world.get(both)).state == "ended"
    assert await world.gpu_hours() == 1 + 1
    assert (await world.get(last)).reason["code"] == "blocked_by_overrun"
    assert await kinds(world, last) == ["placed", "delayed"]


async def test_beside_a_part_in_hands_others_are_not_put_off_to_come_back_at_once(world):
    """Who is there cannot be kept beyond it: units would look free that are not."""
    nodes = await nodes_of(world, "n1", gpus=2, pool=pool_of("H100", "mig", migLayout="dynamic"))

    async def take(profile, count=1, **window):
        wanted = device("gpu.mig", profile=profile, count=count)
        return await world.create(ask(nodes.pool.id, wanted, **window))

    held = await take("4g.40gb", duration="1h")
    others = [await take("3g.40gb", duration="9h") for _ in range(2)]
    others += [await take("1g.10gb", duration="9h") for _ in range(3)]
    [gpu] = {each.bookings[0].gpu_id for each in others} - {held.bookings[0].gpu_id}
    window = {"start": MONDAY + HOUR, "duration": "1h"}
    both = await world.create(
        ask(
            nodes.pool.id,
            device("gpu.mig", profile="1g.10gb", count=2),
            placement={"apart": True},
            **window,
        )
    )
    after = await take("1g.10gb", **window)
    assert after.bookings[0].gpu_id == held.bookings[0].gpu_id
    await world.tick(hours=1)
    words = {key(each): BOUND for each in others} | {key(held): ENDING, key(after): BLOCKED}
    for at, piece in enumerate(both.bookings):
        words[f"{both.id}__{at}"] = BOUND if piece.gpu_id == gpu else BLOCKED
    for _ in range(3):
        await nodes.say(**words)
        await world.tick(seconds=1)
    assert await stands(world, after) == ("placed", "blocked_by_overrun")
    assert (await world.get(after)).start == after.start
    assert await kinds(world, after) == ["placed"]
    assert {both.id, after.id} <= await asked(nodes)
    await nodes.say(**{**words, key(held): {"state": "released"}, key(after): BOUND})
    await world.tick(seconds=1)
    assert (await world.get(after)).state == "active"
