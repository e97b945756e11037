"""What has no room waits with a reason, is tried when something frees, and fails in its time."""

from datetime import timedelta

import pytest

from apportion.errors import InvalidInputError
from apportion.reservations.service import Reservations
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


async def exclusive(world, gpus: int = 1, **policy):
    return await world.pool(
        pool_of("H100", **policy), inventory("n1", *(gpu("H100", index) for index in range(gpus)))
    )


async def test_the_reason_is_stored_and_its_counts_add_up_to_the_nodes(world):
    cut = gpu("H100", 0, "3g.40gb@0", node="cut")
    failed = gpu("H100", 0, node="failed", failed="Xid 79")
    pool = await world.pool(
        pool_of("H100", "mig"),
        inventory("cut", cut),
        inventory("failed", failed),
        inventory("small", gpu("H100", 0, node="small"), cpus=2),
        inventory("busy", gpu("H100", 0, node="busy")),
    )
    await world.create(ask(pool.id, device(), vcpu=60, duration="2h"))
    view = await world.create(ask(pool.id, device(), vcpu=4))
    reason = view.reason
    assert view.state == "pending"
    assert reason["nodes"] == 4
    assert {each["code"]: each["count"] for each in reason["reasons"]} == {
        "no_unsplit_gpu": 1,
        "node_unhealthy": 1,
        "larger_than_any_node": 1,
        "units_booked": 1,
    }
    assert reason["message"].startswith("h100-mig: 0 of 4 nodes: ")
    assert reason["since"] == "2026-03-02T09:00:00Z"
    assert reason["hint"]
    world.restart()
    assert (await world.get(view)).reason == reason


async def test_an_empty_pool_says_so(world):
    pool = await world.pool(pool_of("H100"))
    view = await world.create(ask(pool.id, device()))
    assert (view.state, view.reason["code"], view.reason["nodes"]) == ("pending", "pool_empty", 0)
    await world.report(pool, inventory("n1", gpu("H100", 0)))
    await world.tick(seconds=1)
    assert (await world.get(view)).state == "active"


async def test_the_oldest_that_fits_gets_what_frees(world):
    pool = await exclusive(world, gpus=2)
    held = [await world.create(ask(pool.id, device(), duration="5h")) for _ in range(2)]
    world.clock.advance(seconds=1)
    two = await world.create(ask(pool.id, device(count=2)))
    world.clock.advance(seconds=1)
    one = await world.create(ask(pool.id, device()))
    world.clock.advance(seconds=1)
    other = await world.create(ask(pool.id, device()))
    await world.release(held[0])
    states = [(await world.get(each)).state for each in (two, one, other)]
    assert states == ["pending", "active", "pending"]
    placed = await world.get(one)
    assert (placed.start, placed.end) == (world.clock(), world.clock() + timedelta(hours=1))
    assert placed.reason == {"code": "placed", "message": "placed after waiting"}


async def test_another_process_frees_and_this_one_still_tries(world):
    pool = await exclusive(world)
    held = await world.create(ask(pool.id, device(), duration="5h"))
    waiting = await world.create(ask(pool.id, device()))
    for _ in range(3):
        await world.tick(seconds=1)
    other = Reservations(world.runtime)
    await other.release(world.caller, held.id)
    await world.tick(seconds=1)
    assert (await world.get(waiting)).state == "active"


async def test_a_waiting_ask_fails_when_the_pools_patience_ends(world):
    pool = await exclusive(world, maxPending="90m")
    await world.create(ask(pool.id, device(), duration="5h"))
    waiting = await world.create(ask(pool.id, device()))
    assert waiting.pending_until == world.clock() + timedelta(minutes=90)
    await world.tick(minutes=89, seconds=59)
    assert (await world.get(waiting)).state == "pending"
    await world.tick(seconds=1)
    view = await world.get(waiting)
    assert (view.state, view.reason["code"]) == ("failed", "PendingTimeout")
    assert view.reason["last"] == waiting.reason
    assert view.reason["message"].endswith(waiting.reason["message"])


async def test_who_waited_too_long_gets_nothing_though_it_frees_before_the_tick(world):
    pool = await exclusive(world, maxPending="1h")
    held = await world.create(ask(pool.id, device(), duration="5h"))
    waiting = await world.create(ask(pool.id, device()))
    world.clock.advance(hours=1)
    await world.release(held)
    assert (await world.get(waiting)).state == "pending"
    await world.tick()
    assert (await world.get(waiting)).state == "failed"


async def test_a_fixed_window_fails_when_it_has_begun_without_room(world):
    pool = await exclusive(world)
    start = world.clock() + timedelta(hours=1)
    held = await world.create(ask(pool.id, device(), duration="5h"))
    fixed = ask(pool.id, device(), start=start, end=start + timedelta(hours=1))
    waiting, sooner = await world.create(fixed), await world.create(fixed)
    await world.tick(hours=1)
    # At the very instant it could still begin; a moment later its window is lost.
    assert (await world.get(waiting)).state == "pending"
    await world.release(sooner)
    world.clock.advance(microseconds=1)
    await world.release(held)
    assert (await world.get(waiting)).state == "pending"
    await world.tick()
    assert (await world.get(waiting)).reason["code"] == "PendingTimeout"
    assert (await world.get(sooner)).reason["code"] == "cancelled"


async def test_a_fixed_window_is_placed_as_it_was_asked_for(world):
    pool = await exclusive(world)
    start = world.clock() + timedelta(hours=1)
    held = await world.create(ask(pool.id, device(), duration="5h"))
    waiting = await world.create(ask(pool.id, device(), start=start, duration="30m"))
    await world.tick(minutes=59)
    await world.release(held)
    view = await world.get(waiting)
    assert (view.state, view.start, view.end) == ("placed", start, start + timedelta(minutes=30))


async def test_candidates_are_tried_together_and_the_reservation_names_the_one_it_got(world):
    first = await exclusive(world)
    second = await world.pool(
        pool_of("H100", name="second"), inventory("n2", gpu("H100", 0, node="n2"))
    )
    both = ask([first.id, second.id], device())
    views = [await world.create(both) for _ in range(3)]
    assert {view.pool_id for view in views[:2]} == {first.id, second.id}
    waiting = views[2]
    assert (waiting.state, waiting.pool_id) == ("pending", None)
    assert waiting.candidates == [first.id, second.id]
    assert waiting.reason["nodes"] == 2
    assert "h100-exclusive: " in waiting.reason["message"]
    assert "second: " in waiting.reason["message"]
    await world.release(next(view for view in views if view.pool_id == second.id))
    assert (await world.get(waiting)).pool_id == second.id
    assert await world.used(second) == {"gpu": 1}


async def test_more_than_any_node_has_is_said_at_once(world):
    pool = await exclusive(world, gpus=2)
    view = await world.create(ask(pool.id, device(count=3)))
    assert view.reason["code"] == "larger_than_any_node"


async def test_patience_is_a_duration(world):
    with pytest.raises(InvalidInputError) as caught:
        await world.pool(pool_of("H100", maxPending="soon"))
    assert caught.value.field == "policy.maxPending"


async def test_each_that_waits_for_a_redeal_of_its_own_gets_it_in_one_batch(world):
    """Two hours on slot 0 and the next two on slot 1 keep nobody out who runs across both."""
    gpus = [gpu("T4", index) for index in range(12)]
    pool = await world.pool(pool_of("T4", "timeslice", replicas=2), inventory("n1", *gpus))
    first, second, third, end = [world.clock() + timedelta(hours=n) for n in (1, 2, 3, 4)]
    across = []
    for each in gpus:
        one = device("gpu.slot", where=[("gpuUuid", "In", [each.uuid])])
        filler = await world.create(ask(pool.id, one, start=first, end=second))
        await world.create(ask(pool.id, one, start=first, end=third))
        await world.release(filler)
        await world.create(ask(pool.id, one, start=third, end=end))
        across.append(ask(pool.id, one, start=first, end=end))
    where = "SELECT units::text FROM bookings WHERE lower(during) = %s AND voided_at IS NULL"
    assert await world.rows(where, third) == [{"units": "{[0,1)}"}] * len(gpus)
    outcomes = await world.reservations.create_many(world.caller, across)
    views = await world.reservations.get_many(world.caller, outcomes)
    assert [views[each].state for each in outcomes] == ["placed"] * len(gpus)
    assert await world.rows(where, third) == [{"units": "{[1,2)}"}] * len(gpus)
