"""Who does not leave keeps its units; nothing is told ready that its node has not handed out."""

from datetime import timedelta

import pytest
from partitions_world import Nodes
from test_assignments import standing

from apportion.nodes.schemas import NodeReport
from apportion.nodes.service import KEPT, list_nodes
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)
ENDING = {"state": "ending", "reason": "holder_still_there", "message": "processes 7 do not leave"}


class Telling(Nodes):
    """Nodes whose agents tell of what they hand out."""

    async def say(self, name="n1", **words):
        node = self.nodes[name]
        node.read(await self.spec(name))
        node.apply()
        report = node.report().model_dump(by_alias=True)
        rows = [told(self.world, key.replace("__", "."), word) for key, word in words.items()]
        return await self.deliver(name, NodeReport.model_validate({**report, "allocations": rows}))

    async def not_given_back(self):
        found = await list_nodes(self.world.runtime, self.world.caller, after="", limit=10)
        return [node.not_given_back for node in found]


@pytest.fixture
async def whole(world):
    nodes = Telling(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", gpus=1, layout=None)
    return nodes


def told(world, allocation_id, word):
    """Give a node's word of an allocation, with all that belongs to it."""
    device = {"device": {"uuid": f"MIG-of-{allocation_id}"}}
    return {"allocation_id": allocation_id, "at": world.clock().isoformat(), **device, **word}


def key(view):
    return f"{view.id}__0"


async def place(nodes, **window):
    return await nodes.world.create(ask(nodes.pool.id, device(), **window))


async def story(world):
    rows = await world.rows(
        "SELECT type, subject, data FROM events"
        " WHERE type ~ '^reservation.(device|overrun)' AND data ? 'reason' ORDER BY id"
    )
    return [(row["type"].partition(".")[2], row["data"]["reason"]["code"]) for row in rows]


async def standing_of(world, view):
    return standing((await world.get(view)).bookings[0])


async def test_it_is_ready_when_its_node_has_handed_it_out_and_not_before(whole):
    world, held = whole.world, await place(whole)
    await whole.say()
    assert await standing_of(world, held) == ("missing", "device_not_bound")
    waiting = {"state": "waiting", "reason": "in_use", "message": "processes 9 are on it already"}
    await whole.say(**{key(held): waiting})
    [piece] = (await world.get(held)).bookings
    assert piece.allocation.reason["node"] == {"reason": "in_use", "message": waiting["message"]}
    await whole.say(**{key(held): {"state": "bound"}})
    assert await standing_of(world, held) == ("ready", "device_there")
    await whole.say(**{key(held): {"state": "waiting", "reason": "device-missing"}})
    assert await standing_of(world, held) == ("missing", "device_not_bound")


async def test_a_node_that_tells_nothing_of_allocations_is_believed_by_its_inventory(whole):
    world, held = whole.world, await place(whole)
    await whole.converge("n1")
    assert await standing_of(world, held) == ("ready", "device_there")


async def test_who_does_not_leave_keeps_its_units_for_as_long_as_its_node_says_so(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await whole.say(**{key(held): {"state": "bound"}})
    await world.tick(hours=1)
    await whole.say(**{key(held): {**ENDING, "reason": "holder_leaving"}})
    assert (await world.get(held)).state == "ending"
    assert await standing_of(world, held) == ("withdrawn", "holder_leaving")
    assert await whole.not_given_back() == [0]
    first = world.clock() + timedelta(seconds=10)
    for _ in range(4):
        world.clock.advance(seconds=10)
        await whole.say(**{key(held): ENDING})
        assert (await place(whole, duration="1h")).reason["code"] == "units_booked"
    [piece] = (await world.get(held)).bookings
    assert standing(piece) == ("withdrawn", "holder_still_there")
    assert piece.allocation.reason["node"]["message"] == ENDING["message"]
    assert (piece.end, piece.held_until) == (MONDAY + HOUR, first + KEPT)
    assert await whole.not_given_back() == [1]
    await whole.say(**{key(held): {"state": "released"}})
    assert await standing_of(world, held) == ("withdrawn", "device_released")
    assert await whole.not_given_back() == [0]
    await world.tick(seconds=1)
    [first] = [
        row["state"]
        for row in await world.rows(
            "SELECT state FROM reservations WHERE state <> 'ended' ORDER BY created_at LIMIT 1"
        )
    ]
    assert first == "placed"
    assert await story(world) == [
        ("device_ready", "device_there"),
        ("overrun", "holder_still_there"),
        ("device_released", "device_released"),
    ]


async def test_overrun_is_billed_to_nobody(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    assert (await world.get(held)).bookings[0].held_until > MONDAY + HOUR
    await world.tick(hours=1)
    assert await world.gpu_hours() == 1


async def test_the_next_one_that_is_asked_for_already_is_told_that_it_is_blocked(whole):
    """The word of who is still there comes after the end; with the next tick way is made."""
    world, held = whole.world, await place(whole, duration="1h")
    after = await place(whole, start=MONDAY + HOUR, duration="1h")
    await world.tick(hours=1)
    blocked = {"state": "waiting", "reason": "held_by_another", "message": f"{held.id}.0 has it"}
    await whole.say(**{key(held): ENDING, key(after): blocked})
    assert await standing_of(world, after) == ("missing", "blocked_by_overrun")
    [piece] = (await world.get(held)).bookings
    assert piece.held_until == MONDAY + HOUR
    await whole.say(**{key(held): {"state": "released"}, key(after): {"state": "bound"}})
    assert await standing_of(world, after) == ("ready", "device_there")


async def test_units_are_kept_only_until_somebody_elses_window_begins(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await place(whole, start=MONDAY + HOUR + timedelta(seconds=20), duration="1h")
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    [piece] = (await world.get(held)).bookings
    assert piece.held_until == MONDAY + HOUR + timedelta(seconds=20)
    await world.tick(seconds=15)
    assert (await world.get(held)).bookings[0].held_until == MONDAY + HOUR + timedelta(seconds=20)


async def test_a_node_that_has_forgotten_it_holds_nobody_up(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    await whole.say()
    assert await standing_of(world, held) == ("withdrawn", "device_released")
    assert await whole.not_given_back() == [0]


async def test_memory_that_is_not_given_back_is_told_once_with_the_rest(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await world.tick(hours=1)
    await whole.say(**{key(held): ENDING})
    await whole.say(**{key(held): {**ENDING, "reason": "memory_not_idle"}})
    assert await standing_of(world, held) == ("withdrawn", "memory_not_idle")
    await whole.say(**{key(held): {**ENDING, "reason": "driver_gpu_lost"}})
    [piece] = (await world.get(held)).bookings
    assert piece.allocation.reason["node"]["reason"] == "driver_gpu_lost"
    assert standing(piece) == ("withdrawn", "not_given_back")
    assert [name for name, _ in await story(world)] == ["overrun"]


async def test_a_report_from_before_the_end_leaves_it_as_it_is(whole):
    world, held = whole.world, await place(whole, duration="1h")
    await whole.say(**{key(held): {"state": "bound"}})
    await world.tick(hours=1)
    await whole.say(**{key(held): {"state": "bound"}})
    assert await standing_of(world, held) == ("withdrawn", "window_over")
