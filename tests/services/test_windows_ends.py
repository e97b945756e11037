"""A live reservation can end later or sooner: in place, all of it or none, never over others."""

import asyncio
from datetime import timedelta
from fractions import Fraction

import pytest
from pools_acting import offer
from test_reservations_access import under

from apportion.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
)
from apportion.events.service import list_events
from apportion.pools.service import archive_pool
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def whole(world, gpus=1, cpus=8):
    machine = inventory("n1", *(gpu("H100", index) for index in range(gpus)), cpus=cpus)
    return await world.pool(pool_of("H100"), machine)


async def slots(world, replicas=2):
    return await world.pool(
        pool_of("H100", "timeslice", replicas=replicas), inventory("n1", gpu("H100", 0))
    )


async def change(world, view, caller=None, **fields):
    request = ReservationUpdate(**fields)
    return await world.reservations.update(caller or world.caller, view.id, request)


def later(hours):
    return (MONDAY + hours * HOUR).isoformat()


async def refusal(world, kind, view, **fields):
    """Give the refusal, after which everything is as it was."""
    before = await world.get(view)
    with pytest.raises(kind) as caught:
        await change(world, view, **fields)
    assert await world.get(view) == before
    return caught.value


async def test_a_reservation_is_kept_longer_where_it_is_and_billed_for_it(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="2h"))
    world.clock.advance(hours=1)
    longer = await change(world, view, end=later(5))
    assert (longer.start, longer.end, longer.state) == (MONDAY, MONDAY + 5 * HOUR, "active")
    assert [each.end for each in longer.bookings] == [MONDAY + 5 * HOUR]
    assert longer.bookings[0].gpu_id == view.bookings[0].gpu_id
    assert longer.updated_at == world.clock()
    assert await world.used(pool) == {"gpu": 1}
    await world.tick(hours=3, minutes=59)
    assert (await world.get(view)).state == "active"
    await world.tick(minutes=1)
    assert (await world.get(view)).state == "ended"
    assert await world.gpu_hours() == 5


async def test_a_duration_counts_from_the_start_so_that_a_retry_does_no_more(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="2h"))
    world.clock.advance(hours=1)
    for _ in range(2):
        assert (await change(world, view, duration="3h")).end == MONDAY + 3 * HOUR
    types = [
        event.type for event in await list_events(world.runtime, world.caller, subject=view.id)
    ]
    assert types == ["reservation.placed", "reservation.extended"]


async def test_each_change_is_an_event_with_the_end_before_and_after(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="2h"))
    await change(world, view, duration="4h")
    await change(world, view, duration="1h")
    events = await world.rows(
        "SELECT type, data, before, after FROM events WHERE subject = %s ORDER BY id OFFSET 1",
        view.id,
    )
    assert [(each["type"], each["before"], each["after"]) for each in events] == [
        (
            "reservation.extended",
            {"end": "2026-03-02T11:00:00Z"},
            {"end": "2026-03-02T13:00:00Z"},
        ),
        (
            "reservation.shortened",
            {"end": "2026-03-02T13:00:00Z"},
            {"end": "2026-03-02T10:00:00Z"},
        ),
    ]
    assert [each["data"]["end"] for each in events] == [each["after"]["end"] for each in events]


async def test_what_gets_shorter_gives_its_time_to_who_waits_and_is_billed_for_less(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="4h"))
    waiting = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    assert waiting.state == "pending"
    await change(world, view, duration="1h")
    assert world.reservations.lifecycle.hint.is_set()
    await world.reservations.lifecycle.retry_pending()
    assert (await world.get(waiting)).state == "placed"
    await world.tick(hours=3)
    assert await world.gpu_hours() == 2


async def test_a_later_booking_is_never_overrun_and_the_refusal_says_until_when(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await world.create(ask(pool.id, device(), start=MONDAY + 3 * HOUR, duration="1h"))
    error = await refusal(world, ConflictError, view, end=later(4))
    assert error.details == {
        "free_until": "2026-03-02T12:00:00Z",
        "in_the_way": [
            {
                "code": "units_booked",
                "gpu_id": view.bookings[0].gpu_id,
                "from": "2026-03-02T12:00:00Z",
            }
        ],
    }
    assert error.allowed == "an end until 2026-03-02T12:00:00Z"
    # Windows are half-open: to the very instant at which the other one begins.
    assert (await change(world, view, end=later(3))).end == MONDAY + 3 * HOUR
    error = await refusal(world, ConflictError, view, end=later(4))
    assert (error.allowed, error.hint) == (None, "It cannot be kept any longer")


async def test_several_gpus_are_kept_longer_all_or_none(world):
    pool = await whole(world, gpus=2)
    view = await world.create(ask(pool.id, device(count=2), duration="1h"))
    await world.create(ask(pool.id, device(), start=MONDAY + 2 * HOUR, duration="1h"))
    error = await refusal(world, ConflictError, view, duration="3h")
    assert len(error.details["in_the_way"]) == 1
    longer = await change(world, view, duration="2h")
    assert [each.end for each in longer.bookings] == [MONDAY + 2 * HOUR] * 2


async def test_slots_that_have_not_begun_make_way_by_other_units(world):
    pool = await slots(world)
    slot = device("gpu.slot")
    view = await world.create(ask(pool.id, slot, duration="1h"))
    # Both begin when the first has ended, on its slot and on the other one.
    others = [
        await world.create(ask(pool.id, slot, start=MONDAY + n * HOUR, duration="1h"))
        for n in (1, 2)
    ]
    assert {each.bookings[0].units for each in others} == {view.bookings[0].units}
    longer = await change(world, view, duration="4h")
    assert longer.bookings[0].units == view.bookings[0].units
    assert await world.drift() == {}
    for each in others:
        [moved] = (await world.get(each)).bookings
        assert moved.units != view.bookings[0].units
    await world.tick(hours=5)
    assert await world.gpu_hours() == Fraction(6, 2)


async def test_slots_are_refused_from_the_instant_at_which_they_are_too_many(world):
    pool = await slots(world)
    slot = device("gpu.slot")
    view = await world.create(ask(pool.id, slot, duration="1h"))
    await world.create(ask(pool.id, slot, start=MONDAY + HOUR, duration="4h"))
    await world.create(ask(pool.id, slot, start=MONDAY + 3 * HOUR, duration="2h"))
    error = await refusal(world, ConflictError, view, duration="4h")
    assert error.details["free_until"] == "2026-03-02T12:00:00Z"
    assert (await change(world, view, duration="3h")).state == "active"


async def test_an_instance_is_kept_longer_only_as_long_as_nobody_else_has_it(world):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@0", "3g.40gb@4"))
    )
    view = await world.create(ask(pool.id, device("gpu.mig"), duration="1h"))
    await world.create(ask(pool.id, device("gpu.mig", 2), start=MONDAY + 2 * HOUR, duration="1h"))
    error = await refusal(world, ConflictError, view, duration="150m")
    assert error.details["free_until"] == "2026-03-02T11:00:00Z"


async def test_host_resources_are_kept_longer_too_or_say_until_when(world):
    pool = await whole(world, cpus=8)
    view = await world.create(ask(pool.id, duration="1h", vcpu=6))
    await world.create(ask(pool.id, start=MONDAY + 2 * HOUR, duration="1h", vcpu=4))
    error = await refusal(world, ConflictError, view, duration="3h")
    assert error.details["free_until"] == "2026-03-02T11:00:00Z"
    assert error.details["in_the_way"][0]["code"] == "host_resources_short"
    await change(world, view, duration="2h")
    ends = await world.rows("SELECT upper(during) AS end FROM host_bookings ORDER BY id LIMIT 1")
    assert ends == [{"end": MONDAY + 2 * HOUR}]
    await change(world, view, duration="30m")
    assert await world.drift() == {}


async def test_a_window_that_has_not_begun_changes_too(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    longer = await change(world, view, end=later(6))
    assert (longer.state, longer.start, longer.end) == (
        "placed",
        MONDAY + HOUR,
        MONDAY + 6 * HOUR,
    )
    error = await refusal(world, InvalidInputError, view, end=later(1))
    assert (error.field, error.allowed) == ("end", "an end after 2026-03-02T10:00:00Z")


async def test_what_ended_or_waits_has_no_end_to_change(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    waiting = await world.create(ask(pool.id, device(), duration="1h"))
    await refusal(world, InvalidStateError, waiting, duration="2h")
    world.clock.advance(hours=1)  # the clock was first, though no tick has said so yet
    error = await refusal(world, InvalidStateError, view, duration="2h")
    assert error.given == "ended"
    await world.tick()
    await refusal(world, InvalidStateError, view, duration="2h")


async def test_an_end_in_the_past_and_two_ends_are_refused(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="4h"))
    world.clock.advance(hours=2)
    error = await refusal(world, InvalidInputError, view, duration="1h")
    assert (error.field, error.given, error.hint) == (
        "duration",
        "1h",
        "To end it now, release it",
    )
    await refusal(world, InvalidInputError, view, duration="5h", end=later(5))
    await refusal(world, InvalidInputError, view)
    error = await refusal(world, InvalidInputError, view, end="2026-03-02T14:00:00")
    assert error.field == "end"


async def test_a_limit_on_the_length_of_an_ask_holds_for_one_that_grows(world):
    acme = await world.tenant("acme")
    pool = await whole(world)
    await offer(world, pool, acme, {"gpu": 1})
    for action in ("create", "update"):
        limit = (
            f'forbid(principal, action == Action::"compute:reservations:{action}", resource)'
            " when { context.durationSeconds > 7200 };"
        )
        caller = under(acme, limit)
        view = await world.reservations.create(caller, ask(pool.id, device(), duration="1h"))
        await change(world, view, caller, duration="2h")
        with pytest.raises(ForbiddenError) as caught:
            await change(world, view, caller, duration="7201s")
        assert caught.value.details["right"] == f"compute:reservations:{action}"
        # One that gets shorter asks for nothing: only a limit on changes holds.
        await change(world, view, caller, duration="1h")
        await world.reservations.release(caller, view.id)


async def test_in_a_pool_that_went_nothing_changes_and_what_is_there_stays(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    await archive_pool(world.runtime, world.caller, pool.id)
    error = await refusal(world, InvalidStateError, view, duration="2h")
    assert "2026-03-02T10:00:00Z" in error.hint


async def test_another_tenants_is_not_there(world):
    pool = await whole(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    stranger = await world.tenant("acme")
    told = []
    for one in (view.id, "res_none"):
        with pytest.raises(NotFoundError) as caught:
            await world.reservations.update(stranger, one, ReservationUpdate(duration="2h"))
        told.append(caught.value.message)
    assert told[0] == told[1]


async def test_a_gpu_that_went_is_not_kept_longer(world):
    pool = await whole(world, gpus=2)
    view = await world.create(ask(pool.id, device(count=2), duration="1h"))
    await world.report(pool, inventory("n1", gpu("H100", 0)))
    error = await refusal(world, ConflictError, view, duration="2h")
    assert [each["code"] for each in error.details["in_the_way"]] == ["gpu_unbookable"]
    assert (await change(world, view, duration="30m")).end == MONDAY + HOUR / 2


async def test_whoever_else_books_at_once_the_gpu_is_never_had_twice(world):
    pool = await whole(world)
    for each in range(6):
        view = await world.create(ask(pool.id, device(), duration="1h"))
        rival = ask(pool.id, device(), start=world.clock() + HOUR, duration="1h")
        longer, other = await asyncio.gather(
            change(world, view, duration="2h"), world.create(rival), return_exceptions=True
        )
        kept = not isinstance(longer, ConflictError)
        assert kept == (other.state == "pending"), (each, longer, other)
        for one in (view, other):
            await world.release(one)
    assert await world.drift() == {}
