"""A reserved start comes forward when its room is free sooner: never by asking again and again."""

import asyncio
from datetime import timedelta

import pytest
from services_world import world_on
from test_services_crash import Killer, rows_of
from test_waiting_reserved import exclusive

from apportion.reservations.placer import Placer
from apportion.reservations.schemas import ReservationUpdate
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


async def reserved_beside(world, hours=3, **policy):
    """Give a pool of four GPUs, who holds one of them, and a large one that has its start then."""
    pool = await exclusive(world, **policy)
    held = await world.create(ask(pool.id, device(), duration=f"{hours}h"))
    large = await world.create(ask(pool.id, device(count=4), duration="2h"))
    await world.tick(hours=1)
    large = await world.get(large)
    assert (large.state, large.start) == ("placed", held.end)
    return pool, held, large


async def told(world, large):
    rows = await world.rows("SELECT * FROM events WHERE subject = %s ORDER BY id", large.id)
    return [row for row in rows if row["type"] != "reservation.pending"]


async def test_a_reserved_start_comes_forward_when_its_room_is_free_sooner(world):
    pool, held, large = await reserved_beside(world)
    await world.tick(minutes=10)
    await world.release(held)
    view = await world.get(large)
    assert (view.state, view.start) == ("active", world.clock())
    assert view.end == world.clock() + 2 * HOUR
    assert (await world.used(pool))["gpu"] == 4
    placed, moved, started = await told(world, large)
    assert [placed["type"], moved["type"], started["type"]] == [
        "reservation.placed",
        "reservation.moved",
        "reservation.started",
    ]
    assert moved["data"]["start"] == "2026-03-02T10:10:00Z"
    assert moved["data"]["successor_id"] is None
    assert len(moved["before"]["bookings"]) == len(moved["after"]["bookings"]) == 4
    assert (started["before"], started["after"]) == ({"state": "placed"}, {"state": "active"})
    assert await world.tick(hours=2) == 1
    assert (await world.get(large)).state == "ended"


async def test_it_comes_forward_to_the_earliest_start_there_is_and_its_story_says_so(world):
    pool, held, large = await reserved_beside(world)
    other = await world.create(ask(pool.id, device(), duration="1h"))
    assert other.state == "active"
    await world.release(held)
    view = await world.get(large)
    assert (view.state, view.start) == ("placed", other.end)
    assert view.reason["code"] == "reserved_start"
    assert (
        "came forward from 2026-03-02T12:00:00Z to 2026-03-02T11:00:00Z" in view.reason["message"]
    )
    assert view.reason["reserved_at"] == "2026-03-02T10:00:00Z"
    story = (await world.reservations.explain(world.caller, large.id)).history
    assert [each.reason["code"] for each in story] == ["units_booked", "reserved_start"]
    await world.tick(hours=1)
    assert (await world.get(large)).state == "active"


async def test_who_is_before_it_in_the_line_has_the_first_choice(world):
    pool, held, large = await reserved_beside(world)
    urgent = await world.create(ask(pool.id, device(count=4), duration="90m"))
    await world.rows("UPDATE reservations SET priority = 5 WHERE id = %s", urgent.id)
    await world.release(held)
    assert (await world.get(urgent)).state == "active"
    # What the other leaves is no sooner than its own start, or it would be.
    assert (await world.get(large)).start == min(large.start, (await world.get(urgent)).end)


async def test_nobody_looks_for_a_sooner_start_where_nothing_has_changed(world, monkeypatch):
    pool, _held, large = await reserved_beside(world)
    await world.tick(seconds=1)
    looked = []
    forward = Placer.bring_forward

    async def counted(placer, drafts):
        looked.append([draft.id for draft in drafts])
        return await forward(placer, drafts)

    monkeypatch.setattr(Placer, "bring_forward", counted)
    for _ in range(5):
        await world.tick(seconds=1)
    assert looked == []
    # A new booking takes; it is when something is given back that a look is taken: one.
    small = await world.create(ask(pool.id, device(), duration="30m"))
    await world.tick(seconds=1)
    assert looked == []
    await world.release(small)
    for _ in range(5):
        await world.tick(seconds=1)
    assert looked == [[large.id]]
    assert (await world.get(large)).start == large.start


async def test_one_that_was_kept_longer_comes_forward_as_long_as_it_is_by_then(world):
    pool, held, large = await reserved_beside(world)
    await world.reservations.update(world.caller, large.id, ReservationUpdate(duration="5h"))
    await world.create(ask(pool.id, device(), start=large.start - HOUR, duration="1h"))
    await world.release(held)
    # Two hours would fit before what comes; five do not.
    assert (await world.get(large)).start == large.start
    assert (await world.get(large)).end == large.start + 5 * HOUR


async def test_quota_and_host_follow_it_into_another_pool(world):
    names = ("left", "right")
    limits = {"gpu": 4, "vcpu": 10, "gpuEquivalents": "unlimited"}
    pools = [
        await world.pool(
            pool_of("H100", name=name, quota=limits),
            inventory(name, *(gpu("H100", at, node=name) for at in range(2)), cpus=8),
        )
        for name in names
    ]
    held = [
        await world.create(ask(pool.id, device(), vcpu=4, duration=f"{2 + at}h"))
        for at, pool in enumerate(pools)
    ]
    request = ask([pool.id for pool in pools], device(count=2), vcpu=6, duration="1h")
    large = await world.create(request)
    await world.tick(hours=1)
    large = await world.get(large)
    assert (large.pool_id, large.start) == (pools[0].id, held[0].end)
    assert await world.used(pools[0]) == {"gpu": 3, "vcpu": 10}
    await world.release(held[1])
    view = await world.get(large)
    assert (view.state, view.pool_id, view.start) == ("active", pools[1].id, world.clock())
    assert await world.used(pools[0]) == {"gpu": 1, "vcpu": 4}
    assert await world.used(pools[1]) == {"gpu": 2, "vcpu": 6}
    query = "SELECT node_id FROM host_bookings WHERE reservation_id = %s AND voided_at IS NULL"
    assert await world.rows(query, large.id) == [{"node_id": 2}]


async def test_many_servers_that_see_the_same_news_move_it_once(dsn):
    async with open_pool(dsn, size=10) as db, world_on(db) as world:
        pool, held, large = await reserved_beside(world)
        services = [Reservations(world.runtime) for _ in range(6)]
        for each in services:
            await each.lifecycle.advance()
        await services[0].release(world.caller, held.id)
        await asyncio.gather(*(each.lifecycle.retry_pending() for each in services))
        assert (await world.get(large)).state == "active"
        kinds = [row["type"] for row in await told(world, large)]
        assert kinds.count("reservation.moved") == 1
        assert await world.used(pool) == {"gpu": 4}


async def test_a_server_that_dies_while_it_moves_one_leaves_it_where_it_was(world, killer):
    _pool, held, large = await reserved_beside(world)
    await world.reservations.release(world.caller, held.id)
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.drift() == {}

    died, moved = await killer.at_each_statement(world.reservations.lifecycle.retry_pending, check)
    assert moved == 1
    assert died > 12
    assert (await world.get(large)).state == "active"
