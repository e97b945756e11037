"""Pools go: what runs on them runs on, what waits for them fails, and nothing new begins."""

from datetime import timedelta

import pytest
from pools_acting import archive, limits, offer, unoffer, update

from apportion.errors import NotFoundError
from apportion.events.service import list_events
from apportion.pools.service import find_all_records
from apportion.reservations import creating
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(4)]
    return await world.pool(pool_of("H100"), inventory("n1", *gpus))


async def another(world, name, gpus=1):
    machine = inventory(name, *(gpu("H100", index, node=name) for index in range(gpus)))
    return await world.pool(pool_of("H100", name=name), machine)


async def view_of(world, caller, reservation):
    return await world.reservations.get(caller, reservation.id)


async def story(world, caller, reservation):
    events = await list_events(world.runtime, caller, subject=reservation.id)
    return [event.type.removeprefix("reservation.") for event in events]


async def states_after_a_tick(world, *pairs):
    await world.tick(seconds=1)
    return [(await view_of(world, caller, each)).state for caller, each in pairs]


async def busy(world, pool, acme):
    """Offer a pool; give one that runs, one that is to run, and one that waits, of the tenant."""
    await offer(world, pool, acme, {"gpu": 32})
    runs = await world.reservations.create(acme, ask(pool.id, device(count=4), duration="2h"))
    later = await world.reservations.create(
        acme, ask(pool.id, device(), start=MONDAY + 2 * HOUR, duration="1h")
    )
    waits = await world.reservations.create(acme, ask(pool.id, device(count=2), duration="30m"))
    assert [each.state for each in (runs, later, waits)] == ["active", "placed", "pending"]
    return runs, later, waits


async def test_when_the_offer_goes_what_runs_keeps_its_booking_and_charge_and_what_waits_fails(
    world, pool, acme
):
    runs, later, waits = await busy(world, pool, acme)
    assert await unoffer(world, pool, acme)
    await world.tick(seconds=1)
    assert (await view_of(world, acme, runs)).bookings == runs.bookings
    assert (await view_of(world, acme, later)).state == "placed"
    assert (await limits(world, acme, pool))["gpu"] == ("5", "5")
    failed = await view_of(world, acme, waits)
    assert failed.state == "failed"
    assert failed.reason["code"] == "PoolGone"
    assert failed.reason["message"] == "the pool is no longer offered to this tenant"
    assert failed.reason["pools"] == [pool.id]
    assert failed.reason["last"]["code"] == "units_booked"
    assert await story(world, acme, waits) == ["pending", "failed"]
    events = await list_events(world.runtime, acme, subject=waits.id)
    assert events[-1].data["reason"]["code"] == "PoolGone"
    # To their ends, by the clock and by release; no quota is left behind.
    await world.tick(hours=2)
    assert (await view_of(world, acme, later)).state == "active"
    await world.reservations.release(acme, later.id)
    assert (await limits(world, acme, pool))["gpu"] == ("5", "0")


async def test_an_archived_pool_takes_nothing_new_of_the_owner_either(world, pool, acme):
    runs, later, waits = await busy(world, pool, acme)
    own = await world.create(ask(pool.id, device(count=2)))
    await archive(world, pool)
    unknown = ask("pool_0000000000000000000000000", device())
    for caller in (world.caller, acme):
        with pytest.raises(NotFoundError) as caught:
            await world.reservations.create(caller, ask(pool.id, device()))
        with pytest.raises(NotFoundError) as never:
            await world.reservations.create(caller, unknown)
        assert str(caught.value).replace(pool.id, unknown.pool_id) == str(never.value)
    await world.tick(seconds=1)
    views = [await view_of(world, acme, each) for each in (runs, later, waits)]
    assert [view.state for view in views] == ["active", "placed", "failed"]
    ours = await view_of(world, world.caller, own)
    assert (ours.state, ours.reason["code"]) == ("failed", "PoolGone")
    assert ours.reason["message"] == "the pool is archived"
    assert await world.tick(hours=1, minutes=59, seconds=59) == 2
    assert (await view_of(world, acme, later)).state == "active"


async def test_some_candidates_go_and_it_waits_for_the_others_and_says_so(world, pool, acme):
    other = await another(world, "other")
    for each in (pool, other):
        await offer(world, each, acme, {"gpu": 8})
    await world.create(ask(pool.id, device(count=4), duration="9h"))
    held = await world.create(ask(other.id, device(), duration="9h"))
    waits = await world.reservations.create(acme, ask([pool.id, other.id], device()))
    await archive(world, pool)
    assert await states_after_a_tick(world, (acme, waits)) == ["pending"]
    view = await view_of(world, acme, waits)
    assert view.reason["gone"] == [pool.id]
    assert f"{pool.id} is archived" in view.reason["message"]
    assert "other: 0 of 1 nodes" in view.reason["message"]
    await world.release(held)
    view = await view_of(world, acme, waits)
    assert (view.state, view.pool_id) == ("active", other.id)


async def test_the_last_candidate_goes_and_it_fails(world, pool, acme):
    other = await another(world, "other")
    for each in (pool, other):
        await offer(world, each, acme, {"gpu": 8})
        await world.create(ask(each.id, device(count=4 if each is pool else 1), duration="9h"))
    waits = await world.reservations.create(acme, ask([pool.id, other.id], device()))
    await unoffer(world, pool, acme)
    assert await states_after_a_tick(world, (acme, waits)) == ["pending"]
    await archive(world, other)
    assert await states_after_a_tick(world, (acme, waits)) == ["failed"]
    assert (await view_of(world, acme, waits)).reason["message"] == (
        f"{pool.id} is no longer offered to this tenant; {other.id} is archived"
    )


async def test_an_offer_to_a_tenant_above_still_reaches_it_and_it_waits_on(world, pool, acme):
    lab = await world.tenant("acme-lab", above="acme")
    await offer(world, pool, acme, {"gpu": 8}, include_descendants=True)
    await offer(world, pool, lab, {"gpu": 8})
    held = await world.create(ask(pool.id, device(count=4)))
    waits = await world.reservations.create(lab, ask(pool.id, device()))
    await unoffer(world, pool, lab)
    assert await states_after_a_tick(world, (lab, waits)) == ["pending"]
    await world.release(held)
    view = await view_of(world, lab, waits)
    assert (view.state, view.charged_tenant_id) == ("active", "acme")


async def test_a_server_that_was_restarted_fails_what_waits_for_a_pool_that_went(world, pool, acme):
    _, _, waits = await busy(world, pool, acme)
    await archive(world, pool)
    world.restart()
    assert await states_after_a_tick(world, (acme, waits)) == ["failed"]


async def test_what_is_being_placed_while_its_pool_goes_waits_with_that_and_fails_next(
    world, pool, acme, monkeypatch
):
    """The answer of the placer is pending, `the pool is archived`; the ask was admitted before."""
    await offer(world, pool, acme, {"gpu": 32})

    async def admitted_then_archived(connection, asking):
        found = await find_all_records(connection, asking)
        await archive(world, pool)
        return found

    monkeypatch.setattr(creating, "find_all_records", admitted_then_archived)
    view = await world.reservations.create(acme, ask(pool.id, device()))
    monkeypatch.undo()
    assert (view.state, view.reason["code"]) == ("pending", "pool_archived")
    assert view.reason["message"] == "the pool is archived"
    assert await world.rows("SELECT FROM bookings") == []
    assert await states_after_a_tick(world, (acme, view)) == ["failed"]
    assert (await view_of(world, acme, view)).reason["code"] == "PoolGone"


async def test_what_came_in_just_after_the_retry_that_the_archive_woke_fails_at_the_next(
    world, pool, acme, monkeypatch
):
    await offer(world, pool, acme, {"gpu": 32})
    await world.create(ask(pool.id, device(), duration="9h"))
    await world.tick(seconds=1)  # from here on nothing in the pool is news

    async def admitted_long_ago(connection, asking):
        found = await find_all_records(connection, asking)
        await unoffer(world, pool, acme)
        await world.tick(seconds=1)
        await world.tick(seconds=1)
        return found

    monkeypatch.setattr(creating, "find_all_records", admitted_long_ago)
    view = await world.reservations.create(acme, ask(pool.id, device()))
    monkeypatch.undo()
    assert (view.state, view.reason["code"]) == ("pending", "pool_withdrawn")
    assert await states_after_a_tick(world, (acme, view)) == ["failed"]


async def test_what_waits_is_tried_again_when_its_tenant_may_use_the_pool_otherwise(
    world, pool, acme
):
    """Offered to the tenant itself: that is news, though nothing was given back."""
    lab = await world.tenant("acme-lab", above="acme")
    other = await another(world, "other")
    await offer(world, other, acme, {"gpu": 8}, include_descendants=True)
    await offer(world, pool, acme, {"gpu": 8}, include_descendants=True)
    await world.create(ask(other.id, device(), duration="9h"))
    held = await world.create(ask(pool.id, device(count=4), duration="9h"))
    waits = await world.reservations.create(lab, ask([pool.id, other.id], device()))
    await unoffer(world, pool, acme)
    assert await states_after_a_tick(world, (lab, waits)) == ["pending"]
    await world.release(held)
    assert (await view_of(world, lab, waits)).state == "pending"
    await offer(world, pool, lab, {"gpu": 8})
    assert await states_after_a_tick(world, (lab, waits)) == ["active"]


async def test_a_pool_that_lets_nobody_wait_fails_at_the_next_tick_what_has_no_room(world):
    pool = await world.pool(pool_of("H100", maxPending="0"), inventory("n1", gpu("H100", 0)))
    await world.create(ask(pool.id, device()))
    view = await world.create(ask(pool.id, device()))
    assert (view.state, view.pending_until) == ("pending", MONDAY)
    await world.reservations.lifecycle.advance()
    failed = await world.get(view)
    assert (failed.state, failed.reason["code"]) == ("failed", "PendingTimeout")


async def test_a_policy_that_changes_wakes_what_waits_and_keeps_its_patience(world, pool):
    await world.create(ask(pool.id, device(count=4), duration="9h"))
    waits = await world.create(ask(pool.id, device()))
    await update(world, pool, 1, policy={"maxPending": "1h"})
    assert await states_after_a_tick(world, (world.caller, waits)) == ["pending"]
    assert (await world.get(waits)).pending_until == MONDAY + 24 * HOUR
