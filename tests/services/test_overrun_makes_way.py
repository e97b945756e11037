"""Who has not left keeps its units: who has them next is placed elsewhere, or begins later."""

from datetime import timedelta
from fractions import Fraction

import pytest
from test_ending import bound, stands
from test_holder_overrun import ENDING, Telling, key, place

from apportion.nodes.service import KEPT
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
BOUND, FREE = {"state": "bound"}, {"state": "released"}


async def nodes_of(world, *names, gpus=1, layout=None, pool=None):
    nodes = Telling(world, await world.pool(pool or pool_of("H100")))
    await nodes.join(*names, gpus=gpus, layout=layout)
    return nodes


@pytest.fixture
async def whole(world):
    return await nodes_of(world, "n1")


async def told(world, view, kinds="delayed|moved|started|failed|placed|ended"):
    rows = await world.rows(
        "SELECT type, data, before, after FROM events WHERE subject = %s AND type ~ %s ORDER BY id",
        view.id,
        f"^reservation.({kinds})$",
    )
    return [(row["type"].removeprefix("reservation."), row) for row in rows]


async def kinds(world, view):
    return [kind for kind, _ in await told(world, view)]


async def asked(nodes, name="n1"):
    spec = await nodes.spec(name)
    return {each["reservation_id"] for each in spec.units["devices"]["assignments"]}


async def one_after_the_other(nodes, **later):
    """Give who has the only GPU for an hour, and whoever has it next."""
    held = await bound(nodes, duration="1h")
    after = await place(nodes, **{"start": MONDAY + HOUR, "duration": "1h", **later})
    assert after.state == "placed"
    return held, after


# -- elsewhere -----------------------------------------------------------------------------------


async def test_the_next_one_begins_elsewhere_at_once_where_there_is_room(world):
    nodes = await nodes_of(world, "n1", gpus=2)
    held, beside = await place(nodes, duration="1h"), await place(nodes, duration="2h")
    after = await place(nodes, start=MONDAY + HOUR, duration="1h")
    assert after.bookings[0].gpu_id == held.bookings[0].gpu_id
    await nodes.say(**{key(held): BOUND, key(beside): BOUND})
    await world.tick(minutes=30)
    await world.release(beside)
    await nodes.say(**{key(held): BOUND, key(beside): FREE})
    await world.tick(minutes=30)
    view = await world.get(after)
    assert (view.state, view.start, view.end) == ("placed", MONDAY + HOUR, MONDAY + 2 * HOUR)
    assert view.bookings[0].gpu_id == beside.bookings[0].gpu_id
    assert await asked(nodes) == {after.id}
    assert await kinds(world, after) == ["placed", "delayed", "moved"]
    [kept] = (await world.get(held)).bookings
    assert kept.held_until == world.clock() + KEPT
    await nodes.say(**{key(held): ENDING, key(after): BOUND})
    await world.tick(seconds=1)
    assert (await world.get(after)).state == "active"


async def test_it_comes_before_those_who_only_wait_for_that_room(world):
    nodes = await nodes_of(world, "n1", gpus=2, pool=pool_of("H100", reserveAfter="0s"))
    held, beside = await place(nodes, duration="1h"), await place(nodes, duration="2h")
    after = await place(nodes, start=MONDAY + HOUR, duration="1h")
    waits = await place(nodes, duration="30m")
    assert waits.state == "pending"
    await nodes.say(**{key(held): BOUND, key(beside): BOUND})
    world.clock.advance(minutes=59)
    await world.reservations.release(world.caller, beside.id)
    await nodes.say(**{key(held): BOUND, key(beside): FREE})
    await world.tick(minutes=1)
    assert (await world.get(after)).state == "placed"
    assert (await world.get(after)).start == world.clock()
    assert (await world.get(waits)).state == "pending"


async def test_it_may_go_into_another_of_its_pools_with_its_quota(world):
    nodes = await nodes_of(world, "n1")
    other = Telling(world, await world.pool(pool_of("H100", name="other")))
    await other.join("n9", gpus=1, layout=None)
    held = await bound(nodes, duration="1h")
    blocker = await world.create(ask(other.pool.id, device(), duration="2h"))
    request = ask([nodes.pool.id, other.pool.id], device(), start=MONDAY + HOUR, duration="1h")
    after = await world.create(request)
    assert after.pool_id == nodes.pool.id
    await world.release(blocker)
    await world.tick(hours=1)
    view = await world.get(after)
    assert (view.pool_id, view.start) == (other.pool.id, MONDAY + HOUR)
    assert await world.used(nodes.pool) == {"gpu": 1}, "of who is still there"
    assert await world.used(other.pool) == {"gpu": 1}
    assert (await world.get(held)).state == "ending"


# -- put off -------------------------------------------------------------------------------------


async def test_without_room_it_is_put_off_and_begins_a_tick_after_the_other_has_left(whole):
    world = whole.world
    held, after = await one_after_the_other(whole)
    before = (await whole.spec("n1")).generation
    await world.tick(hours=1)
    assert (await whole.spec("n1")).generation == before + 1, "one goes, and nobody comes"
    view = await world.get(after)
    assert (view.state, view.reason["code"]) == ("placed", "blocked_by_overrun")
    assert (view.start, view.end) == (MONDAY + HOUR + KEPT, MONDAY + 2 * HOUR)
    assert view.delayed_from == MONDAY + HOUR
    assert view.bookings[0].allocation is None
    assert await asked(whole) == set()
    assert (await world.get(held)).bookings[0].held_until == MONDAY + HOUR + KEPT
    await world.tick(seconds=20)
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert (view.start, view.end) == (MONDAY + HOUR + 21 * SECOND, MONDAY + 2 * HOUR)
    assert await asked(whole) == {after.id}
    await whole.say(**{key(after): BOUND})
    await world.tick(seconds=1)
    assert await stands(world, after) == ("active", "started")
    assert (await world.get(after)).delayed_from == MONDAY + HOUR
    assert await kinds(world, after) == ["placed", "delayed", "moved", "started"]
    await world.tick(hours=1)
    # To the end of its own window, and none of it twice.
    assert await world.gpu_hours() == 2 - Fraction(21, 3600)


async def test_it_says_since_when_until_when_at_least_where_and_what_helps(whole):
    world = whole.world
    held, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    await world.tick(minutes=3)
    found = await world.reservations.explain(world.caller, after.id)
    reason = found.reservation.reason
    assert reason["since"] == "2026-03-02T10:00:00Z"
    assert reason["until"] == "2026-03-02T10:05:00Z"
    assert (reason["on"], reason["gpu_id"]) == ("n1", "GPU-n1-0")
    assert (reason["allocation_id"], reason["blocked"]) == (f"{after.id}.0", 1)
    assert reason["held_by"] == held.id
    assert "release it" in reason["hint"]
    assert [each.reason["code"] for each in found.history] == ["blocked_by_overrun"]
    [(_, event)] = [each for each in await told(world, after) if each[0] == "delayed"]
    assert event["data"]["start"] == event["after"]["start"] == "2026-03-02T10:02:00Z"
    assert event["before"] == {"start": "2026-03-02T10:00:00Z"}
    assert event["data"]["reason"]["code"] == "blocked_by_overrun"


async def test_it_is_told_once_however_long_it_is_put_off(whole):
    world = whole.world
    _, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    for _ in range(40):
        await world.tick(minutes=1)
        view = await world.get(after)
        assert world.clock() < view.start <= world.clock() + KEPT
    assert await kinds(world, after) == ["placed", "delayed"]


async def test_nothing_is_said_of_another_tenant_that_does_not_leave(world):
    nodes = await nodes_of(world, "n1")
    await world.tenant("acme")
    held = await bound(nodes, duration="1h")
    after = await place(nodes, start=MONDAY + HOUR, duration="1h")
    await world.rows("UPDATE bookings SET tenant_id = 'acme' WHERE reservation_id = %s", held.id)
    await world.tick(hours=1)
    text = str((await world.get(after)).reason) + str(await told(world, after))
    assert "blocked_by_overrun" in text
    assert held.id not in text
    assert "acme" not in text
    await world.rows("UPDATE bookings SET tenant_id = 'root' WHERE reservation_id = %s", held.id)


async def test_one_whose_whole_window_passes_fails_unbilled_and_a_third_waits_on(world):
    whole = await nodes_of(world, "n1", pool=pool_of("H100", reserveAfter="0s"))
    held, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    third = await place(whole, duration="1h")
    assert third.state == "pending"
    for _ in range(59):
        await world.tick(minutes=1)
    assert await stands(world, after) == ("placed", "blocked_by_overrun")
    await world.tick(minutes=1)
    view = await world.get(after)
    assert await stands(world, after) == ("failed", "blocked_by_overrun")
    assert view.reason["since"] == "2026-03-02T10:00:00Z"
    assert await kinds(world, after) == ["placed", "delayed", "failed"]
    assert await stands(world, held) == ("ending", "expired")
    assert (await world.get(held)).bookings[0].held_until == world.clock() + KEPT
    assert (await world.get(third)).state == "pending"
    assert await world.used(whole.pool) == {"gpu": 1}
    assert await world.gpu_hours() == 1
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert (await world.get(third)).state == "placed"


async def test_one_that_is_as_short_as_the_others_leaving_still_gets_the_rest(whole):
    world = whole.world
    held, after = await one_after_the_other(whole, duration="30s")
    await world.tick(hours=1)
    assert (await world.get(after)).start < MONDAY + HOUR + 30 * SECOND
    await world.tick(seconds=10)
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert view.start == MONDAY + HOUR + 11 * SECOND
    assert view.end == MONDAY + HOUR + 30 * SECOND
    assert await asked(whole) == {after.id}


async def test_one_that_can_be_given_up_is_cancelled_and_charged_to_nobody(whole):
    world = whole.world
    held, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    assert (await world.release(after)).state == "ended"
    assert await stands(world, after) == ("ended", "cancelled")
    await world.tick(minutes=3)
    assert (await world.get(held)).bookings[0].held_until > world.clock()
    assert await world.used(whole.pool) == {"gpu": 1}
    assert await world.gpu_hours() == 1


async def test_one_that_is_put_off_can_be_kept_longer_and_begins_for_as_long(whole):
    world = whole.world
    held, after = await one_after_the_other(whole)
    await world.tick(hours=1)
    later = ReservationUpdate(end=(MONDAY + 4 * HOUR).isoformat())
    await world.reservations.update(world.caller, after.id, later)
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert (view.start, view.end) == (MONDAY + HOUR + SECOND, MONDAY + 4 * HOUR)


async def test_one_that_begins_while_the_other_is_kept_is_put_off_when_it_begins_not_before(whole):
    world = whole.world
    held = await bound(whole, duration="1h")
    after = await place(whole, start=MONDAY + HOUR + 90 * SECOND, duration="1h")
    await world.tick(hours=1)
    await world.tick(seconds=80)
    assert (await world.get(after)).start == after.start
    assert (await world.get(held)).bookings[0].held_until == after.start
    await world.tick(seconds=10)
    assert (await world.get(after)).start == world.clock() + KEPT
    assert (await world.get(after)).delayed_from == after.start


async def test_where_the_other_leaves_in_time_nothing_is_put_off(whole):
    world = whole.world
    held = await bound(whole, duration="1h")
    after = await place(whole, start=MONDAY + HOUR + 30 * SECOND, duration="1h")
    await world.tick(hours=1)
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=30)
    assert await asked(whole) == {after.id}
    assert await kinds(world, after) == ["placed"]
    assert (await world.get(after)).delayed_from is None


async def test_a_gap_for_cleaning_up_counts_from_the_end_and_not_from_the_leaving(world):
    pool = pool_of("H100", window={"gap": "10m"})
    nodes = await nodes_of(world, "n1", pool=pool)
    held = await bound(nodes, duration="1h")
    after = await place(nodes, start=MONDAY + HOUR + 10 * MINUTE, duration="1h")
    await world.tick(hours=1)
    await world.tick(minutes=10)
    assert (await world.get(after)).start == world.clock() + KEPT
    await nodes.say(**{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert view.start == world.clock()
    assert view.bookings[0].held_until == view.end + 10 * MINUTE


async def test_one_without_an_end_is_put_off_as_well(world):
    nodes = await nodes_of(world, "n1", pool=pool_of("H100", openEnded=True))
    held = await bound(nodes, duration="1h")
    after = await world.create(
        ask(nodes.pool.id, device(), start=MONDAY + HOUR, open_ended=True, duration=None)
    )
    assert after.state == "placed"
    await world.tick(hours=1)
    view = await world.get(after)
    assert (view.start, view.end) == (MONDAY + HOUR + KEPT, None)
    await nodes.say(**{key(held): FREE})
    await world.tick(seconds=1)
    view = await world.get(after)
    assert (view.start, view.end) == (world.clock(), None)
