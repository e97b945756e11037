"""A pool takes windows of the lengths, steps and lead of its policy, and names the nearest."""

from datetime import timedelta

import pytest

from apportion.errors import InvalidInputError
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def pool_with(world, **window):
    request = pool_of("H100", window=window)
    return await world.pool(request, inventory("n1", gpu("H100", 0)))


async def refusal(world, request):
    with pytest.raises(InvalidInputError) as caught:
        await world.create(request)
    assert await world.rows("SELECT id FROM reservations") == []
    return caught.value


@pytest.mark.parametrize(
    ("window", "asked", "nearest"),
    [
        ({"minimum": "1h"}, "59m", ["1h"]),
        ({"maximum": "4h"}, "5h", ["4h"]),
        ({"step": "30m"}, "100m", ["1h30m", "2h"]),
        ({"step": "30m"}, "10m", ["30m"]),
        ({"step": "30m", "maximum": "2h"}, "130m", ["2h"]),
        ({"step": "30m", "minimum": "1h"}, "40m", ["1h"]),
        ({"step": "30m", "minimum": "1h", "maximum": "2h"}, "61m", ["1h", "1h30m"]),
    ],
)
async def test_a_length_that_a_pool_does_not_take_is_refused_with_the_nearest(
    world, window, asked, nearest
):
    pool = await pool_with(world, **window)
    error = await refusal(world, ask(pool.id, device(), duration=asked))
    assert (error.field, error.given) == ("duration", asked)
    assert error.details == {"pool_id": pool.id, "nearest": nearest}
    assert error.allowed == " or ".join(nearest)
    for each in nearest:  # and those it does take
        view = await world.create(ask(pool.id, device(), duration=each))
        assert view.state == "active"
        await world.release(view)


async def test_two_instants_are_held_to_the_length_too(world):
    pool = await pool_with(world, maximum="1h")
    end = MONDAY + 2 * HOUR
    error = await refusal(world, ask(pool.id, device(), start=MONDAY, end=end))
    assert (error.field, error.allowed) == ("end", "1h")


async def test_a_pool_that_must_know_in_advance_says_from_when_on(world):
    pool = await pool_with(world, lead="2h")
    for start in (None, MONDAY + 2 * HOUR - timedelta(microseconds=1)):
        error = await refusal(world, ask(pool.id, device(), start=start, duration="1h"))
        assert (error.field, error.allowed) == ("start", "a start from 2026-03-02T11:00:00Z")
    view = await world.create(ask(pool.id, device(), start=MONDAY + 2 * HOUR, duration="1h"))
    assert view.state == "placed"


async def test_every_candidate_pool_must_take_the_window(world):
    one = await pool_with(world, maximum="4h")
    other = await world.pool(
        pool_of("H100", name="short", window={"maximum": "1h"}),
        inventory("n2", gpu("H100", 0, node="n2")),
    )
    error = await refusal(world, ask([one.id, other.id], device(), duration="2h"))
    assert error.message == "pool short takes no window of this length"


async def test_a_changed_end_is_held_to_the_length_and_not_to_the_lead(world):
    pool = await pool_with(world, step="30m", minimum="1h", maximum="2h", lead="1h")
    view = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    world.clock.advance(hours=1)
    for length, nearest in (("3h", "2h"), ("30m", "1h"), ("80m", "1h or 1h30m")):
        with pytest.raises(InvalidInputError) as caught:
            await world.reservations.update(
                world.caller, view.id, ReservationUpdate(duration=length)
            )
        assert (caught.value.given, caught.value.allowed) == (length, nearest)
    longer = await world.reservations.update(
        world.caller, view.id, ReservationUpdate(duration="2h")
    )
    assert longer.end == MONDAY + 3 * HOUR
