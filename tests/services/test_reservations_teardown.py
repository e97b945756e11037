"""A tenant is deleted: its own reservations end, those of others in its pools run out."""

from datetime import timedelta

import pytest
from pools_acting import limits, offer

from apportion.errors import NotFoundError
from apportion.events.service import list_events
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(4)]
    return await world.pool(pool_of("H100"), inventory("n1", *gpus))


async def delete(world, caller):
    return await delete_tenant(world.runtime, world.caller, caller.tenant_id)


async def test_what_runs_is_released_now_what_is_to_run_and_what_waits_is_cancelled(
    world, pool, acme
):
    await offer(world, pool, acme, {"gpu": 8, "vcpu": 8})
    reserve = world.reservations.create
    runs = await reserve(acme, ask(pool.id, device(count=2), vcpu=4, duration="3h"))
    later = await reserve(acme, ask(pool.id, device(), start=MONDAY + 5 * HOUR, duration="1h"))
    waits = await reserve(acme, ask(pool.id, device(count=4)))
    over = await reserve(acme, ask(pool.id, device(), duration="5m"))
    others = await world.create(ask(pool.id, device(), duration="9h"))
    world.clock.advance(minutes=10)
    done = await delete(world, acme)
    assert done.ended_reservations == 4
    stored = {
        row["id"]: (row["state"], row["reason"]["code"], row["ends_at"])
        for row in await world.rows("SELECT * FROM reservations")
    }
    assert stored == {
        runs.id: ("ended", "released", MONDAY + timedelta(minutes=10)),
        later.id: ("ended", "cancelled", MONDAY + 5 * HOUR),
        waits.id: ("ended", "cancelled", None),
        over.id: ("ended", "expired", MONDAY + timedelta(minutes=5)),
        others.id: ("active", "placed", others.end),
    }
    assert {used for _, used in (await limits(world, acme, pool)).values()} == {"0"}
    # What it had is free at once, and what it used is billed.
    assert (await world.create(ask(pool.id, device(count=3), duration="8h"))).state == "active"
    billed = await world.rows(
        "SELECT sum(upper(planned) - lower(planned)) AS time FROM bookings"
        " WHERE tenant_id = 'acme' AND voided_at IS NULL"
    )
    assert billed == [{"time": timedelta(minutes=25)}]


async def test_each_end_is_an_event_that_says_why(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 8})
    view = await world.reservations.create(acme, ask(pool.id, device()))
    world.clock.advance(minutes=1)
    await delete(world, acme)
    events = await list_events(world.runtime, acme, subject=view.id)
    assert [event.type for event in events] == ["reservation.placed", "reservation.ended"]
    assert events[-1].data["reason"] == {
        "code": "released",
        "message": "released with its tenant, which was deleted",
    }
    assert events[-1].actor == world.caller.actor


async def test_what_it_had_in_pools_of_its_own_ends_and_the_pools_are_archived(world, acme):
    await world.rows(
        "INSERT INTO sites (id, tenant_id, name, region, kind, created_at)"
        " VALUES ('site_acme', 'acme', 'cellar', 'fra', 'custom', now())"
    )
    root, world.caller = world.caller, acme
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    runs, waits = [await world.create(ask(pool.id, device())) for _ in range(2)]
    world.caller = root
    assert (runs.state, waits.state) == ("active", "pending")
    world.clock.advance(minutes=1)
    done = await delete(world, acme)
    assert (done.archived_pools, done.ended_reservations) == ([pool.id], 2)
    # Ended before the limits fell to what is used, which is nothing.
    assert (await limits(world, acme, pool))["gpu"] == ("0", "0")


async def test_what_was_charged_to_a_tenant_above_is_given_back_to_it(world, pool, acme):
    lab = await world.tenant("acme-lab", above="acme")
    await offer(world, pool, acme, {"gpu": 5}, include_descendants=True)
    await world.reservations.create(lab, ask(pool.id, device(count=3)))
    waits = await world.reservations.create(acme, ask(pool.id, device(count=2)))
    assert (await limits(world, acme, pool))["gpu"] == ("5", "3")
    await delete(world, lab)
    assert (await limits(world, acme, pool))["gpu"] == ("5", "0")
    await world.tick(seconds=1)
    assert (await world.reservations.get(acme, waits.id)).state == "active"


async def test_a_deleted_tenant_reserves_nothing_more_through_an_offer_to_one_above(
    world, pool, acme
):
    lab = await world.tenant("acme-lab", above="acme")
    await offer(world, pool, acme, {"gpu": 4}, include_descendants=True)
    await delete(world, lab)
    with pytest.raises(NotFoundError, match="no such pool"):
        await world.reservations.create(lab, ask(pool.id, device()))


async def test_a_second_deletion_ends_nothing(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    await world.reservations.create(acme, ask(pool.id, device()))
    assert (await delete(world, acme)).ended_reservations == 1
    assert (await delete(world, acme)).ended_reservations == 0
