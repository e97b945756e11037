"""After each holder a pool keeps a gap for cleaning up: nobody has it, and nobody pays for it."""

from datetime import UTC, datetime, timedelta

import pytest

from apportion.errors import ConflictError
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
GAP = timedelta(minutes=10)


@pytest.fixture
async def pool(world):
    # Nobody has a start reserved behind the gap: what is given back is looked for when it is over.
    request = pool_of("H100", reserveAfter="0s", window={"gap": "10m"})
    return await world.pool(request, inventory("n1", gpu("H100", 0)))


def held(view):
    return [each.held_until for each in view.bookings]


async def test_others_get_a_gpu_only_when_the_gap_is_over(world, pool):
    view = await world.create(ask(pool.id, device(), duration="1h"))
    assert (view.end, held(view)) == (MONDAY + HOUR, [MONDAY + HOUR + GAP])
    too_soon = MONDAY + HOUR + GAP - timedelta(microseconds=1)
    waiting = await world.create(ask(pool.id, device(), start=too_soon, duration="1h"))
    assert waiting.state == "pending"
    following = await world.create(ask(pool.id, device(), start=MONDAY + HOUR + GAP, duration="1h"))
    assert following.state == "placed"
    # A short one before it must leave its own gap, too.
    await world.release(view)
    world.clock.advance(minutes=30)
    for minutes, state in ((31, "pending"), (30, "active")):
        short = await world.create(ask(pool.id, device(), duration=f"{minutes}m"))
        assert short.state == state
    assert await world.drift() == {}


async def test_the_gap_is_billed_to_nobody_and_charged_to_no_quota(world, pool):
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await world.tick(hours=1)
    assert (await world.get(view)).state == "ended"
    assert await world.used(pool) == {}
    await world.tick(hours=1)
    assert await world.gpu_hours() == 1


async def test_what_is_given_back_early_is_cleaned_up_before_who_waits_gets_it(world, pool):
    view = await world.create(ask(pool.id, device(), duration="4h"))
    waiting = await world.create(ask(pool.id, device(), duration="1h"))
    world.clock.advance(hours=1)
    released = await world.release(view)
    assert (released.end, held(released)) == (MONDAY + HOUR, [MONDAY + HOUR + GAP])
    assert (await world.get(waiting)).state == "pending"
    await world.tick(minutes=9)
    # Releasing it again while it is cleaned up changes nothing.
    assert held(await world.release(view)) == held(released)
    assert (await world.get(waiting)).state == "pending"
    await world.tick(minutes=1)
    assert (await world.get(waiting)).start == MONDAY + HOUR + GAP
    assert await world.drift() == {}


async def test_what_has_not_begun_leaves_no_gap(world, pool):
    view = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    await world.release(view)
    assert (await world.create(ask(pool.id, device(), duration="3h"))).state == "active"


async def test_another_end_has_the_gap_after_it(world, pool):
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await world.create(ask(pool.id, device(), start=MONDAY + 4 * HOUR, duration="1h"))
    with pytest.raises(ConflictError) as caught:
        await world.reservations.update(world.caller, view.id, ReservationUpdate(duration="4h"))
    assert caught.value.details["free_until"] == "2026-03-02T12:50:00Z"
    for minutes in (230, 60):
        end = MONDAY + timedelta(minutes=minutes)
        changed = await world.reservations.update(
            world.caller, view.id, ReservationUpdate(end=end.isoformat())
        )
        assert (changed.end, held(changed)) == (end, [end + GAP])
    assert await world.drift() == {}


async def test_a_gap_ends_with_the_calendar(world, pool):
    last = datetime.max.replace(tzinfo=UTC)
    near = last - timedelta(minutes=5)
    view = await world.create(ask(pool.id, device(), start=MONDAY, end=near))
    assert held(view) == [last]
    later = near + timedelta(minutes=1)
    changed = await world.reservations.update(
        world.caller, view.id, ReservationUpdate(end=later.isoformat())
    )
    assert held(changed) == [last]
    await world.release(view)
