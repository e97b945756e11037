"""Nodes that have their MIG layout from their own file: believed, told, and gated when it ends."""

import pytest
from partitions_world import HOUR, LARGE, SMALL, Nodes

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.nodes.outcomes import OwnLayout
from apportion.nodes.schemas import NodeUpdate
from apportion.nodes.service import get_node
from apportion.partitions.schemas import LayoutAsk
from apportion.partitions.service import list_layouts, plan_layout, update_node
from apportion.testing.builders import MONDAY, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


class Owning(Nodes):
    async def own(self, layout, name="n1"):
        """Have a node's file say this; it says so, and becomes it."""
        self.nodes[name].own_layout = layout
        for _ in range(2):
            await self.converge(name)

    async def view(self, name="n1"):
        return await get_node(self.world.runtime, self.world.caller, self.ids[name])

    async def take_from(self, source, name="n1"):
        request = NodeUpdate(mig_layout_from=source)
        return await update_node(self.world.runtime, self.world.caller, self.ids[name], request)

    async def told(self):
        rows = await self.world.rows(
            "SELECT before, after, data FROM events WHERE type = 'node.updated' ORDER BY id"
        )
        return [(row["before"], row["after"], row["data"]) for row in rows]


async def owning(world, asked, **join):
    nodes = Owning(world, await world.pool(pool_of("H100", "mig", migLayout=asked)))
    await nodes.join("n1", **join)
    return nodes


@pytest.fixture
async def mig(world):
    return await owning(world, SMALL)


async def test_a_node_that_says_so_has_its_own_layout_and_is_asked_for_none(mig):
    before = (await mig.spec("n1")).generation
    await mig.own(LARGE.upper())
    view, spec = await mig.view(), await mig.spec("n1")
    assert (view.own_layout, view.mig_layout_from, view.reason) == (LARGE, "node", None)
    assert (spec.generation > before, "mig-layout" in spec.units) == (True, False)
    assert (await mig.place("3g.40gb")).state == "placed"
    assert (await mig.place("1g.10gb")).state == "pending"
    [(was, now, data)] = await mig.told()
    assert was == {"own_layout": None, "mig_layout_from": "pool"}
    assert now == {"own_layout": LARGE, "mig_layout_from": "node"}
    assert (data["name"], data["generation"]) == ("n1", spec.generation)


async def test_what_a_node_has_of_its_own_its_operator_cannot_undo(mig):
    await mig.own(LARGE)
    with pytest.raises(InvalidStateError) as refused:
        await mig.take_from("pool")
    assert (refused.value.field, refused.value.given) == ("mig_layout_from", "n1")
    assert (await mig.take_from("node")).mig_layout_from == "node"
    await mig.own(None)
    assert (await mig.view()).mig_layout_from == "node"  # as the operator said meanwhile
    assert (await mig.view()).own_layout is None


async def test_a_node_that_follows_its_pool_again_does_so_in_its_turn(mig):
    await mig.own(LARGE)
    held = await mig.place("3g.40gb", start=MONDAY + HOUR, duration="3h")
    await mig.own(None)
    assert (await mig.view()).mig_layout_from == "pool"
    assert (await mig.spec("n1")).units["mig-layout"]["layout"] == LARGE
    row = (await mig.states())["n1"]
    assert (row["granted"], row["pending"]) == ({"migLayout": LARGE}, {"migLayout": SMALL})
    await mig.world.gate.advance()
    assert (await mig.states())["n1"]["hold_from"] == MONDAY + 4 * HOUR
    await mig.world.tick(hours=1)
    assert (await mig.world.get(held)).state == "placed"
    await mig.world.tick(hours=3)
    assert await mig.state() == "granted"
    await mig.converge("n1")
    assert await mig.state() == "settled"
    assert (await mig.place("1g.10gb")).state == "placed"


async def test_so_does_one_that_its_operator_lets_follow_it_again(mig):
    await mig.take_from("node")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.converge("n1")
    held = await mig.place("1g.10gb", duration="1h")
    assert held.state == "placed"
    await mig.take_from("pool")
    assert "mig-layout" not in (await mig.spec("n1")).units  # as found, until its turn
    await mig.world.gate.advance()
    assert await mig.state() == "scheduled"
    await mig.world.tick(hours=1)
    await mig.converge("n1")
    assert await mig.state() == "settled"
    assert (await mig.place("3g.40gb")).state == "placed"


async def test_in_a_pool_cut_on_demand_it_offers_what_it_has_and_nothing_else(world):
    mig = await owning(world, "dynamic", layout=None, gpus=1)
    await mig.own(LARGE)
    assert {atom.attributes["migProfile"] for atom in await instances(mig)} == {"3g.40gb"}
    assert (await mig.place("3g.40gb")).state == "placed"
    assert (await mig.place("1g.10gb")).state == "pending"
    assert (await mig.spec("n1")).units.keys() == {"devices"}


async def instances(mig):
    atoms = await mig.world.atoms(mig.pool, cls="gpu.mig")
    return [atom for atom in atoms if atom.bookable]


async def test_a_new_node_takes_work_when_it_is_cut_as_it_says_itself(world):
    mig = await owning(world, SMALL, layout=None, converged=False)
    node = mig.nodes["n1"]
    node.own_layout = LARGE
    node.read(await mig.spec("n1"))
    node.converged = {"devices": 1, "mig-layout": 1}
    await mig.deliver("n1", node.report())
    assert (await mig.view()).reason["code"] == "spec_not_converged"
    await mig.own(LARGE)
    assert (await mig.view()).reason is None


async def test_a_report_that_is_late_changes_nothing(mig):
    early = mig.nodes["n1"].report()
    await mig.own(LARGE)
    answer = await mig.deliver("n1", early)
    assert (answer.accepted, (await mig.view()).own_layout) == (False, LARGE)
    assert await mig.states() == {}


async def test_only_a_pool_can_say_that_instances_come_on_demand(mig):
    report = mig.nodes["n1"].report()
    report.mig_layout = OwnLayout(layout="Dynamic")
    with pytest.raises(InvalidInputError) as refused:
        await mig.deliver("n1", report)
    assert refused.value.field == "mig_layout.layout"


async def test_where_nothing_is_cut_by_mig_it_says_nothing(world):
    slots = Owning(world, await world.pool(pool_of("H100", "timeslice", replicas=4)))
    await slots.join("n1", layout=None)
    report = slots.nodes["n1"].report()
    report.mig_layout = OwnLayout(layout=SMALL)
    assert (await slots.deliver("n1", report)).accepted
    assert ((await slots.view()).own_layout, await slots.told()) == (None, [])


async def test_what_the_pool_asks_for_passes_by_a_node_that_has_its_own(mig):
    await mig.join("n2")
    await mig.change(migLayout=LARGE)
    assert (await mig.states())["n1"]["pending"] == {"migLayout": LARGE}
    await mig.own("all-2g.20gb")  # what it waited for is nobody's wish any more
    row = (await mig.states())["n1"]
    assert (row["state"], row["pending"]) == ("settled", None)
    await mig.change(migLayout="all-7g.80gb")
    assert (await mig.states())["n1"]["pending"] is None
    held = await mig.place("2g.20gb", duration="100h")
    assert {booking.node for booking in held.bookings} == {"n1"}
    found = await list_layouts(mig.world.runtime, mig.world.caller, mig.pool.id)
    shown = {each.name: each for each in found}["n1"]
    own = {"migLayout": "all-2g.20gb"}
    assert (shown.own_layout, shown.desired, shown.granted) == ("all-2g.20gb", own, own)
    world, ask = mig.world, LayoutAsk(layout=LARGE)
    plan = await plan_layout(world.runtime, world.reservations, world.caller, mig.pool.id, ask)
    assert [node.name for node in plan.nodes] == ["n2"]


async def test_a_node_that_was_pinned_is_unpinned_without_a_turn_while_it_has_its_own(mig):
    world = mig.world
    pinned = NodeUpdate(mig_layout=LARGE)
    await update_node(world.runtime, world.caller, mig.ids["n1"], pinned)
    await mig.own("all-2g.20gb")
    unpinned = NodeUpdate(mig_layout="pool")
    await update_node(world.runtime, world.caller, mig.ids["n1"], unpinned)
    assert (await mig.states())["n1"]["pending"] is None
    await mig.own(None)
    assert (await mig.states())["n1"]["pending"] == {"migLayout": SMALL}


async def test_a_node_that_was_pinned_goes_back_to_its_pin(mig):
    world = mig.world
    pinned = NodeUpdate(mig_layout=LARGE)
    await update_node(world.runtime, world.caller, mig.ids["n1"], pinned)
    await mig.own("all-2g.20gb")
    await mig.own(None)
    row = (await mig.states())["n1"]
    assert (row["granted"], row["pending"]) == ({"migLayout": "all-2g.20gb"}, {"migLayout": LARGE})
