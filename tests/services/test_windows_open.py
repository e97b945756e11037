"""Windows without an end: permitted by the pool, shown as such, billed till now, ended at will."""

import asyncio
import json
from datetime import timedelta
from fractions import Fraction

import pytest
from pools_acting import offer
from test_reservations_access import under

from apportion.bookings.service import held_in_pool
from apportion.errors import ConflictError, ForbiddenError, InvalidInputError
from apportion.reservations.explain import explain_quota
from apportion.reservations.schemas import ReservationCreate, ReservationUpdate
from apportion.reservations.window_schemas import FreeWindowsAsk
from apportion.reservations.windows import LAST
from apportion.store.connections import transaction
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
GAP = timedelta(minutes=30)


def at(hours):
    return MONDAY + hours * HOUR


@pytest.fixture
async def pool(world):
    request = pool_of("H100", openEnded=True, window={"gap": "30m", "minimum": "1h", "step": "30m"})
    return await world.pool(request, inventory("n1", gpu("H100", 0)))


def endless(pool, **more):
    return ask(pool.id, device(), open_ended=True, vcpu=4, **more)


async def update(world, view, **end):
    return await world.reservations.update(world.caller, view.id, ReservationUpdate(**end))


async def told(world, view):
    rows = await world.rows(
        "SELECT type, data, before, after FROM events WHERE subject = %s ORDER BY id", view.id
    )
    return {row["type"].removeprefix("reservation."): row for row in rows}


async def nothing_says_a_far_date(world):
    """All that anybody is told: events, reasons, and what a reservation looks like."""
    said = await world.rows("SELECT data, before, after FROM events")
    said += await world.rows("SELECT reason FROM reservations")
    said += await world.rows("SELECT reason FROM reservation_reasons")
    views = await world.reservations.list(world.caller)
    text = json.dumps(said) + "".join(view.model_dump_json() for view in views)
    assert "9999" not in text
    assert "9989" not in text


async def test_it_has_no_end_wherever_it_is_shown(world, pool):
    view = await world.create(endless(pool))
    assert (view.state, view.start, view.end, view.open_ended) == ("active", MONDAY, None, True)
    assert [(each.end, each.held_until) for each in view.bookings] == [(None, None)]
    assert await world.get(view) == view  # as it is read back
    placed = (await told(world, view))["placed"]["data"]
    assert (placed["start"], placed["end"]) == ("2026-03-02T09:00:00Z", None)
    await nothing_says_a_far_date(world)
    assert await world.findings() == []
    assert await world.drift() == {}


async def test_one_with_an_end_says_that_it_is_not_open_ended(world, pool):
    view = await world.create(ask(pool.id, device(), duration="2h"))
    assert (view.end, view.open_ended) == (at(2), False)


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ({}, "any length"),
        ({"openEnded": False, "window": {"maximum": "8h"}}, "up to 8h"),
        ({"openEnded": True, "window": {"maximum": "8h"}}, "up to 8h"),
    ],
)
async def test_every_candidate_pool_must_permit_it(world, pool, policy, allowed):
    other = await world.pool(
        pool_of("H100", name="other", **policy), inventory("n2", gpu("H100", 0, node="n2"))
    )
    with pytest.raises(InvalidInputError) as refused:
        await world.create(ask([pool.id, other.id], device(), open_ended=True))
    error = refused.value
    assert (error.field, error.given) == ("open_ended", True)
    assert error.allowed == f"false, with a duration or an end: {allowed}"
    assert error.details == {"pool_id": other.id}
    assert await world.rows("SELECT id FROM reservations") == []


@pytest.mark.parametrize(
    ("field", "window"),
    [
        ("duration", {"duration": "1h"}),
        ("end", {"start": at(1), "end": at(2)}),
        ("end_before", {"end_before": at(9).isoformat()}),
    ],
)
async def test_nothing_else_may_say_when_it_ends(world, pool, field, window):
    with pytest.raises(InvalidInputError) as refused:
        await world.create(endless(pool, **window))
    assert refused.value.field == field
    assert "open_ended" in refused.value.allowed


async def test_it_may_begin_later_and_nobody_is_placed_behind_it(world, pool):
    view = await world.create(endless(pool, start=at(5)))
    assert (view.state, view.start, view.end) == ("placed", at(5), None)
    before = await world.create(ask(pool.id, device(), duration="4h"))
    assert before.state == "active"
    behind = await world.create(ask(pool.id, device(), start=at(24 * 4000), duration="1h"))
    assert (behind.state, behind.reason["code"]) == ("pending", "units_booked")
    await world.tick(hours=5)
    assert (await world.get(view)).state == "active"
    await world.tick(days=3000)
    assert (await world.get(view)).state == "active"


async def test_it_waits_where_others_have_booked_later_and_is_placed_when_that_goes(world, pool):
    later = await world.create(ask(pool.id, device(), start=at(48), duration="1h"))
    view = await world.create(endless(pool))
    assert (view.state, view.end, view.open_ended) == ("pending", None, True)
    explained = await world.reservations.explain(world.caller, view.id)
    assert [each.code for each in explained.pools[0].reasons] == ["units_booked"]
    await world.release(later)
    view = await world.get(view)
    assert (view.state, view.start, view.end) == ("active", MONDAY, None)
    await nothing_says_a_far_date(world)


async def test_what_waits_for_it_is_told_no_far_date(world, pool):
    held = await world.create(endless(pool))
    view = await world.create(ask(pool.id, device(), duration="1h", vcpu=1))
    assert view.state == "pending"
    explained = await world.reservations.explain(world.caller, view.id)
    assert [(each.code, each.until) for each in explained.pools[0].reasons] == [
        ("units_booked", None)
    ]
    assert explained.suggestions == []
    outlook = await world.reservations.find_earliest(
        world.caller, ask(pool.id, device(), duration="1h")
    )
    assert outlook.pools[0].window is None
    async with transaction(world.db) as connection:
        assert (await held_in_pool(connection, pool.id, MONDAY)).free_from is None
    await nothing_says_a_far_date(world)
    await update(world, held, duration="1h")
    assert (await world.get(view)).state == "pending"
    await world.tick(hours=1, minutes=30)
    assert (await world.get(view)).state == "active"


async def test_the_outlook_does_not_know_when_a_gpu_is_free_of_it(world):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=2, openEnded=True), inventory("n1", gpu("T4", 0))
    )
    await world.create(ask(pool.id, device("gpu.slot"), open_ended=True))
    slot = ask(pool.id, device("gpu.slot"), duration="2h")
    outlook = await world.reservations.find_earliest(world.caller, slot)
    window = outlook.pools[0].window
    assert (window.start, window.until, window.gpus[0].free_from) == (MONDAY, None, None)


async def test_when_one_could_start_is_told_without_an_end(world, pool):
    await world.create(ask(pool.id, device(), duration="3h"))
    request = endless(pool)
    outlook = await world.reservations.find_earliest(world.caller, request)
    window = outlook.pools[0].window
    assert (window.start, window.end, window.until) == (at(3) + GAP, None, None)
    body = request.model_dump(by_alias=True, exclude={"idempotency_key"})
    windows = await world.reservations.find_free_windows(
        world.caller, FreeWindowsAsk.model_validate({**body, "k": 5})
    )
    assert [each.end for each in windows.windows] == [None]


async def test_it_is_billed_till_now_and_never_further(world, pool):
    await world.create(endless(pool))
    await world.tick(hours=3)
    assert await world.gpu_hours() == Fraction(3)
    assert await world.gpu_hours(end=at(24 * 365)) == Fraction(3)
    await world.tick(hours=1)
    assert await world.gpu_hours() == Fraction(4)


async def test_a_release_ends_it_and_its_gap_is_kept(world, pool):
    view = await world.create(endless(pool))
    assert (await world.used(pool))["gpu"] == 1
    await world.tick(hours=2)
    ended = await world.release(view)
    assert (ended.state, ended.end, ended.open_ended) == ("ended", at(2), False)
    assert [(each.end, each.held_until) for each in ended.bookings] == [(at(2), at(2) + GAP)]
    assert await world.used(pool) == {}
    row = (await told(world, view))["ended"]
    assert (row["before"]["end"], row["after"]["end"]) == (None, "2026-03-02T11:00:00Z")
    await world.tick(hours=2)
    assert await world.gpu_hours() == Fraction(2)
    assert await world.findings() == []
    assert await world.drift() == {}


async def test_one_that_has_not_begun_is_cancelled(world, pool):
    view = await world.create(endless(pool, start=at(5)))
    ended = await world.release(view)
    assert (ended.reason["code"], ended.open_ended, ended.bookings) == ("cancelled", False, [])
    assert (await world.create(endless(pool))).state == "active"
    assert await world.findings() == []


@pytest.mark.parametrize("end", [{"duration": "4h"}, {"end": at(4).isoformat()}])
async def test_it_can_be_given_an_end_and_then_is_like_any_other(world, pool, end):
    view = await world.create(endless(pool))
    changed = await update(world, view, **end)
    assert (changed.end, changed.open_ended) == (at(4), False)
    assert [(each.end, each.held_until) for each in changed.bookings] == [(at(4), at(4) + GAP)]
    row = (await told(world, view))["shortened"]
    assert (row["before"]["end"], row["after"]["end"]) == (None, "2026-03-02T13:00:00Z")
    behind = await world.create(ask(pool.id, device(), start=at(5), duration="1h"))
    assert behind.state == "placed"
    assert (await update(world, view, duration="4h30m")).end == at(4) + GAP
    assert await world.findings() == []
    assert await world.drift() == {}
    await world.tick(hours=4, minutes=20)
    assert "ending_soon" in await told(world, view)
    await world.tick(minutes=10)
    assert (await world.get(view)).state == "ended"


async def test_nobody_is_told_that_it_ends_soon(world, pool):
    view = await world.create(endless(pool))
    for _ in range(3):
        await world.tick(days=1000)
    assert set(await told(world, view)) == {"placed"}
    assert await world.rows("SELECT 1 FROM reservations WHERE tell_end_at IS NOT NULL") == []


async def test_who_uses_a_quota_without_an_end_is_shown_so(world, pool):
    view = await world.create(endless(pool))
    key = (world.caller.tenant_id, pool.id, "gpu")
    explained = await explain_quota(world.runtime, world.caller, key)
    assert [(use.id, use.start, use.end) for use in explained.uses] == [(view.id, MONDAY, None)]


async def test_a_policy_on_the_length_sees_the_seconds_to_the_end_of_the_calendar(world, pool):
    acme = await world.tenant("acme")
    await offer(world, pool, acme, {"gpu": 1, "vcpu": 4, "gpuEquivalents": 1})
    seconds = -(-(LAST - MONDAY) // timedelta(seconds=1))
    create = 'forbid(principal, action == Action::"compute:reservations:create", resource)'
    limit = f"{create} when {{ context.durationSeconds >= {seconds} }};"
    with pytest.raises(ForbiddenError):
        await world.reservations.create(under(acme, limit), endless(pool))
    looser = f"{create} when {{ context.durationSeconds > {seconds} }};"
    view = await world.reservations.create(under(acme, looser), endless(pool))
    assert (view.state, view.end) == ("active", None)


async def test_another_pool_is_suggested_by_the_flag(world, pool):
    await world.create(ask(pool.id, device(), duration="1h"))
    other = await world.pool(
        pool_of("H100", name="other", openEnded=True), inventory("n2", gpu("H100", 0, node="n2"))
    )
    view = await world.create(endless(pool))
    explained = await world.reservations.explain(world.caller, view.id)
    [each] = [each for each in explained.suggestions if each.code == "other_pool"]
    assert each.request["pool_ids"] == [other.id]
    assert each.request["open_ended"] is True
    assert "--open-ended" in each.command


async def test_when_it_could_begin_is_suggested_and_then_it_does(world, pool):
    await world.create(ask(pool.id, device(), start=at(3), duration="2h"))
    view = await world.create(endless(pool))
    explained = await world.reservations.explain(world.caller, view.id)
    [each] = [each for each in explained.suggestions if each.code == "later_start"]
    # Half an hour after the end of the last one it is cleaned up.
    assert each.start == at(5) + timedelta(minutes=30)
    assert explained.pools[0].reasons[0].until == each.start
    assert "--open-ended" in each.command
    made = await world.create(ReservationCreate.model_validate(each.request))
    assert (made.state, made.start, made.end) == ("placed", each.start, None)


async def test_behind_one_without_an_end_no_start_is_suggested(world, pool):
    await world.create(endless(pool))
    view = await world.create(endless(pool))
    explained = await world.reservations.explain(world.caller, view.id)
    assert "later_start" not in {each.code for each in explained.suggestions}


async def test_a_retry_is_the_same_one_and_an_ask_with_an_end_is_another(world, pool):
    first = await world.create(endless(pool, key="k"))
    assert (await world.create(endless(pool, key="k"))).id == first.id
    with pytest.raises(ConflictError) as refused:
        await world.create(ask(pool.id, device(), duration="1h", vcpu=4, key="k"))
    assert refused.value.field == "idempotency_key"


async def test_a_restarted_server_sees_it_as_the_one_that_placed_it(world, pool):
    await world.create(endless(pool))
    world.restart()
    view = await world.create(ask(pool.id, device(), start=at(100), duration="1h"))
    assert view.state == "pending"
    assert await world.drift() == {}


async def test_all_members_of_a_gang_and_slots_that_are_dealt_again_have_no_end(world):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=3, openEnded=True, window={"gap": "10m"}),
        inventory("n1", gpu("T4", 0)),
        inventory("n2", gpu("T4", 0, node="n2")),
    )
    later = await world.create(ask(pool.id, device("gpu.slot"), start=at(9), duration="1h"))
    gang = await world.create(
        ask(pool.id, device("gpu.slot"), gang={"members": 4}, vcpu=2, open_ended=True)
    )
    assert {each.end for each in gang.bookings} == {None}
    assert (await world.used(pool))["gpu.slot"] == 5
    full = await world.create(ask(pool.id, device("gpu.slot", units=3), duration="1h"))
    assert full.state == "pending"
    assert await world.findings() == []
    assert await world.drift() == {}
    await world.tick(hours=10)
    assert (await world.get(later)).state == "ended"
    changed = await update(world, gang, duration="11h")
    assert {each.end for each in changed.bookings} == {at(11)}
    assert await world.findings() == []
    assert await world.drift() == {}
    await nothing_says_a_far_date(world)


async def test_of_several_at_once_one_is_placed_and_the_others_wait(world, pool):
    views = await asyncio.gather(*(world.create(endless(pool)) for _ in range(6)))
    assert sorted(view.state for view in views) == ["active", *["pending"] * 5]
    assert await world.findings() == []
    await nothing_says_a_far_date(world)
