"""A change of what a GPU is cut into has the whole GPU for itself, or does not begin."""

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services_world import open_world

from apportion.bookings.service import (
    Booked,
    Conflict,
    book_partition_change,
    release_partition_change,
)
from apportion.errors import NotFoundError
from apportion.quantities.windows import Window
from apportion.store.connections import transaction
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
UUID = "GPU-n1-0"
SPLITS = {
    "none": (pool_of("H100"), gpu("H100", 0), device("gpu")),
    "mig": (
        pool_of("H100", "mig"),
        gpu("H100", 0, "3g.40gb@4", "1g.10gb@0"),
        device("gpu.mig", profile="1g.10gb"),
    ),
    "slots": (pool_of("H100", "timeslice", replicas=4), gpu("H100", 0), device("gpu.slot")),
    "shares": (pool_of("H100", "mps", shares=100), gpu("H100", 0), device("gpu.share", units=1)),
}


def window(start, end=None):
    """Give a window of hours from Monday on."""
    return Window(start=MONDAY + start * HOUR, end=None if end is None else MONDAY + end * HOUR)


async def book(world, during, uuid=UUID):
    async with transaction(world.db) as connection:
        return await book_partition_change(connection, uuid, during)


async def release(world, booking_id):
    async with transaction(world.db) as connection:
        return await release_partition_change(connection, booking_id, world.clock())


@pytest.fixture(params=SPLITS)
async def cut(request, world):
    """Give a world with one GPU, cut in one of all ways, and an ask for the least of it."""
    pool, report, piece = SPLITS[request.param]
    return world, await world.pool(pool, inventory("n1", report)), piece


async def test_nothing_lands_on_a_gpu_while_it_is_changed_and_all_of_it_after(cut):
    world, pool, piece = cut
    change = await book(world, window(1))
    assert isinstance(change, Booked)
    assert change.partition_id == "partition:GPU-n1-0:2026-03-02T10:00:00Z"
    before, across, within = [
        await world.create(ask(pool.id, piece, start=MONDAY + at * HOUR, duration=length))
        for at, length in ((0, "1h"), (0, "2h"), (5, "1h"))
    ]
    assert [before.state, across.state, within.state] == ["active", "pending", "pending"]
    world.clock.advance(hours=3)
    assert await release(world, change.booking_id) is True
    await world.reservations.lifecycle.advance()
    assert (await world.get(within)).state == "placed"


async def test_whatever_is_booked_of_a_gpu_keeps_it_from_being_changed(cut):
    world, pool, piece = cut
    held = await world.create(ask(pool.id, piece, start=MONDAY + HOUR, duration="2h"))
    before = await world.rows("SELECT * FROM bookings")
    assert await book(world, window(0)) == Conflict(MONDAY + 3 * HOUR)
    assert await book(world, window(2, 4)) == Conflict(MONDAY + 3 * HOUR)
    assert await world.rows("SELECT * FROM bookings") == before
    assert isinstance(await book(world, window(0, 1)), Booked)  # windows may touch
    assert isinstance(await book(world, window(3, 4)), Booked)
    assert (await world.get(held)).state == "placed"


async def test_a_gap_that_is_long_enough_is_named_and_one_that_is_not_is_passed_over(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    for start, hours in ((0, 2), (3, 2), (7, 1)):
        await world.create(
            ask(pool.id, device(), start=MONDAY + start * HOUR, duration=f"{hours}h")
        )
    assert await book(world, window(0, 1)) == Conflict(MONDAY + 2 * HOUR)
    assert await book(world, window(0, 2)) == Conflict(MONDAY + 5 * HOUR)
    assert await book(world, window(0, 3)) == Conflict(MONDAY + 8 * HOUR)
    assert await book(world, window(0)) == Conflict(MONDAY + 8 * HOUR)


async def test_the_time_for_cleaning_up_after_a_holder_is_waited_for(world):
    pool = await world.pool(pool_of("H100", window={"gap": "30m"}), inventory("n1", gpu("H100", 0)))
    await world.create(ask(pool.id, device(), duration="1h"))
    assert await book(world, window(1)) == Conflict(MONDAY + 1.5 * HOUR)


async def test_two_changes_of_one_gpu_keep_each_other_out(world):
    await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    first = await book(world, window(2))
    assert await book(world, window(5, 6)) == Conflict(None, (first.partition_id,))
    assert await book(world, window(0, 1), "GPU-n1-1") != Conflict(None)
    assert isinstance(await book(world, window(0, 2)), Booked)


async def test_a_holder_without_an_end_is_named_and_nobody_says_when_it_is_free(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    held = await world.create(ask(pool.id, device(), start=MONDAY + 2 * HOUR, duration="1h"))
    for end in (None, "infinity", "9999-12-31T23:59:59.999999Z"):
        await world.rows("UPDATE bookings SET during = tstzrange(lower(during), %s)", end)
        assert await book(world, window(1)) == Conflict(None, (held.id,))
        assert await book(world, window(1, 9)) == Conflict(None, (held.id,))
    assert isinstance(await book(world, window(0, 2)), Booked)
    await world.rows("UPDATE bookings SET during = planned WHERE reservation_id IS NOT NULL")


async def test_letting_go_is_for_good_and_can_be_repeated(world):
    await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    begun, ahead = await book(world, window(0, 1)), await book(world, window(2))
    world.clock.advance(minutes=10)
    for expected in (True, False):
        assert await release(world, begun.booking_id) is expected
        assert await release(world, ahead.booking_id) is expected
    rows = await world.rows(
        "SELECT upper(during) AS end, voided_at FROM bookings ORDER BY lower(during)"
    )
    assert rows == [
        {"end": world.clock(), "voided_at": None},
        {"end": None, "voided_at": world.clock()},
    ]
    assert isinstance(await book(world, Window(start=world.clock())), Booked)


async def test_a_change_let_go_at_the_very_instant_of_its_start_never_was(world):
    await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    change = await book(world, window(0))
    assert await release(world, change.booking_id)
    assert (await world.rows("SELECT voided_at FROM bookings"))[0]["voided_at"] == MONDAY


async def test_a_change_that_ended_by_itself_is_left_as_it_was(world):
    await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    change = await book(world, window(0, 1))
    world.clock.advance(hours=2)
    before = await world.rows("SELECT * FROM bookings")
    assert await release(world, change.booking_id) is False
    assert await world.rows("SELECT * FROM bookings") == before


async def test_what_is_unknown_is_not_found(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    with pytest.raises(NotFoundError) as refused:
        await book(world, window(0), "GPU-nowhere")
    assert (refused.value.field, refused.value.given) == ("gpu_id", "GPU-nowhere")
    await world.create(ask(pool.id, device()))
    [booking] = await world.rows("SELECT id FROM bookings")
    for unknown in (booking["id"], 10**9):  # a reservation's booking is no change's
        with pytest.raises(NotFoundError):
            await release(world, unknown)
    assert len(await world.rows("SELECT 1 FROM bookings WHERE voided_at IS NULL")) == 1


async def test_a_change_is_billed_to_nobody_and_charged_to_no_quota(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    await book(world, window(0))
    world.clock.advance(hours=5)
    assert await world.usage(end=world.clock()) == []
    assert await world.all_used(pool) == {}


async def test_changes_and_placers_that_race_never_share_a_gpu(world):
    """Every round one of them wins each GPU; who loses holds nothing of it."""
    gpus = [gpu("H100", at, "3g.40gb@4", "3g.40gb@0") for at in range(2)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))
    won = {"changes": 0, "placed": 0}
    chance = random.Random(5)

    async def later(at):
        await asyncio.sleep(chance.uniform(0, 0.06))
        return await book(world, Window(start=world.clock()), f"GPU-n1-{at}")

    for _ in range(12):
        asks = [ask(pool.id, device("gpu.mig", profile="3g.40gb")) for _ in range(3)]
        changes = [later(at) for at in (0, 1, 0)]
        *made, one, two, three = await asyncio.gather(*map(world.create, asks), *changes)
        held = [each for each in (one, two, three) if isinstance(each, Booked)]
        placed = [each for each in made if each.state == "active"]
        overlaps = await world.rows(
            "SELECT 1 FROM bookings AS one JOIN bookings AS other USING (gpu_id)"
            " WHERE one.partition_id IS NOT NULL AND one.id <> other.id"
            " AND one.voided_at IS NULL AND other.voided_at IS NULL AND one.during && other.during"
        )
        assert overlaps == []
        assert held or placed
        won["changes"] += len(held)
        won["placed"] += len(placed)
        world.clock.advance(minutes=1)
        for each in held:
            await release(world, each.booking_id)
        for each in made:
            await world.release(each)
        world.clock.advance(minutes=1)
    assert min(won.values()) > 0, won


stretches = st.tuples(st.integers(0, 20), st.integers(1, 6))


@settings(max_examples=25)
@given(held=st.lists(stretches, max_size=6), start=st.integers(0, 20), length=st.integers(1, 8))
async def test_free_from_is_the_first_instant_that_works(template, held, start, length):
    """Judged by trying every hour by hand."""
    async with AsyncExitStack() as stack:
        world = await open_world(stack, template)
        await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
        taken = set()
        for at, hours in held:
            own = set(range(at, at + hours))
            assert isinstance(await book(world, window(at, at + hours)), Booked) == (
                not own & taken
            )
            taken |= own if not own & taken else set()
        first = next(at for at in range(start, 99) if not taken & set(range(at, at + length)))
        outcome = await book(world, window(start, start + length))
        if first == start:
            assert isinstance(outcome, Booked)
        else:
            assert outcome == Conflict(MONDAY + first * HOUR)
