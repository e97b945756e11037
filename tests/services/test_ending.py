"""What is over is not anybody else's, nor given back, before its node has said that it is free."""

from datetime import timedelta

import pytest
from partitions_world import LARGE, SMALL
from test_holder_overrun import ENDING, Telling, key, place, told

from apportion.errors import InvalidStateError
from apportion.nodes.service import KEPT, revoke_node
from apportion.reservations.schemas import ReservationUpdate
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
LEAVING = {**ENDING, "reason": "holder_leaving"}
FREE = {"state": "released"}


@pytest.fixture
async def whole(world):
    nodes = Telling(world, await world.pool(pool_of("H100", openEnded=True)))
    await nodes.join("n1", gpus=1, layout=None)
    return nodes


async def bound(nodes, **window):
    """Place one, and have its node hand it out."""
    held = await place(nodes, **(window or {"duration": "1h"}))
    await nodes.say(**{key(held): {"state": "bound"}})
    return held


async def stands(world, view):
    found = await world.get(view)
    return found.state, found.reason["code"]


async def story(world, view):
    rows = await world.rows(
        "SELECT type FROM events WHERE subject = %s AND type !~ 'device|overrun|soon' ORDER BY id",
        view.id,
    )
    return [row["type"].removeprefix("reservation.") for row in rows]


async def test_a_window_that_is_over_is_ending_until_its_node_has_taken_it_back(whole):
    world, held = whole.world, await bound(whole)
    await world.tick(hours=1)
    waits = await place(whole, duration="1h")
    assert await stands(world, held) == ("ending", "expired")
    assert await world.used(whole.pool) == {"gpu": 1}
    await whole.say(**{key(held): LEAVING})
    await world.tick(seconds=10)
    assert await stands(world, held) == ("ending", "expired")
    assert (await world.get(waits)).state == "pending"
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ended", "expired")
    assert (await world.get(waits)).state in ("placed", "active"), "it is tried at once"
    assert await story(world, held) == ["placed", "ending", "ended"]
    assert (await world.get(held)).end == MONDAY + HOUR


async def test_a_release_is_ending_with_its_own_reason_and_is_billed_till_then(whole):
    world, held = whole.world, await bound(whole)
    world.clock.advance(minutes=30)
    assert (await world.release(held)).state == "ending"
    world.clock.advance(minutes=1)
    again = await world.reservations.release(world.caller, held.id)
    assert (again.state, again.reason["code"]) == ("ending", "released")
    assert await story(world, held) == ["placed", "ending"], "once"
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ended", "released")
    assert (await world.get(held)).end == MONDAY + HOUR / 2
    assert await world.gpu_hours() * 2 == 1
    assert await world.used(whole.pool) == {}


async def test_one_that_is_released_at_the_instant_at_which_it_was_bound_keeps_its_units(whole):
    world, held = whole.world, await bound(whole)
    assert (await world.release(held)).state == "ending"
    assert (await place(whole, duration="1h")).state == "pending"


async def test_what_was_never_handed_out_is_over_at_once(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await whole.say(**{key(held): {"state": "waiting", "reason": "in_use", "message": "7"}})
    world.clock.advance(minutes=1)
    assert (await world.release(held)).state == "ended"
    second = await place(whole, duration="1h")
    assert second.state != "pending"
    await world.tick(hours=1)
    assert await stands(world, second) == ("ended", "expired")


async def test_one_that_its_node_forgot_or_hands_out_no_more_is_ending_all_the_same(whole):
    world, held = whole.world, await bound(whole)
    await whole.say(**{key(held): {"state": "waiting", "reason": "device-missing"}})
    world.clock.advance(minutes=1)
    assert (await world.release(held)).state == "ending"
    await whole.say()
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ended", "released")


async def test_a_silent_node_keeps_what_it_has_however_long(whole):
    world, held = whole.world, await bound(whole)
    await world.tick(hours=1)
    for _ in range(20):
        await world.tick(seconds=50)
        assert (await place(whole, duration="1m")).state == "pending"
    assert await stands(world, held) == ("ending", "expired")
    assert await world.used(whole.pool) == {"gpu": 1}


async def test_what_is_in_hands_is_kept_by_a_server_that_was_away_before_it_takes_work(whole):
    world, held = whole.world, await bound(whole)
    await world.tick(hours=1)
    world.clock.advance(days=1)
    world.restart()
    await world.reservations.lifecycle.end_due()
    assert (await place(whole, duration="1h")).state == "pending"
    assert (await world.get(held)).bookings[0].held_until == world.clock() + KEPT


async def test_a_node_that_has_not_read_that_it_is_over_frees_nothing(whole):
    world, held = whole.world, await bound(whole)
    world.clock.advance(minutes=30)
    node = whole.nodes["n1"]
    await world.release(held)
    early = node.report()  # by its own clock, or forgotten: it may hand it out again yet
    for words in ([told(world, f"{held.id}.0", FREE)], []):
        report = early.model_validate({**early.model_dump(by_alias=True), "allocations": words})
        await whole.deliver("n1", report)
        early.sequence += 1
        node.sequence += 1
        await world.tick(seconds=1)
        assert (await world.get(held)).state == "ending"
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert (await world.get(held)).state == "ended"


async def test_a_gang_is_over_when_all_of_its_nodes_have_taken_back_what_it_had(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", "n2", gpus=1, layout=None)
    gang = {"members": 2}
    held = await world.create(ask(nodes.pool.id, device(), gang=gang, duration="1h"))
    pieces = {each.node: f"{held.id}__{at}" for at, each in enumerate(held.bookings)}
    for name, piece in pieces.items():
        await nodes.say(name, **{piece: {"state": "bound"}})
    await world.tick(hours=1)
    await nodes.say("n1", **{pieces["n1"]: FREE})
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ending", "expired")
    assert await world.used(nodes.pool) == {"gpu": 2}, "it is charged whole"
    assert (await place(nodes, duration="1h")).bookings[0].node == "n1"
    await nodes.say("n2", **{pieces["n2"]: FREE})
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ended", "expired")
    assert await world.used(nodes.pool) == {"gpu": 1}


async def test_the_gap_after_the_end_is_kept_when_the_holder_has_left_within_it(world):
    gap = {"window": {"gap": "10m"}}
    nodes = Telling(world, await world.pool(pool_of("H100", **gap)))
    await nodes.join("n1", gpus=1, layout=None)
    held = await bound(nodes)
    await world.tick(hours=1)
    for _ in range(6):
        await world.tick(minutes=1)
        await nodes.say(**{key(held): LEAVING})
    await world.tick(minutes=3, seconds=30)
    assert (await world.get(held)).bookings[0].held_until > MONDAY + HOUR + timedelta(minutes=10)
    await nodes.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert (await world.get(held)).bookings[0].held_until == MONDAY + HOUR + timedelta(minutes=10)


async def test_what_is_ending_gets_no_other_end(whole):
    world, held = whole.world, await bound(whole)
    world.clock.advance(minutes=30)
    await world.release(held)
    request = ReservationUpdate(duration="2h")
    with pytest.raises(InvalidStateError) as refused:
        await world.reservations.update(world.caller, held.id, request)
    assert refused.value.given == "ending"


async def test_one_without_an_end_is_ending_as_any_other(whole):
    world, held = whole.world, await bound(whole, open_ended=True)
    world.clock.advance(minutes=30)
    view = await world.release(held)
    assert (view.state, view.end) == ("ending", MONDAY + HOUR / 2)
    [piece] = view.bookings
    assert (piece.end, piece.held_until) == (view.end, view.end + KEPT)
    assert (await place(whole, duration="1h")).state == "pending"
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await world.used(whole.pool) == {"gpu": 1}


async def test_a_revoked_node_holds_nobody_up_and_takes_nobody(whole):
    world = whole.world
    held, other = await bound(whole), await place(whole, duration="1h", start=MONDAY + 2 * HOUR)
    await world.rows(
        "UPDATE nodes SET public_key = decode(repeat('00', 32), 'hex'), enrolled_at = %s,"
        " attestor = 'join-token'",
        MONDAY,
    )
    await world.tick(hours=1)
    assert (await world.get(held)).state == "ending"
    await revoke_node(world.runtime, world.caller, whole.ids["n1"])
    await world.tick(seconds=1)
    assert await stands(world, held) == ("ended", "expired")
    assert (await place(whole, duration="10m")).reason["code"] == "node_stale"
    assert (await world.get(other)).state == "placed"


async def test_a_deleted_tenants_are_over_at_once_and_nobody_else_has_what_they_hold(whole):
    world = whole.world
    acme = await world.tenant("acme")
    mine = Telling(world, whole.pool)
    mine.nodes, mine.ids = whole.nodes, whole.ids
    held = await bound(whole)
    await world.rows("UPDATE bookings SET tenant_id = 'acme'")
    await world.rows("UPDATE assignments SET tenant_id = 'acme'")
    await world.rows("UPDATE reservations SET tenant_id = 'acme' WHERE id = %s", held.id)
    await world.rows("UPDATE events SET tenant_id = 'acme' WHERE subject = %s", held.id)
    world.clock.advance(minutes=1)
    await delete_tenant(world.runtime, world.caller, acme.tenant_id)
    [row] = await world.rows("SELECT state, reason FROM reservations WHERE id = %s", held.id)
    assert (row["state"], row["reason"]["code"]) == ("ended", "released")
    assert await world.used(whole.pool) == {}
    for _ in range(5):
        await world.tick(seconds=50)
        assert (await place(whole, duration="1h")).state == "pending"
    await whole.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await world.used(whole.pool) == {"gpu": 1}


async def test_nothing_is_cut_otherwise_under_who_has_not_left(world):
    nodes = Telling(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await nodes.join("n1")
    held = await nodes.place(duration="1h")
    await nodes.say(**{key(held): {"state": "bound"}})
    await nodes.change(migLayout=LARGE)
    await world.tick(hours=1)
    await nodes.say(**{key(held): ENDING})
    for _ in range(4):
        await world.tick(minutes=2)
        row = (await nodes.states())["n1"]
        assert (row["state"], row["hold_from"]) == ("scheduled", MONDAY + HOUR)
        assert row["reason"]["code"] == "blocked_by_overrun"
        assert row["reason"]["held_by"] == [held.id]
    kinds = [kind for kind, _ in await nodes.events()]
    assert kinds == ["pending", "scheduled"], "told once"
    await nodes.say(**{key(held): FREE})
    await world.tick(seconds=1)
    assert await nodes.state() == "granted"
    assert (await world.get(held)).state == "ended"
