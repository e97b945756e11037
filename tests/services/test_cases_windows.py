"""Public bug reports about time and waiting, re-created small: each with the right answer.

Instants without a zone, the end of a window and the next one's start, edits that are refused, and
what waits without a reason.
"""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from apportion.errors import (
    ApportionError,
    ConflictError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
)
from apportion.reservations.schemas import ReservationAsk, ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


async def one_gpu(world, **policy):
    return await world.pool(pool_of("H100", **policy), inventory("n1", gpu("H100", 0)))


# -- instants --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        "2026-12-01 09:00",
        "2026-12-01T09:00",
        "2026-12-01",
        "09:00",
        "now",
        "2026-13-01T09:00:00Z",
        "2026-02-29T09:00:00Z",
        "2026-12-31T23:59:60Z",
        "2026-12-01T09:00:00+25:00",
        "2026-12-01T09:00:00 Asia/Kolkata",
        "1796115600",
    ],
)
async def test_what_names_no_instant_is_refused_and_nothing_is_made(world, start):
    pool = await one_gpu(world)
    with pytest.raises(InvalidInputError) as caught:
        await world.create(ask(pool.id, device(), start=start))
    assert (caught.value.field, caught.value.given) == ("start", start)
    assert await world.rows("SELECT * FROM reservations") == []


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
async def test_one_instant_in_any_zone_is_one_window_whatever_zone_the_database_is_set_to(
    world, zone
):
    name = (await world.rows("SELECT current_database() AS name"))[0]["name"]
    await world.rows(f"ALTER DATABASE {name} SET timezone TO '{zone}'")
    pool = await one_gpu(world)
    texts = ("2026-12-01T09:00:00Z", "2026-12-01T14:30:00+05:30", "2026-11-30T19:00:00-14:00")
    views = []
    for text in texts:
        view = await world.create(ask(pool.id, device(), start=text, duration="1h"))
        views.append(view)
        await world.reservations.release(world.caller, view.id)
    assert {view.start for view in views} == {datetime(2026, 12, 1, 9, tzinfo=UTC)}
    assert {view.end for view in views} == {datetime(2026, 12, 1, 10, tzinfo=UTC)}


# -- the end of one, the start of the next ---------------------------------------------------------


async def test_with_five_minutes_for_cleaning_up_the_next_one_is_offered_five_past(world):
    pool = await one_gpu(world, window={"gap": "5m"})
    noon = MONDAY + 3 * HOUR
    first = await world.create(ask(pool.id, device(), start=noon - 2 * HOUR, end=noon))
    assert (first.end, first.bookings[0].held_until) == (noon, noon + 5 * MINUTE)
    at_noon = await world.create(ask(pool.id, device(), start=noon, duration="2h"))
    assert (at_noon.state, at_noon.reason["code"]) == ("pending", "units_booked")
    wish = ReservationAsk.model_validate(
        {"pool_id": pool.id, "devices": [{"class": "gpu"}], "start": noon.isoformat()}
        | {"duration": "2h"}
    )
    [seen] = (await world.reservations.find_earliest(world.caller, wish)).pools
    assert seen.window.start == noon + 5 * MINUTE
    second = await world.create(
        ask(pool.id, device(), start=seen.window.start.isoformat(), duration="2h")
    )
    assert second.state == "placed"
    # The cleaning is nobody's: neither paid for, nor given to whoever asks for those minutes.
    await world.tick(hours=3, minutes=1)
    assert await world.gpu_hours(end=noon + 5 * MINUTE) == 2
    between = await world.create(ask(pool.id, device(), duration="2m"))
    assert between.state == "pending"


async def test_a_window_begins_by_itself_also_where_no_server_ran_at_its_start(world):
    pool = await one_gpu(world)
    begins = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="2h"))
    over = await world.create(ask(pool.id, device(), duration="30m"))
    world.clock.advance(hours=1, minutes=30)
    world.restart()
    await world.reservations.lifecycle.advance()
    assert [(await world.get(view)).state for view in (begins, over)] == ["active", "ended"]
    world.clock.advance(hours=5)
    world.restart()
    await world.reservations.lifecycle.advance()
    assert (await world.get(begins)).state == "ended"
    # Billed from start to end, whoever watched.
    assert await world.gpu_hours() == Fraction(5, 2)


async def test_what_is_billed_is_the_window_cut_exactly_where_it_is_asked_for(world):
    """09:59:50 to 11:00:20 at a quarter, the server away for half an hour of it."""
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    start = MONDAY + HOUR - timedelta(seconds=10)
    quarter = device("gpu.share", units=25)
    await world.create(
        ask(pool.id, quarter, start=start, end=MONDAY + 2 * HOUR + timedelta(seconds=20))
    )
    await world.tick(minutes=70)
    world.restart()
    await world.tick(hours=3)
    seconds = []
    for hour in range(3):
        span = (MONDAY + hour * HOUR, MONDAY + (hour + 1) * HOUR)
        seconds.append(await world.gpu_hours(*span) * 3600 * 4)
    assert seconds == [10, 3600, 20]
    assert await world.gpu_hours() * 3600 == Fraction("907.5")


# -- edits -----------------------------------------------------------------------------------------


async def test_a_refused_edit_changes_nothing_whatever_the_state(world):
    pool = await one_gpu(world, window={"maximum": "4h"})
    ended = await world.create(ask(pool.id, device(), duration="1h"))
    await world.release(ended)
    active = await world.create(ask(pool.id, device(), duration="1h"))
    placed = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    pending = await world.create(ask(pool.id, device(), duration="1h"))
    refusals = [
        (ended, {"duration": "2h"}, InvalidStateError),
        (pending, {"duration": "2h"}, InvalidStateError),
        (active, {"duration": "2h"}, ConflictError),  # the placed one is in the way
        (placed, {"duration": "5h"}, InvalidInputError),  # longer than the pool takes
        (placed, {"end": MONDAY.isoformat()}, InvalidInputError),
        (placed, {"end": "2026-03-02T11:00"}, InvalidInputError),
        (placed, {"duration": "-1h"}, InvalidInputError),
        (placed, {"duration": "0s"}, InvalidInputError),
        (placed, {"duration": "2h", "end": "2026-03-02T12:00:00Z"}, InvalidInputError),
    ]
    tables = ("reservations", "bookings", "quotas", "events")
    before = [await world.rows(f"SELECT * FROM {each} ORDER BY 1, 2, 3") for each in tables]  # noqa: S608
    for view, change, refusal in refusals:
        with pytest.raises(refusal):
            await world.reservations.update(world.caller, view.id, ReservationUpdate(**change))
    after = [await world.rows(f"SELECT * FROM {each} ORDER BY 1, 2, 3") for each in tables]  # noqa: S608
    assert after == before
    # From each state it can be ended, and ended again.
    for view in (ended, active, placed, pending) * 2:
        assert (await world.reservations.release(world.caller, view.id)).state == "ended"


async def test_an_id_is_no_key_others_are_told_of_nothing(world):
    pool = await one_gpu(world)
    view = await world.create(ask(pool.id, device(), duration="1h"))
    stranger = await world.tenant("acme")
    service = world.reservations
    told = set()
    for reservation_id in (view.id, "res_00000000000000000000000000"):
        for act in (
            lambda each: service.get(stranger, each),
            lambda each: service.update(stranger, each, ReservationUpdate(duration="2h")),
            lambda each: service.release(stranger, each),
        ):
            with pytest.raises(ApportionError) as caught:
                await act(reservation_id)
            assert isinstance(caught.value, NotFoundError)
            told.add((caught.value.message, caught.value.field, caught.value.hint))
    assert len(told) == 1
    assert (await world.get(view)) == view


# -- waiting ---------------------------------------------------------------------------------------


async def test_what_waits_says_why_with_counts_of_all_nodes_and_the_story_outlives_it(world):
    """Eighteen nodes: ten cut otherwise, five that fail, two in pieces, one reserved till 16:00."""
    other = ["3g.40gb@0", "3g.40gb@4"]
    wanted = ["4g.40gb@0", "3g.40gb@4"]
    nodes = [
        *(inventory(f"a{n}", gpu("H100", 0, *other, node=f"a{n}")) for n in range(10)),
        *(
            inventory(f"b{n}", gpu("H100", 0, *wanted, node=f"b{n}", failed="Xid 79"))
            for n in range(5)
        ),
        *(inventory(f"c{n}", gpu("H100", 0, *other, node=f"c{n}")) for n in range(2)),
        inventory("n7", gpu("H100", 0, *wanted, node="n7")),
    ]
    pool = await world.pool(
        pool_of(
            "H100",
            "mig",
            maxPending="12h",
            reserveAfter="0s",
            quota={"gpu.mig": 5, "gpuEquivalents": 100},
        ),
        *nodes,
    )
    four = device("gpu.mig", profile="4g.40gb")
    until_four = await world.create(ask(pool.id, four, duration="7h"))
    assert until_four.bookings[0].node == "n7"
    view = await world.create(ask(pool.id, four, duration="1h"))
    reason = view.reason
    assert view.state == "pending"
    assert reason["nodes"] == 18
    assert sum(each["count"] for each in reason["reasons"]) == 18
    counts = {each["code"]: each["count"] for each in reason["reasons"]}
    assert counts["units_booked"] == 1
    # What one can act on stands first: it is free again at a known time.
    assert reason["code"] == reason["reasons"][0]["code"] == "units_booked"
    assert reason["since"] == "2026-03-02T09:00:00Z"
    assert "0 of 18 nodes" in reason["message"]
    wish = ReservationAsk.model_validate(
        {"pool_id": pool.id, "devices": [four.model_dump(by_alias=True)], "duration": "1h"}
    )
    [seen] = (await world.reservations.find_earliest(world.caller, wish)).pools
    assert (seen.window.start, seen.window.nodes) == (MONDAY + 7 * HOUR, ["n7"])
    await world.tick(hours=6, minutes=59)
    assert (await world.get(view)).state == "pending"
    await world.tick(minutes=1)
    placed = await world.get(view)
    assert (placed.state, placed.bookings[0].node) == ("active", "n7")
    await world.tick(hours=2)
    assert (await world.get(view)).state == "ended"
    story = await world.rows(
        "SELECT reason ->> 'code' AS code FROM reservation_reasons WHERE reservation_id = %s",
        view.id,
    )
    assert [row["code"] for row in story] == ["units_booked"]


async def test_waiting_in_vain_ends_with_a_reason_that_says_for_what(world):
    pool = await one_gpu(world, maxPending="1h")
    await world.create(ask(pool.id, device(), duration="9h"))
    view = await world.create(ask(pool.id, device()))
    await world.tick(minutes=59)
    assert (await world.get(view)).state == "pending"
    await world.tick(minutes=1)
    failed = await world.get(view)
    assert (failed.state, failed.reason["code"]) == ("failed", "PendingTimeout")
    assert failed.reason["last"]["code"] == "units_booked"
    assert "1 of 1 nodes" in failed.reason["message"] or "0 of 1 nodes" in failed.reason["message"]
