"""On a node with an agent a reservation is active when its devices are, and not by the clock."""

from datetime import timedelta

import pytest
from test_assignments import devices
from test_holder_overrun import ENDING, Telling, key, place

from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
BOUND = {"state": "bound"}


@pytest.fixture
async def whole(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", gpus=1, layout=None)
    return nodes


async def reason(world, view):
    found = await world.get(view)
    return found.state, found.reason["code"]


async def story(world, view):
    rows = await world.rows(
        "SELECT type FROM events WHERE subject = %s AND type !~ 'device' ORDER BY id", view.id
    )
    return [row["type"].removeprefix("reservation.") for row in rows]


async def test_it_is_placed_with_the_reason_until_its_node_has_handed_it_out(whole):
    world, held = whole.world, await place(whole, duration="2h")
    assert (held.state, held.reason["code"]) == ("placed", "device_asked")
    assert held == await world.get(held), "as it is read back"
    await world.tick(minutes=1)
    assert await reason(world, held) == ("placed", "device_asked")
    words = {"state": "waiting", "reason": "in_use", "message": "processes 9 are on it already"}
    await whole.say(**{key(held): words})
    await world.tick(seconds=1)
    view = await world.get(held)
    assert (view.state, view.reason["code"]) == ("placed", "device_not_bound")
    assert view.reason["node"] == {"reason": "in_use", "message": words["message"]}
    assert (view.reason["pieces"], view.reason["ready"], view.reason["on"]) == (1, 0, "n1")
    assert view.reason["since"] == "2026-03-02T09:01:00Z"
    await whole.say(**{key(held): BOUND})
    assert await reason(world, held) == ("placed", "placed"), "the next tick says so"
    await world.tick(seconds=1)
    assert await reason(world, held) == ("active", "started")
    assert await story(world, held) == ["placed", "started"]


async def test_a_window_that_begins_is_asked_for_and_not_active(whole):
    world = whole.world
    held = await place(whole, start=MONDAY + HOUR, duration="1h")
    before, _ = await devices(whole)
    await world.tick(hours=1)
    assert await reason(world, held) == ("placed", "device_asked")
    assert (await devices(whole))[0] == before + 1
    assert await world.tick(seconds=1) == 0, "it is asked for once"
    await whole.say(**{key(held): BOUND})
    await world.tick(seconds=1)
    assert await reason(world, held) == ("active", "started")


async def test_all_its_pieces_on_all_its_nodes_have_to_be_there(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", "n2", gpus=1, layout=None)
    held = await world.create(ask(nodes.pool.id, device(), gang={"members": 2}, duration="1h"))
    pieces = {each.node: f"{held.id}__{at}" for at, each in enumerate(held.bookings)}
    await nodes.say("n1", **{pieces["n1"]: BOUND})
    await world.tick(seconds=1)
    view = await world.get(held)
    assert (view.state, view.reason["code"], view.reason["on"]) == ("placed", "device_asked", "n2")
    assert (view.reason["pieces"], view.reason["ready"]) == (2, 1)
    await nodes.say("n2", **{pieces["n2"]: BOUND})
    await world.tick(seconds=1)
    assert (await world.get(held)).state == "active"


async def test_once_active_it_stays_so_though_a_device_goes_missing(whole):
    world, held = whole.world, await place(whole, duration="2h")
    await whole.say(**{key(held): BOUND})
    await world.tick(seconds=1)
    await whole.say(**{key(held): {"state": "waiting", "reason": "device-missing"}})
    await world.tick(seconds=1)
    view = await world.get(held)
    assert (view.state, view.bookings[0].allocation.state) == ("active", "missing")


async def test_who_is_blocked_by_overrun_is_placed_until_the_one_before_has_left(whole):
    world, held = whole.world, await place(whole, duration="1h")
    after = await place(whole, start=MONDAY + HOUR, duration="1h")
    await whole.say(**{key(held): BOUND})
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    await world.tick(seconds=1)
    assert await reason(world, held) == ("ending", "expired")
    view = await world.get(held)
    assert view.reason["held"]["code"] == "holder_still_there"
    assert await reason(world, after) == ("placed", "blocked_by_overrun")
    await whole.say(**{key(held): {"state": "released"}})
    await world.tick(seconds=1)
    assert await reason(world, held) == ("ended", "expired")
    assert await reason(world, after) == ("placed", "device_asked")
    await whole.say(**{key(after): BOUND})
    await world.tick(seconds=1)
    assert await reason(world, after) == ("active", "started")


async def test_what_was_never_there_is_billed_kept_longer_and_over_like_any_other(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await world.tick(minutes=50)
    assert "ending_soon" in await story(world, held), "told by its window"
    await world.reservations.update(world.caller, held.id, ReservationUpdate(duration="2h"))
    await world.tick(minutes=70)
    assert await reason(world, held) == ("ended", "expired")
    assert await world.gpu_hours() == 2
    assert await story(world, held) == ["placed", "ending_soon", "extended", "ended"]


async def test_what_has_begun_and_was_not_there_is_released_and_not_cancelled(whole):
    world, held = whole.world, await place(whole, duration="1h")
    world.clock.advance(minutes=30)
    view = await world.release(held)
    assert (view.state, view.reason["code"], len(view.bookings)) == ("ended", "released", 1)
    assert await world.gpu_hours() * 2 == 1


async def test_it_is_active_by_the_clock_where_nobody_follows_a_spec(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    assert (await world.create(ask(pool.id, device(), duration="1h"))).state == "active"
    later = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    await world.tick(hours=1)
    assert (await world.get(later)).state == "active"


async def test_where_a_node_gets_an_agent_what_runs_there_stays_active(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", gpus=1, layout=None, agent=None)
    held = await place(nodes, duration="2h")
    nodes.nodes["n1"].agent = "simulated"
    await nodes.converge("n1")
    await world.tick(seconds=1)
    assert (await world.get(held)).state == "active"


async def test_a_silent_node_is_named_with_what_it_was_asked_for(whole):
    world, held = whole.world, await place(whole, duration="2h")
    await world.rows("UPDATE nodes SET stale_since = %s", MONDAY)
    await world.rows("UPDATE pools SET fleet_revision = fleet_revision + 1")
    view = await world.get(held)
    assert view.reason["stale_since"] == "2026-03-02T09:00:00Z"
    assert "nothing is heard of its node" in view.reason["hint"]
