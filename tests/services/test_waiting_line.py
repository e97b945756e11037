"""Who waits is tried by the offer's priority, then by age, and only when something changed."""

from contextlib import asynccontextmanager, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools_acting import offer
from services_world import World

from apportion.pools.schemas import QuotaSet
from apportion.pools.service import set_quota
from apportion.reservations import placer
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool, transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


async def exclusive(world, gpus=1, name="pool", **policy):
    machine = inventory(name, *(gpu("H100", index, node=name) for index in range(gpus)))
    return await world.pool(pool_of("H100", name=name, **policy), machine)


@contextmanager
def tried(world):
    """Note which reservations are given to the placer, in order."""
    placer = world.reservations.placer
    place, seen = placer.place, []

    async def noting(drafts, *rest):
        seen.extend(draft.id for draft in drafts)
        return await place(drafts, *rest)

    placer.place = noting
    try:
        yield seen
    finally:
        placer.place = place


async def quiet(world):
    """Tick until nothing that has happened so far is news."""
    for _ in range(3):
        await world.tick(seconds=1)


async def state(world, caller, view):
    return (await world.reservations.get(caller, view.id)).state


async def test_the_offer_with_the_higher_priority_is_served_before_those_that_came_earlier(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    views = {}
    for name, priority in {"low": -5, "high": 7, "none": 0}.items():
        caller = await world.tenant(name)
        await offer(world, pool, caller, {"gpu": 9}, priority=priority)
        world.clock.advance(seconds=1)
        views[name] = caller, await world.reservations.create(caller, ask(pool.id, device()))
    world.clock.advance(seconds=1)
    views["owner"] = world.caller, await world.create(ask(pool.id, device()))
    served, holder = [], world.caller
    while views:
        await world.reservations.release(holder, held.id)
        await world.reservations.lifecycle.retry_pending()
        [now] = [name for name, each in views.items() if await state(world, *each) == "active"]
        holder, held = views.pop(now)
        served.append(now)
    # The owner's own work stands as an offer of priority 0 would, by age.
    assert served == ["high", "none", "owner", "low"]


async def test_a_changed_priority_counts_at_the_next_try(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    first, second = await world.tenant("first"), await world.tenant("second")
    await offer(world, pool, first, {"gpu": 9})
    await offer(world, pool, second, {"gpu": 9})
    early = await world.reservations.create(first, ask(pool.id, device()))
    world.clock.advance(seconds=1)
    late = await world.reservations.create(second, ask(pool.id, device()))
    await quiet(world)
    await offer(world, pool, second, {"gpu": 9}, priority=1)
    await world.release(held)
    assert await state(world, first, early) == "pending"
    assert await state(world, second, late) == "active"


async def test_of_several_offers_the_nearest_counts_in_a_pool_and_the_highest_among_pools(world):
    one, two = await exclusive(world, name="one"), await exclusive(world, name="two")
    lab = await world.tenant("lab", above=(await world.tenant("acme")).tenant_id)
    acme = await world.tenant("acme2")
    await offer(world, one, acme, {"gpu": 9}, priority=3)
    await offer(world, one, lab, {"gpu": 9}, priority=-2)
    await offer(world, two, lab, {"gpu": 9}, priority=5)
    for pool in (one, two):
        await world.create(ask(pool.id, device(), duration="9h"))
    view = await world.reservations.create(lab, ask([one.id, two.id], device()))
    where = "SELECT priority FROM reservations WHERE id = %s"
    assert await world.rows(where, view.id) == [{"priority": 5}]
    await offer(world, two, lab, {"gpu": 9}, priority=-9)
    await world.tick(seconds=1)
    assert await world.rows(where, view.id) == [{"priority": -2}]


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    offers=st.lists(st.integers(-3, 3), min_size=2, max_size=4),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=14),
    changed=st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), max_size=3),
    page=st.integers(1, 4),
)
async def test_everybody_is_served_in_the_order_that_a_sort_gives(
    template, offers, asked, changed, page
):
    """Whatever the size of a page, and whenever the offers changed."""
    async with template.clone() as dsn, open_pool(dsn) as db:
        world = World(db)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("apportion.reservations.line.PAGE", page)
            await _serve(world, offers, asked, changed)


async def _serve(world, offers, asked, changed):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    callers = [await world.tenant(f"t{at}") for at in range(len(offers))]
    priority = dict(enumerate(offers))
    for at, caller in enumerate(callers):
        await offer(world, pool, caller, {"gpu": 99}, priority=offers[at])
    waiting = []
    for of, later in asked:
        at = of % len(offers)
        world.clock.advance(seconds=later)
        view = await world.reservations.create(callers[at], ask(pool.id, device()))
        waiting.append((at, view))
    await quiet(world)
    for of, new in changed:
        at = of % len(offers)
        priority[at] = new
        await offer(world, pool, callers[at], {"gpu": 99}, priority=new)
    expected = sorted(
        waiting, key=lambda each: (-priority[each[0]], each[1].created_at, each[1].id)
    )
    caller, lifecycle = world.caller, world.reservations.lifecycle
    for at, view in expected:
        await world.reservations.release(caller, held.id)
        await lifecycle.retry_pending()
        assert await state(world, callers[at], view) == "active"
        caller, held = callers[at], view


async def test_where_nothing_changed_nobody_is_tried(world):
    pool = await exclusive(world)
    await world.create(ask(pool.id, device(), duration="9h"))
    views = [await world.create(ask(pool.id, device())) for _ in range(3)]
    await quiet(world)
    with tried(world) as seen:
        await quiet(world)
        assert seen == []
        await world.reservations.release(world.caller, views[1].id)
        await quiet(world)
    assert seen == []  # it waited: nothing was given back


async def test_only_those_are_tried_that_wait_for_the_pool_where_something_ended(world):
    pools = [await exclusive(world, name=f"pool-{at}") for at in range(3)]
    held = [await world.create(ask(pool.id, device(), duration="9h")) for pool in pools]
    views = [await world.create(ask(pool.id, device())) for pool in pools]
    world.clock.advance(seconds=1)
    both = await world.create(ask([pools[0].id, pools[1].id], device()))
    await quiet(world)
    with tried(world) as seen:
        await world.release(held[1])
    assert seen == [views[1].id, both.id]


async def test_what_only_the_fleet_can_mend_is_not_tried_when_something_ends(world):
    pool = await exclusive(world, gpus=2)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    large = await world.create(ask(pool.id, device(count=3)))
    assert large.reason["code"] == "larger_than_any_node"
    await quiet(world)
    with tried(world) as seen:
        await world.release(held)
        assert seen == []
        machine = inventory("more", *(gpu("H100", index, node="more") for index in range(4)))
        await world.report(pool, machine)
        await world.tick(seconds=1)
    assert seen == [large.id]
    assert (await world.get(large)).state == "active"


async def test_what_waits_for_a_quota_is_tried_when_that_one_covers_more_and_not_before(world):
    pool = await exclusive(world, gpus=4)
    acme = await world.tenant("acme")
    await offer(world, pool, acme, {"gpu": 9})
    held = await world.create(ask(pool.id, device(count=4), duration="9h"))
    waits = await world.create(ask(pool.id, device()))
    await world.quota(pool, "gpu", 0)
    await world.release(held)
    # Now there is room, and the quota is what is in the way.
    assert (await world.get(waits)).reason["code"] == "quota_exceeded"
    await quiet(world)
    with tried(world) as seen:
        other = await world.reservations.create(acme, ask(pool.id, device(), duration="9h"))
        await world.reservations.release(acme, other.id)
        await quiet(world)
        assert other.state == "active"
        assert seen == [other.id]
        await world.quota(pool, "gpu", 1)
        await world.tick(seconds=1)
        assert seen == [other.id, waits.id]
    assert (await world.get(waits)).state == "active"


async def test_what_waits_for_a_quota_gets_what_ends_under_it(world):
    one, two = await exclusive(world, name="one", gpus=2), await exclusive(world, name="two")
    await world.quota(one, "gpu", 1)
    held = await world.create(ask(one.id, device(), duration="2h"))
    beside = await world.create(ask(two.id, device(), duration="9h"))
    waits = await world.create(ask([one.id, two.id], device()))
    assert waits.reason["quota"] == [{"pool_id": one.id, "resource": "gpu"}]
    await quiet(world)
    await world.tick(hours=2)
    assert (await world.get(held)).state == "ended"
    assert (await world.get(waits)).pool_id == one.id
    assert (await world.get(beside)).state == "active"


async def test_what_was_given_back_while_it_was_decided_is_not_missed(world, monkeypatch):
    """Another process sees the end before it can see who began to wait beside it, and goes on."""
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    other = Reservations(world.runtime)
    await other.lifecycle.advance()
    inner = placer.write

    async def slow(connection, decisions, now):
        monkeypatch.setattr(placer, "write", inner)
        lost = await inner(connection, decisions, now)
        # Decided, not committed: it ends elsewhere, and the other process is told of it.
        await Reservations(world.runtime).release(world.caller, held.id)
        await other.lifecycle.advance()
        return lost

    monkeypatch.setattr(placer, "write", slow)
    view = await world.create(ask(pool.id, device()))
    assert view.state == "pending"
    # The process that decided dies here; nothing else happens.
    await other.lifecycle.advance()
    assert (await world.get(view)).state == "active"


async def test_a_process_that_never_placed_in_a_pool_takes_over_what_waits_for_it(world):
    other = Reservations(world.runtime)
    await other.lifecycle.advance()
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    view = await world.create(ask(pool.id, device()))
    await other.lifecycle.advance()
    await Reservations(world.runtime).release(world.caller, held.id)
    await other.lifecycle.advance()
    assert (await world.get(view)).state == "active"


async def test_a_try_that_fails_is_made_up_for(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="9h"))
    view = await world.create(ask(pool.id, device()))
    await quiet(world)
    place = world.reservations.placer.place

    async def failing(drafts):
        raise ConnectionError

    world.reservations.placer.place = failing
    await world.reservations.release(world.caller, held.id)
    with pytest.raises(ConnectionError):
        await world.tick(seconds=1)
    world.reservations.placer.place = place
    await world.tick(seconds=1)
    assert (await world.get(view)).state == "active"


async def test_a_tick_goes_through_some_pages_and_the_next_ones_through_the_rest(
    world, monkeypatch
):
    monkeypatch.setattr("apportion.reservations.line.PAGE", 2)
    monkeypatch.setattr("apportion.reservations.line.PAGES", 1)
    pool = await exclusive(world, gpus=3)
    held = [await world.create(ask(pool.id, device(), duration="9h")) for _ in range(3)]
    large = []
    for _ in range(6):
        world.clock.advance(seconds=1)
        large.append(await world.create(ask(pool.id, device(count=2))))
    world.clock.advance(seconds=1)
    small = await world.create(ask(pool.id, device()))
    for _ in range(6):
        await quiet(world)
    lifecycle = world.reservations.lifecycle
    lifecycle.hint.clear()
    with tried(world) as seen:
        await world.release(held[0])
        assert seen == [each.id for each in large[:4]]
        assert lifecycle.hint.is_set()
        await lifecycle.retry_pending()
        assert seen == [each.id for each in large]
        await lifecycle.retry_pending()
        assert seen[-1] == small.id
    assert (await world.get(small)).state == "active"


# -- the story


async def test_each_change_of_the_reason_is_kept_and_counts_alone_are_none(world):
    pool = await exclusive(world, gpus=2)
    held = [await world.create(ask(pool.id, device(), duration="9h")) for _ in range(2)]
    view = await world.create(ask(pool.id, device(count=2)))
    story = "SELECT since, reason ->> 'code' AS code FROM reservation_reasons ORDER BY since"
    began = world.clock()
    await quiet(world)
    await world.release(held[0])
    await quiet(world)
    assert await world.rows(story) == [{"since": began, "code": "units_booked"}]
    await world.quota(pool, "gpu", 1)
    await quiet(world)
    await world.release(held[1])
    at = world.clock()
    await quiet(world)
    assert await world.rows(story) == [
        {"since": began, "code": "units_booked"},
        {"since": at, "code": "quota_exceeded"},
    ]
    reason = (await world.get(view)).reason
    assert reason["changes"] == 1
    assert reason["since"] == view.reason["since"]


async def test_a_long_story_keeps_its_beginning_and_its_end(world, monkeypatch):
    monkeypatch.setattr("apportion.reservations.rows.REASONS_KEPT", 4)
    one = await exclusive(world, name="one")
    two = await exclusive(world, name="two")
    acme = await world.tenant("acme")
    for each in (one, two):
        await offer(world, each, acme, {"gpu": 9})
        await world.create(ask(each.id, device(), duration="9h"))
    view = await world.reservations.create(acme, ask([one.id, two.id], device()))
    limits = [0, 9, 0, 9, 0, 9, 0]
    for limit in limits:
        world.clock.advance(seconds=1)
        request = QuotaSet(pool_id=one.id, tenant_id="acme", resource="gpu", max=limit)
        await set_quota(world.runtime, world.caller, request)
        await world.tick(seconds=1)
    kept = await world.rows("SELECT since, reason FROM reservation_reasons ORDER BY since")
    assert [each["reason"]["changes"] for each in kept] == [0, 5, 6, 7]
    reason = (await world.reservations.get(acme, view.id)).reason
    assert (reason["changes"], reason["since"]) == (7, view.reason["since"])


# -- many


@asynccontextmanager
async def on_one_connection(dsn):
    """Give a world whose every statement runs on one connection, so that its reads are counted."""
    async with open_pool(dsn, size=1) as db:
        yield World(db)


async def reads(world):
    """Return how many rows of reservations were read so far."""
    async with transaction(world.db) as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    [row] = await world.rows(
        "SELECT seq_tup_read + idx_tup_fetch AS count FROM pg_stat_user_tables"
        " WHERE relname = 'reservations'"
    )
    return row["count"]


async def crowd(world, copy_of, count):
    """Have many wait as one does that waits already."""
    await world.rows(
        "INSERT INTO reservations SELECT (jsonb_populate_record(reservations, jsonb_build_object("
        "'id', id || '-' || n, 'created_at', created_at + n * interval '1 millisecond'))).*"
        " FROM reservations, generate_series(1, %s::int) AS n WHERE id = %s",
        *(count, copy_of.id),
    )
    await world.rows("ANALYZE reservations")


async def test_a_tick_in_which_nothing_changed_reads_none_of_ten_thousand(dsn):
    async with on_one_connection(dsn) as world:
        pool = await exclusive(world, name="crowded")
        other = await exclusive(world, name="other")
        held = [await world.create(ask(each.id, device(), duration="9h")) for each in (pool, other)]
        view = await world.create(ask(pool.id, device()))
        beside = await world.create(ask(other.id, device()))
        await crowd(world, view, 10_000)
        for _ in range(12):
            await world.tick(seconds=1)
        before = await reads(world)
        for _ in range(5):
            assert await world.tick(seconds=1) == 0
        # What lives is looked at; of those that wait, none.
        assert await reads(world) <= before + 5 * 2 * len(held)
        with tried(world) as seen:
            await world.release(held[1])
        assert seen == [beside.id]
        with tried(world) as seen:
            await world.release(held[0])
            # A bounded part at a time, the first of all first.
            assert seen[0] == view.id
            assert len(seen) <= 3000
        assert (await world.get(view)).state == "active"
