"""Before a reservation ends its tenant is told, once for each end."""

from datetime import timedelta

import pytest

from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
SOON = (
    "SELECT subject, tenant_id, data FROM events WHERE type = 'reservation.ending_soon' ORDER BY id"
)


async def pool_with(world, **window):
    return await world.pool(pool_of("H100", window=window), inventory("n1", gpu("H100", 0)))


async def told(world):
    return [row["data"]["end"] for row in await world.rows(SOON)]


async def test_it_is_told_a_quarter_of_an_hour_before_and_not_again(world):
    pool = await pool_with(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await world.tick(minutes=44, seconds=59)
    assert await told(world) == []
    await world.tick(seconds=1)
    await world.tick(minutes=1)
    [event] = await world.rows(SOON)
    assert (event["subject"], event["tenant_id"]) == (view.id, "root")
    assert event["data"] == {"pool_id": pool.id, "end": "2026-03-02T10:00:00Z"}
    await world.tick(hours=1)
    assert len(await told(world)) == 1
    assert (await world.get(view)).state == "ended"


async def test_each_end_is_told_of_and_an_end_that_was_moved_away_is_not(world):
    pool = await pool_with(world, notice="10m")
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await world.tick(minutes=50)
    change = ReservationUpdate(duration="2h")
    await world.reservations.update(world.caller, view.id, change)
    await world.reservations.update(world.caller, view.id, change)
    await world.tick(minutes=59)
    assert await told(world) == ["2026-03-02T10:00:00Z"]
    await world.tick(minutes=1)
    assert await told(world) == ["2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z"]


async def test_a_missed_tick_is_made_up_for_unless_it_is_over(world):
    pool = await pool_with(world)
    await world.create(ask(pool.id, device(), duration="1h"))
    world.clock.advance(minutes=59)
    world.restart()
    await world.tick(seconds=1)
    assert len(await told(world)) == 1
    later = await world.create(ask(pool.id, device(), start=MONDAY + 2 * HOUR, duration="1h"))
    await world.tick(hours=5)
    assert (await world.get(later)).state == "ended"
    assert len(await told(world)) == 1


async def test_a_window_shorter_than_the_notice_is_told_of_at_its_start(world):
    pool = await pool_with(world)
    start = MONDAY + HOUR
    await world.create(ask(pool.id, device(), start=start, duration="5m"))
    await world.tick(minutes=59)
    assert await told(world) == []
    await world.tick(minutes=1)
    assert len(await told(world)) == 1


async def test_what_is_placed_after_waiting_is_told_of_too_and_what_was_released_is_not(world):
    pool = await pool_with(world)
    held = await world.create(ask(pool.id, device(), duration="1h"))
    await world.create(ask(pool.id, device(), duration="1h"))
    await world.release(held)
    await world.tick(minutes=45)
    assert await told(world) == ["2026-03-02T10:00:00Z"]


async def test_a_pool_may_tell_nobody(world):
    pool = await pool_with(world, notice="0s")
    await world.create(ask(pool.id, device(), duration="1h"))
    for _ in range(6):
        await world.tick(minutes=10)
    assert await told(world) == []
