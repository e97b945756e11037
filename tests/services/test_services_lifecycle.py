"""A reservation begins and ends by the clock, also across restarts, and is billed exactly."""

from datetime import timedelta
from fractions import Fraction
from itertools import pairwise

import pytest

from apportion.errors import InvalidInputError, NotFoundError
from apportion.events.service import list_events
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def exclusive(world, gpus: int = 1):
    return await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(gpus)))
    )


async def quarter(world):
    return await world.pool(
        pool_of("H100", "timeslice", replicas=4), inventory("n1", gpu("H100", 0))
    )


async def story(world, reservation):
    events = await list_events(world.runtime, world.caller, subject=reservation.id)
    return [event.type.removeprefix("reservation.") for event in events]


async def test_the_clock_begins_and_ends_a_window_and_each_change_is_an_event(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    assert view.state == "placed"
    await world.tick(minutes=59)
    assert (await world.get(view)).state == "placed"
    await world.tick(minutes=1)
    assert (await world.get(view)).state == "active"
    await world.tick(minutes=59, seconds=59)
    assert (await world.get(view)).state == "active"
    await world.tick(seconds=1)
    ended = await world.get(view)
    assert (ended.state, ended.reason["code"], ended.end) == ("ended", "expired", MONDAY + 2 * HOUR)
    assert await story(world, view) == ["placed", "started", "ending_soon", "ended"]
    assert await world.tick(hours=1) == 0


async def test_a_jump_over_several_windows_settles_each_once(world):
    pool = await exclusive(world)
    views = [
        await world.create(ask(pool.id, device(), start=MONDAY + n * HOUR, duration="1h"))
        for n in range(1, 5)
    ]
    waiting = await world.create(ask(pool.id, device(), duration="4h"))
    assert waiting.state == "pending"
    world.clock.advance(hours=3, minutes=30)
    world.restart()
    await world.tick()
    states = [(await world.get(view)).state for view in views]
    assert states == ["ended", "ended", "active", "placed"]
    await world.tick(hours=2)
    assert await world.used(pool) == {"gpu": 1}
    # It had waited so long by then that its start was reserved, behind the last of the others.
    assert (await world.get(waiting)).start == MONDAY + 5 * HOUR
    assert await world.gpu_hours() == Fraction("4.5")


async def test_a_window_that_passed_while_the_server_was_down_is_billed_as_booked(world):
    pool = await quarter(world)
    view = await world.create(
        ask(
            pool.id,
            device("gpu.slot"),
            start="2026-03-02T09:59:50Z",
            end="2026-03-02T11:00:20Z",
        )
    )
    await world.tick(minutes=70)
    assert (await world.get(view)).state == "active"
    world.clock.set("2026-03-02T15:00:00Z")
    world.restart()
    await world.tick()
    assert (await world.get(view)).state == "ended"
    edges = [MONDAY + n * HOUR for n in range(5)]
    hours = [await world.gpu_hours(start, end) for start, end in pairwise(edges)]
    assert [hour * 3600 * 4 for hour in hours] == [10, 3600, 20, 0]
    assert sum(hours) * 3600 == Fraction(3630, 4) == Fraction("907.5")
    assert await world.gpu_hours(MONDAY, edges[-1]) == sum(hours)


async def test_the_next_window_begins_when_this_one_ends(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    piece = device("gpu.mig", profile="3g.40gb")
    first = await world.create(ask(pool.id, piece, start=MONDAY + HOUR, end=MONDAY + 3 * HOUR))
    second = await world.create(ask(pool.id, piece, start=MONDAY + 3 * HOUR, end=MONDAY + 5 * HOUR))
    assert {first.state, second.state} == {"placed"}
    overlapping = await world.create(
        ask(
            pool.id,
            piece,
            start=MONDAY + 3 * HOUR - timedelta(microseconds=1),
            end=MONDAY + 4 * HOUR,
        )
    )
    assert overlapping.state == "pending"
    await world.tick(hours=3)
    states = [(await world.get(view)).state for view in (first, second)]
    assert states == ["ended", "active"]


async def test_an_early_release_bills_to_the_microsecond(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device(), duration="2h"))
    world.clock.advance(minutes=10, microseconds=1)
    ended = await world.release(view)
    assert (ended.state, ended.reason["code"], ended.end) == ("ended", "released", world.clock())
    world.clock.advance(hours=5)
    assert await world.gpu_hours() == Fraction(600_000_001, 3_600_000_000)
    assert (await world.create(ask(pool.id, device()))).state == "active"


async def test_what_is_released_before_it_begins_costs_nothing_and_holds_nothing(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    assert (await world.create(ask(pool.id, device(), duration="90m"))).state == "pending"
    ended = await world.release(view)
    assert (ended.state, ended.reason["code"], ended.bookings) == ("ended", "cancelled", [])
    await world.tick(hours=3)
    assert await world.gpu_hours() == Fraction(3, 2)
    assert await story(world, view) == ["placed", "ended"]


async def test_a_pending_one_is_cancelled(world):
    pool = await exclusive(world)
    await world.create(ask(pool.id, device(), duration="5h"))
    view = await world.create(ask(pool.id, device()))
    ended = await world.release(view)
    assert (ended.state, ended.reason["code"]) == ("ended", "cancelled")
    assert await story(world, view) == ["pending", "ended"]


async def test_a_second_release_changes_nothing(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device()))
    world.clock.advance(minutes=5)
    first = await world.release(view)
    world.clock.advance(minutes=5)
    assert await world.release(view) == first
    assert await story(world, view) == ["placed", "ended"]


async def test_a_release_after_the_end_says_that_the_clock_was_first(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device()))
    world.clock.advance(hours=2)
    ended = await world.release(view)
    assert (ended.reason["code"], ended.end) == ("expired", MONDAY + HOUR)
    assert await world.gpu_hours() == 1


async def test_somebody_elses_reservation_is_not_found_by_any_door(world):
    pool = await exclusive(world)
    view = await world.create(ask(pool.id, device()))
    stranger = await world.tenant("acme")
    for act in (world.reservations.get, world.reservations.release):
        with pytest.raises(NotFoundError):
            await act(stranger, view.id)
    assert await world.reservations.get_many(stranger, [view.id]) == {}
    assert await world.reservations.list(stranger) == []
    with pytest.raises(NotFoundError, match="no such pool"):
        await world.reservations.create(stranger, ask(pool.id, device()))
    assert (await world.get(view)).state == "active"


async def test_four_fifths_of_nothing_yet_is_used(world):
    pool = await exclusive(world)
    await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    assert await world.gpu_hours() == 0
    assert await world.gpu_hours(MONDAY, MONDAY + 10 * HOUR) == 0
    world.clock.advance(minutes=75)
    assert await world.gpu_hours(MONDAY, MONDAY + 10 * HOUR) == Fraction(1, 4)
    assert await world.gpu_hours(MONDAY + 5 * HOUR, MONDAY + 6 * HOUR) == 0
    with pytest.raises(InvalidInputError):
        await world.gpu_hours(MONDAY, MONDAY)


async def test_both_halves_of_an_h100_leave_a_seventh_to_the_pool(world):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@0", "3g.40gb@4"))
    )
    await world.create(ask(pool.id, device("gpu.mig", count=2)))
    await world.tick(hours=1)
    assert await world.gpu_hours() == Fraction(6, 7)
