"""Two hours, any time before six: placed at the earliest start that ends in time, or it waits."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from services_world import open_world

from apportion.errors import ConflictError, InvalidInputError
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


def at(hours):
    return MONDAY + hours * HOUR


def slack(pool, before, duration="2h", **request):
    return ask(pool, device(), duration=duration, end_before=at(before).isoformat(), **request)


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))


async def window(world, request):
    view = await world.create(request)
    return view.state, view.start, view.end


async def test_it_begins_now_where_there_is_room_and_else_when_there_is(world, pool):
    assert await window(world, slack(pool.id, 9)) == ("active", at(0), at(2))
    assert await window(world, slack(pool.id, 9)) == ("placed", at(2), at(4))
    # Between others, where it fits exactly; and one that fits nowhere in time waits.
    await world.create(ask(pool.id, device(), start=at(6), duration="1h"))
    assert await window(world, slack(pool.id, 9)) == ("placed", at(4), at(6))
    assert await window(world, slack(pool.id, 9)) == ("placed", at(7), at(9))
    view = await world.create(slack(pool.id, 9))
    assert (view.state, view.start, view.end, view.end_before) == ("pending", None, None, at(9))
    assert view.reason["code"] == "units_booked"


async def test_it_begins_no_sooner_than_it_was_asked_to(world, pool):
    assert await window(world, slack(pool.id, 9, start=at(3))) == ("placed", at(3), at(5))
    assert await window(world, slack(pool.id, 9, start=at(4))) == ("placed", at(5), at(7))


async def test_of_several_pools_the_one_with_the_earliest_room_is_taken(world, pool):
    other = await world.pool(
        pool_of("H100", name="other"), inventory("n2", gpu("H100", 0, node="n2"))
    )
    await world.create(ask(pool.id, device(), duration="3h"))
    await world.create(ask(other.id, device(), duration="1h"))
    view = await world.create(slack([pool.id, other.id], 9))
    assert (view.pool_id, view.start) == (other.id, at(1))
    # One whose quota is used up has no room, however early.
    await world.quota(other, "gpu", 2)
    view = await world.create(slack([pool.id, other.id], 9, duration="30m"))
    assert (view.pool_id, view.start) == (pool.id, at(3))


async def test_what_waits_is_placed_at_the_earliest_start_that_was_given_back(world, pool):
    held = await world.create(ask(pool.id, device(), duration="8h"))
    waits = await world.create(slack(pool.id, 9))
    assert waits.state == "pending"
    await world.tick(hours=1)
    await world.reservations.update(world.caller, held.id, ReservationUpdate(end=at(5).isoformat()))
    await world.tick(minutes=0)
    view = await world.get(waits)
    assert (view.state, view.start, view.end) == ("placed", at(5), at(7))


async def test_it_fails_when_it_can_no_longer_be_over_in_time(world, pool):
    await world.create(ask(pool.id, device(), duration="12h"))
    waits = await world.create(slack(pool.id, 9))
    await world.tick(hours=7)
    assert (await world.get(waits)).state == "pending"
    await world.tick(seconds=1)
    view = await world.get(waits)
    assert (view.state, view.reason["code"]) == ("failed", "PendingTimeout")
    assert "can no longer be over in time" in view.reason["message"]


async def test_room_that_comes_too_late_is_not_taken(world, pool):
    held = await world.create(ask(pool.id, device(), duration="12h"))
    waits = await world.create(slack(pool.id, 9))
    world.clock.advance(hours=7, seconds=1)
    await world.release(held)
    assert (await world.get(waits)).state == "pending"
    await world.tick(seconds=1)
    assert (await world.get(waits)).state == "failed"
    assert await world.used(pool) == {}


@pytest.mark.parametrize(
    ("request_of", "field", "allowed"),
    [
        ({"duration": "2h", "end_before": at(1)}, "end_before", "2026-03-02T11:00:00Z or later"),
        (
            {"duration": "2h", "start": at(3), "end_before": at(4)},
            "end_before",
            "2026-03-02T14:00:00Z or later",
        ),
        ({"start": at(1), "end": at(2), "end_before": at(4)}, "end_before", "end, or"),
        ({"duration": "2h", "end": at(2), "end_before": at(4)}, "duration", "a duration"),
    ],
)
async def test_slack_that_is_none_is_refused_with_what_would_do(
    world, pool, request_of, field, allowed
):
    bounds = {**request_of, "end_before": request_of["end_before"].isoformat()}
    with pytest.raises(InvalidInputError) as caught:
        await world.create(ask(pool.id, device(), **bounds))
    assert (caught.value.field, caught.value.allowed[: len(allowed)]) == (field, allowed)
    assert await world.rows("SELECT id FROM reservations") == []


async def test_the_pool_still_says_for_how_long_and_how_long_before(world):
    window_rule = {"maximum": "2h", "lead": "3h", "gap": "30m"}
    pool = await world.pool(pool_of("H100", window=window_rule), inventory("n1", gpu("H100", 0)))
    with pytest.raises(InvalidInputError, match="no window of this length"):
        await world.create(slack(pool.id, 9, duration="3h"))
    with pytest.raises(InvalidInputError, match="leaves no time") as caught:
        await world.create(slack(pool.id, 4))
    assert caught.value.allowed == "2026-03-02T14:00:00Z or later"
    # The lead puts the start off; the gap comes after the end, and may reach beyond the bound.
    assert await window(world, slack(pool.id, 9)) == ("placed", at(3), at(5))
    assert await window(world, slack(pool.id, 7.5)) == ("placed", at(5.5), at(7.5))


async def test_a_retry_gets_the_same_reservation_and_another_bound_is_another_ask(world, pool):
    first = await world.create(slack(pool.id, 9, key="k"))
    world.clock.advance(hours=8)  # by now it would be refused
    assert (await world.create(slack(pool.id, 9, key="k"))).id == first.id
    with pytest.raises(ConflictError, match="another ask"):
        await world.create(slack(pool.id, 12, key="k"))


# -- a judge that tries every start ------------------------------------------------------------

STEP = timedelta(minutes=30)
spans = st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 5))


def free(taken, gpus, start, length):
    """Tell whether one of so many GPUs is free at each of some half hours, all the way."""
    return any(
        all(not (begin < start + length and start < end) for begin, end in taken[number])
        for number in gpus
    )


@settings(deadline=None, max_examples=max(5, settings().max_examples // 5))
@given(
    held=st.lists(spans, max_size=8),
    length=st.integers(1, 4),
    first=st.none() | st.integers(0, 8),
    room=st.integers(0, 10),
)
def test_no_earlier_start_would_have_done(template, held, length, first, room):
    async def run():
        async with AsyncExitStack() as stack:
            world = await open_world(stack, template)
            pools = []
            for name in ("a", "b"):
                node = inventory(name, gpu("H100", 0, node=name))
                pools.append(await world.pool(pool_of("H100", name=name), node))
            taken = {0: [], 1: []}
            for number, start, hours in held:
                request = ask(
                    pools[number].id,
                    device(),
                    start=MONDAY + start * STEP,
                    end=MONDAY + (start + hours) * STEP,
                )
                view = await world.create(request)
                if view.state == "pending":
                    await world.reservations.release(world.caller, view.id)
                else:
                    taken[number].append((start, start + hours))
            last = (first or 0) + room
            before = MONDAY + (last + length) * STEP
            view = await world.create(
                ask(
                    [pool.id for pool in pools],
                    device(),
                    duration=f"{30 * length}m",
                    start=None if first is None else MONDAY + first * STEP,
                    end_before=before.isoformat(),
                )
            )
            starts = [s for s in range(first or 0, last + 1) if free(taken, (0, 1), s, length)]
            event("some start fits" if starts else "none fits")
            if not starts:
                assert view.state == "pending"
                return
            assert view.start == MONDAY + starts[0] * STEP
            assert view.end == view.start + length * STEP
            number = [pool.id for pool in pools].index(view.pool_id)
            assert free(taken, [number], starts[0], length)
            assert await world.findings() == []

    asyncio.run(run())
