"""Reservations that come again: every window has its place, or none of them is kept."""

import asyncio
from datetime import timedelta

import pytest

from apportion.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    QuotaExceededError,
)
from apportion.reservations.schemas import ReservationUpdate
from apportion.reservations.window_schemas import SeriesCreate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WORKING = ["mon", "tue", "wed", "thu", "fri"]


def series(pool, *devices, key=None, vcpu=0, **recurrence):
    hours = {"start": "09:00", "end": "17:00", "zone": "UTC"}
    given = {"days": WORKING, **hours, "until": "2026-03-06"}
    return SeriesCreate.model_validate(
        {
            "pool_id": pool.id,
            "devices": [each.model_dump(by_alias=True) for each in devices or [device()]],
            "resources": {"vcpu": vcpu},
            "recurrence": {**given, **recurrence},
            "idempotency_key": key,
        }
    )


async def made(world, request, caller=None):
    caller = caller or world.caller
    series_id = await world.reservations.series.create(caller, request)
    view, more = await world.reservations.series.get(caller, series_id, limit=1000)
    assert not more
    return view


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))


async def nothing_was_made(world):
    for query in ("SELECT id FROM reservations", "SELECT FROM series", "SELECT FROM bookings"):
        assert await world.rows(query) == []
    assert await world.rows("SELECT id FROM events WHERE type LIKE 'series%'") == []


async def test_each_window_is_a_reservation_of_its_own(world, pool):
    view = await made(world, series(pool))
    assert [(each.start, each.end) for each in view.reservations] == [
        (MONDAY + day * DAY, MONDAY + day * DAY + 8 * HOUR) for day in range(5)
    ]
    assert {each.series_id for each in view.reservations} == {view.id}
    assert view.states == {"active": 1, "placed": 4}
    [event] = await world.rows("SELECT data, after FROM events WHERE type = 'series.created'")
    assert event["data"]["reservations"] == 5
    assert event["data"]["end"] == "2026-03-06T17:00:00Z"


async def test_one_window_without_room_keeps_all_from_being_made_and_is_named(world, pool):
    taken = await world.create(ask(pool.id, device(), start=MONDAY + 2 * DAY, duration="1h"))
    with pytest.raises(ConflictError, match="1 of 5 windows have no room") as caught:
        await made(world, series(pool))
    [misfit] = caught.value.details["occurrences"]
    assert (misfit["start"], misfit["code"]) == ("2026-03-04T09:00:00Z", "units_booked")
    assert misfit["earliest"] == "2026-03-04T10:00:00Z"
    assert "it could start at 2026-03-04T10:00:00Z" in caught.value.message
    assert misfit["nodes"] == sum(each["count"] for each in misfit["reasons"])
    assert [row["id"] for row in await world.rows("SELECT id FROM reservations")] == [taken.id]
    assert await world.rows("SELECT id FROM series") == []
    # What the failed try held in the pictures is free.
    assert (await world.create(ask(pool.id, device(), duration="8h"))).state == "active"


async def test_of_a_window_that_never_has_room_no_earliest_start_is_told(world, pool):
    with pytest.raises(ConflictError) as caught:
        await made(world, series(pool, device(count=2)))
    found = caught.value.details["occurrences"]
    assert [(each["earliest"], each["code"]) for each in found] == [
        (None, "larger_than_any_node")
    ] * 5
    assert "could start" not in caught.value.message
    await nothing_was_made(world)


async def test_it_is_charged_its_peak_and_gives_it_back_with_its_last(world, pool):
    await world.quota(pool, "gpu", 1)
    view = await made(world, series(pool, vcpu=4))
    for _ in range(4):
        assert await world.used(pool) == {"gpu": 1, "vcpu": 4}
        await world.tick(hours=24)
    assert await world.used(pool) == {"gpu": 1, "vcpu": 4}
    await world.tick(hours=24)
    assert await world.used(pool) == {}
    assert (await made_again(world, view)).states == {"ended": 5}
    assert await world.gpu_hours() == 40


async def made_again(world, view):
    return (await world.reservations.series.get(world.caller, view.id))[0]


async def test_the_quota_must_cover_one_and_no_more(world, pool):
    await world.quota(pool, "gpu", 0)
    with pytest.raises(QuotaExceededError):
        await made(world, series(pool))
    await nothing_was_made(world)


async def test_instances_of_several_sizes_are_charged_the_largest(world):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@4", "1g.10gb@0"))
    )
    profiles = device("gpu.mig", where=[("migProfile", "In", ["1g.10gb", "3g.40gb"])])
    small = device("gpu.mig", profile="1g.10gb")
    await world.create(ask(pool.id, small, start=MONDAY + DAY, duration="1h"))
    view = await made(world, series(pool, profiles))
    used = (await world.all_used(pool))["gpuEquivalents"]
    for each in view.reservations:
        await world.reservations.release(world.caller, each.id)
        assert await world.findings() == []
    assert str(used) == "4/7"  # 3/7 at most for the series, and 1/7 beside it
    assert (await world.all_used(pool))["gpuEquivalents"] == "1/7"


async def test_a_release_ends_what_lives_and_cancels_the_rest(world, pool):
    view = await made(world, series(pool))
    other = await made(world, series(pool, start="18:00", end="20:00"))
    await world.tick(hours=30)
    assert await world.reservations.series.release(world.caller, view.id)
    after = await made_again(world, view)
    assert [each.reason["code"] for each in after.reservations] == [
        "expired",
        "released",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert not await world.reservations.series.release(world.caller, view.id)
    assert (await made_again(world, other)).states == {"ended": 1, "placed": 4}
    assert await world.used(pool) == {"gpu": 1}


async def test_one_of_it_may_be_released_or_shortened_but_not_run_into_the_next(world, pool):
    view = await made(world, series(pool, days=["mon", "tue"], count=2, until=None, end="09:00"))
    first, second = view.reservations
    assert first.end == second.start
    with pytest.raises(ConflictError, match="next of its series"):
        await update(world, first, first.end + HOUR)
    assert (await update(world, first, first.end - HOUR)).end == first.end - HOUR
    await world.release(first)
    assert await world.used(pool) == {"gpu": 1}
    await world.release(second)
    assert await world.used(pool) == {}


async def update(world, view, end):
    change = ReservationUpdate(end=end.isoformat())
    return await world.reservations.update(world.caller, view.id, change)


async def test_a_retry_gets_the_same_and_another_ask_is_refused(world, pool):
    first = await made(world, series(pool, key="k"))
    world.clock.advance(days=30)
    assert (await made(world, series(pool, key="k"))).id == first.id
    with pytest.raises(ConflictError, match="another series"):
        await made(world, series(pool, key="k", end="18:00"))
    assert len(await world.rows("SELECT id FROM series")) == 1


async def test_of_many_at_once_with_one_key_one_is_made(world, pool):
    request = series(pool, key="k")
    found = await asyncio.gather(
        *(world.reservations.series.create(world.caller, request) for _ in range(8))
    )
    assert len(set(found)) == 1
    assert len(await world.rows("SELECT id FROM reservations")) == 5


async def test_of_several_that_want_the_same_windows_one_is_whole_and_no_other_is_there(
    world, pool
):
    outcomes = await asyncio.gather(
        *(made(world, series(pool)) for _ in range(4)), return_exceptions=True
    )
    kinds = sorted(type(each).__name__ for each in outcomes)
    assert kinds == ["ConflictError"] * 3 + ["SeriesView"]
    assert len(await world.rows("SELECT id FROM reservations")) == 5
    assert await world.used(pool) == {"gpu": 1}


async def test_slots_of_others_make_way_for_it(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=2), inventory("n1", gpu("H100", 0))
    )
    slot = device("gpu.slot")
    start = MONDAY + DAY
    for hours, length in ((0, 4), (0, 4), (4, 4)):
        request = ask(pool.id, slot, start=start + hours * HOUR, duration=f"{length}h")
        last = await world.create(request)
    await world.reservations.release(world.caller, last.id)
    view = await made(world, series(pool, slot, start="13:00", end="17:00"))
    assert view.states["placed"] == 5


@pytest.mark.parametrize(
    ("recurrence", "field"),
    [
        ({"zone": "Europe/Atlantis"}, "recurrence.zone"),
        ({"zone": "../../etc/passwd"}, "recurrence.zone"),
        ({"until": "2026-02-30"}, "recurrence.until"),
        ({"until": None}, "recurrence.until"),
        ({"count": 3}, "recurrence.until"),
        ({"until": "2028-03-06"}, "recurrence.until"),
        ({"until": "2026-03-01"}, "recurrence"),
        ({"from": "2026-13-01"}, "recurrence.from"),
        ({"days": ["mon", "tue"], "start": "09:00", "end": "08:59", "zone": "UTC"}, None),
    ],
)
async def test_a_recurrence_that_is_none_is_refused(world, pool, recurrence, field):
    if field is None:
        assert (await made(world, series(pool, **recurrence))).states
        return
    with pytest.raises(InvalidInputError) as caught:
        await made(world, series(pool, **recurrence))
    assert caught.value.field == field
    await nothing_was_made(world)


async def test_each_window_is_held_to_what_the_pool_takes(world):
    pool = await world.pool(
        pool_of("H100", window={"maximum": "8h"}), inventory("n1", gpu("H100", 0))
    )
    with pytest.raises(InvalidInputError, match="no window of this length") as caught:
        await made(world, series(pool, end="18:00"))
    assert caught.value.field == "recurrence"
    # A night on which clocks go back is an hour longer than the others.
    night = {"days": ["sat"], "start": "22:00", "end": "06:00", "zone": "Europe/Berlin"}
    with pytest.raises(InvalidInputError, match="2026-10-24T20:00:00Z"):
        await made(world, series(pool, **night, until=None, count=40))
    await nothing_was_made(world)


async def test_others_see_and_release_none_of_it(world, pool):
    view = await made(world, series(pool))
    stranger = await world.tenant("acme")
    for series_id in (view.id, "ser_none"):
        with pytest.raises(NotFoundError) as caught:
            await world.reservations.series.release(stranger, series_id)
        assert (caught.value.message, caught.value.given) == ("no such series", series_id)
    with pytest.raises(NotFoundError, match="no such pool"):
        await made(world, series(pool), stranger)


async def test_a_list_of_series_is_newest_first_and_says_what_is_left_of_each(world, pool):
    views = []
    for name, start, end in [
        ("a", "09:00", "10:00"),
        ("b", "10:00", "11:00"),
        ("a", "11:00", "12:00"),
    ]:
        request = series(pool, start=start, end=end).model_copy(update={"name": name})
        views.append(await made(world, request))
        world.clock.advance(seconds=1)
    listed = world.reservations.series.page
    await world.reservations.series.release(world.caller, views[1].id)
    await world.reservations.release(world.caller, views[2].reservations[0].id)
    found = await listed(world.caller)
    assert [(each.id, each.name, each.states) for each in found] == [
        (views[2].id, "a", {"ended": 1, "placed": 4}),
        (views[1].id, "b", {"ended": 5}),
        (views[0].id, "a", {"active": 1, "placed": 4}),
    ]
    assert found[0].recurrence == views[2].recurrence
    newest, *older = [view.id for view in views[::-1]]
    assert [each.id for each in await listed(world.caller, name="a")] == [newest, older[1]]
    assert [each.id for each in await listed(world.caller, live=True)] == [newest, older[1]]
    assert [each.id for each in await listed(world.caller, live=False)] == [older[0]]
    position = found[0].created_at, newest
    assert [each.id for each in await listed(world.caller, before=position, limit=1)] == older[:1]
    assert await listed(await world.tenant("acme")) == []
