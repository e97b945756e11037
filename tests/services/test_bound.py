"""A reservation says since when it is in whose hands, on which nodes, and by which report."""

from datetime import timedelta

import pytest
from pydantic import ValidationError
from test_holder_overrun import Telling, key, place, told

from apportion.nodes.schemas import NodeReport
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = pytest.mark.anyio
DEVICE = {"uuid": "MIG-7", "gi_id": 3, "ci_id": 0}
EARLIER = MONDAY - timedelta(seconds=7)


@pytest.fixture
async def pair(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", "n2", gpus=2, layout=None)
    return nodes


async def events(world, kind):
    rows = await world.rows(
        "SELECT data FROM events WHERE type = %s ORDER BY id", f"reservation.device_{kind}"
    )
    return [row["data"] for row in rows]


async def test_it_is_bound_since_when_its_node_says_by_that_report_and_what_it_says(pair):
    world, held = pair.world, await place(pair, duration="1h")
    assert held.bound is None
    [piece] = held.bookings
    bound = {"state": "bound", "device": DEVICE, "at": EARLIER.isoformat()}
    await pair.say(piece.node, **{key(held): bound})
    number = pair.nodes[piece.node].sequence
    view = await world.get(held)
    assert view.bound.since == EARLIER
    assert [(each.node, each.since, each.report) for each in view.bound.nodes] == [
        (piece.node, EARLIER, number)
    ]
    [piece] = view.bookings
    assert piece.allocation.bound.device.model_dump() == DEVICE
    assert piece.allocation.released is None
    [event] = await events(world, "bound")
    assert (event["allocation_id"], event["report"]) == (f"{held.id}.0", number)
    assert (event["device"], event["at"]) == (DEVICE, "2026-03-02T08:59:53Z")
    for _ in range(2):
        await pair.say(piece.node, **{key(held): {**bound, "device": {"uuid": "MIG-8"}}})
    assert len(await events(world, "bound")) == 1, "it is handed out once"


async def test_a_release_is_by_that_report_and_ends_nothing_that_was_said_before(pair):
    world, held = pair.world, await place(pair, duration="1h")
    node = held.bookings[0].node
    await pair.say(node, **{key(held): {"state": "bound"}})
    await world.tick(hours=1)
    left = (world.clock() - timedelta(seconds=3)).isoformat()
    await pair.say(node, **{key(held): {"state": "released", "at": left}})
    await world.tick(seconds=1)
    view = await world.get(held)
    allocation = view.bookings[0].allocation
    assert (view.state, allocation.released.report) == ("ended", pair.nodes[node].sequence)
    assert allocation.released.at == MONDAY + timedelta(hours=1) - timedelta(seconds=3)
    assert view.bound.since == allocation.bound.at, "what was, was"
    [event] = await events(world, "released")
    assert (event["report"], event["at"]) == (allocation.released.report, "2026-03-02T09:59:57Z")


async def test_of_a_gang_each_node_is_named_when_it_has_handed_out_all_it_has(pair):
    world = pair.world
    gang = {"members": 2, "apart": True}
    held = await world.create(ask(pair.pool.id, device(count=2), gang=gang, duration="1h"))
    at = {}
    for number, piece in enumerate(held.bookings):
        at.setdefault(piece.node, []).append(f"{held.id}__{number}")
    for name, pieces in at.items():
        await pair.say(name, **{pieces[0]: {"state": "bound"}})
        world.clock.advance(seconds=10)
    view = await world.get(held)
    assert (view.bound.since, view.bound.nodes) == (None, [])
    bound = {"state": "bound"}
    await pair.say("n1", **dict.fromkeys(at["n1"], bound))
    view = await world.get(held)
    assert view.bound.since is None
    assert [each.node for each in view.bound.nodes] == ["n1"]
    world.clock.advance(seconds=10)
    await pair.say("n2", **dict.fromkeys(at["n2"], bound))
    view = await world.get(held)
    assert view.bound.since == world.clock()
    assert {each.node for each in view.bound.nodes} == {"n1", "n2"}


@pytest.mark.parametrize("missing", ["at", "device"])
async def test_who_says_that_it_has_handed_something_out_says_what_and_when(pair, missing):
    word = told(pair.world, "res_1.0", {"state": "bound"})
    del word[missing]
    report = pair.nodes["n1"].report().model_dump(by_alias=True)
    with pytest.raises(ValidationError, match=missing):
        NodeReport.model_validate({**report, "allocations": [word]})
