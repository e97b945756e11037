"""Nodes that are pinned to a layout of their own stand in a pool beside those that follow it."""

import pytest
from partitions_world import HOUR, LARGE, SMALL
from test_partitions_asking import Asking

from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError
from apportion.nodes.schemas import NodeUpdate
from apportion.partitions.service import list_layouts, update_node
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


class Pinning(Asking):
    async def pin(self, name, layout, caller=None):
        request = NodeUpdate(mig_layout=layout)
        world = self.world
        caller = caller or world.caller
        return await update_node(world.runtime, caller, self.ids[name], request)

    async def standing(self):
        found = await list_layouts(self.world.runtime, self.world.caller, self.pool.id)
        return {each.name: each for each in found}

    async def settle(self, *names):
        for _ in range(2):
            await self.world.tick(seconds=1)
            for name in names:
                await self.converge(name)


@pytest.fixture
async def mig(world):
    nodes = Pinning(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await nodes.join("n1", "n2")
    return nodes


async def test_a_pinned_node_changes_through_the_gate_and_keeps_its_layout(mig):
    held = await mig.place(duration="1h")
    [name] = {booking.node for booking in held.bookings}
    [other] = {"n1", "n2"} - {name}
    node = await mig.pin(name, LARGE.upper())
    assert node.pinned_layout == LARGE
    await mig.world.gate.advance()
    row = (await mig.states())[name]
    assert (row["state"], row["hold_from"]) == ("scheduled", MONDAY + HOUR)
    assert row["pending"] == {"migLayout": LARGE}
    assert other not in await mig.states()
    await mig.world.tick(hours=1)
    await mig.settle(name)
    standing = await mig.standing()
    assert standing[name].granted == standing[name].desired == {"migLayout": LARGE}
    assert standing[name].pinned_layout == LARGE
    assert standing[other].desired == {"migLayout": SMALL}
    assert [each.node for each in (await mig.place("3g.40gb")).bookings] == [name]
    assert [each.node for each in (await mig.place("1g.10gb")).bookings] == [other]


async def test_a_change_of_the_pool_leaves_pinned_nodes_alone(mig):
    await mig.pin("n1", SMALL)
    await mig.pin("n2", LARGE)
    await mig.settle("n2")
    plan = await mig.plan(layout="all-2g.20gb")
    assert (plan.changing, plan.unchanged) == (0, 2)
    changed = await mig.set("all-2g.20gb")
    assert changed.changing == 0
    await mig.settle("n1", "n2")
    standing = await mig.standing()
    assert standing["n1"].granted == {"migLayout": SMALL}, "never gated, and pinned to what it is"
    assert standing["n2"].granted == {"migLayout": LARGE}
    assert (await mig.spec("n1")).units["mig-layout"]["layout"] == SMALL
    await mig.world.report(mig.pool, mig.nodes["n1"].inventory())
    assert {
        atom.attributes["migProfile"] for atom in await mig.world.atoms(mig.pool, cls="gpu.mig")
    } == {
        "1g.10gb",
        "3g.40gb",
    }


async def test_a_node_that_is_let_go_of_follows_its_pool_again(mig):
    await mig.pin("n1", LARGE)
    await mig.settle("n1")
    await mig.set("all-2g.20gb")
    node = await mig.pin("n1", "pool")
    assert node.pinned_layout is None
    await mig.settle("n1", "n2")
    await mig.settle("n1", "n2")
    standing = await mig.standing()
    assert {each.state for each in standing.values()} == {"settled"}
    assert {str(each.granted) for each in standing.values()} == {"{'migLayout': 'all-2g.20gb'}"}


async def test_pinning_to_what_it_is_drops_what_was_pending(mig):
    await mig.place(duration="1h")
    await mig.pin("n1", LARGE)
    await mig.pin("n1", SMALL)
    assert (await mig.states())["n1"]["state"] == "settled"
    kinds = [kind for kind, _ in await mig.events()]
    assert kinds == ["pending", "cancelled"]


async def test_cancelling_the_pools_change_leaves_a_pin_as_it_is(mig):
    await mig.place(duration="1h")
    await mig.pin("n1", LARGE)
    await mig.set("all-2g.20gb")
    cancelled = await mig.cancel()
    assert cancelled.cancelled == 1
    assert await mig.layout() == SMALL
    assert (await mig.states())["n1"]["pending"] == {"migLayout": LARGE}


async def test_fixed_and_dynamic_gpus_live_in_one_pool(world):
    mig = Pinning(world, await world.pool(pool_of("H100", "mig", migLayout="dynamic")))
    await mig.join("n1", "n2", gpus=1, layout=None)
    await mig.pin("n1", SMALL)
    await mig.settle("n1")
    seven = [await mig.place("1g.10gb") for _ in range(7)]
    whole = await world.create(ask(mig.pool.id, device()))
    assert [each.bookings[0].node for each in seven] == ["n1"] * 7
    assert [each.node for each in whole.bookings] == ["n2"]
    waiting = await mig.place("4g.40gb")
    assert waiting.state == "pending"
    await world.release(whole)
    both = [await world.get(waiting), await mig.place("2g.20gb")]
    assert [each.bookings[0].node for each in both] == ["n2", "n2"]
    await mig.converge("n2")
    profiles = sorted(each.partition("@")[0] for each in mig.nodes["n2"].cuts[0])
    assert profiles == ["2g.20gb", "4g.40gb"]


async def test_what_cannot_be_is_refused(mig, world):
    with pytest.raises(InvalidInputError) as refused:
        await mig.pin("n1", "all-5g.10gb")
    assert refused.value.field == "mig_layout"
    with pytest.raises(InvalidInputError, match="says nothing"):
        await update_node(world.runtime, world.caller, mig.ids["n1"], NodeUpdate())
    await update_node(
        world.runtime, world.caller, mig.ids["n1"], NodeUpdate(mig_layout_from="node")
    )
    with pytest.raises(InvalidStateError):
        await mig.pin("n1", LARGE)
    with pytest.raises(NotFoundError):
        await mig.pin("n2", LARGE, caller=await world.tenant("acme"))
    slots = Pinning(world, await world.pool(pool_of("H100", "mps", replicas=4)))
    await slots.join("s1", layout=None)
    with pytest.raises(InvalidInputError):
        await slots.pin("s1", SMALL)
    assert await world.rows("SELECT FROM nodes WHERE pinned_layout IS NOT NULL") == []


async def test_pinning_says_who_it_was_before(mig, world):
    await mig.pin("n1", LARGE)
    await mig.pin("n1", LARGE)
    rows = await world.rows("SELECT data, before, after FROM events WHERE type = 'node.updated'")
    assert [(row["before"], row["after"]) for row in rows] == [
        ({"pinned_layout": None}, {"pinned_layout": LARGE})
    ]
    assert rows[0]["data"]["pinned_layout"] == LARGE
