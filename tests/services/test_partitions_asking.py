"""A change is planned before anything happens, asked for, cancelled, and taken up again."""

from datetime import timedelta
from fractions import Fraction

import pytest
from partitions_world import HOUR, LARGE, SMALL, Nodes

from apportion.errors import InvalidInputError, NotFoundError
from apportion.partitions.schemas import LayoutAsk
from apportion.partitions.service import cancel_layout, list_layouts, plan_layout, set_layout
from apportion.pools.service import get_pool
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


class Asking(Nodes):
    async def set(self, layout):
        return await set_layout(
            self.world.runtime, self.world.caller, self.pool.id, LayoutAsk(layout=layout)
        )

    async def cancel(self):
        return await cancel_layout(self.world.runtime, self.world.caller, self.pool.id)

    async def plan(self, caller=None, **asked):
        world = self.world
        caller = caller or world.caller
        request = LayoutAsk(**asked)
        return await plan_layout(world.runtime, world.reservations, caller, self.pool.id, request)

    async def layout(self):
        pool = await get_pool(self.world.runtime, self.world.caller, self.pool.id)
        return pool.policy["migLayout"]


@pytest.fixture
async def mig(world):
    nodes = Asking(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await nodes.join("n1", "n2")
    return nodes


async def test_a_plan_says_when_who_and_how_long_and_changes_nothing(mig):
    first = await mig.place(duration="2h")
    second = await mig.world.create(
        ask(mig.pool.id, device("gpu.mig", 7, profile="1g.10gb"), duration="6h")
    )
    waits = await mig.place("3g.40gb")
    assert waits.state == "pending"
    before = await mig.world.rows("SELECT * FROM bookings ORDER BY id")
    plan = await mig.plan(layout=LARGE)
    ends = {each.name: each.free_from for each in plan.nodes}
    used = {booking.node for each in (first, second) for booking in each.bookings}
    assert plan.last_from == max(ends.values()) == MONDAY + 6 * HOUR
    assert (plan.changing, plan.ready) == (2, 2 - len(used))
    held_by = {holder for node in plan.nodes for holder in node.held_by}
    assert second.id in held_by
    by_hand = Fraction(0)
    for node in plan.nodes:
        for each in node.gpus:
            by_hand += Fraction((node.free_from - each.free_from) // timedelta(seconds=1), 3600)
    assert plan.idle_gpu_hours == by_hand
    assert plan.demand.model_dump() == {
        "waiting": 1,
        "weighed": 1,
        "fit_now": 0,
        "fit_then": 1,
        "better": True,
    }
    assert await mig.world.rows("SELECT * FROM bookings ORDER BY id") == before
    assert await mig.states() == {}


async def test_a_plan_counts_what_fits_by_the_engine(mig):
    await mig.place(duration="100h")
    for _ in range(20):
        await mig.world.create(
            ask(mig.pool.id, device("gpu.mig", 2, profile="3g.40gb"), duration="1h")
        )
    plan = await mig.plan(layout=LARGE)
    assert (plan.demand.waiting, plan.demand.fit_now, plan.demand.fit_then) == (20, 0, 4)


async def test_a_plan_names_those_without_an_end(mig):
    await mig.change(openEnded=True)
    held = await mig.place(open_ended=True)
    plan = await mig.plan(layout=LARGE)
    [node] = [each for each in plan.nodes if each.open_ended]
    assert (node.free_from, node.open_ended, node.idle_hours) == (None, [held.id], None)
    assert plan.open_ended == 1
    assert "9999" not in plan.model_dump_json()


async def test_a_plan_of_what_cannot_be_is_refused_and_so_is_that_of_anothers_pool(mig):
    for wrong in ({"layout": "all-9g.10gb"}, {"replicas": 4}, {}, {"layout": SMALL, "shares": 100}):
        with pytest.raises(InvalidInputError):
            await mig.plan(**wrong)
    acme = await mig.world.tenant("acme")
    with pytest.raises(NotFoundError):
        await mig.plan(caller=acme, layout=LARGE)


async def test_a_cancelled_change_leaves_nodes_pool_and_time_as_they_were(mig):
    await mig.place(duration="2h")
    await mig.set(LARGE)
    assert await mig.layout() == LARGE
    answer = await mig.cancel()
    assert (answer.cancelled, answer.changing, await mig.layout()) == (2, 0, SMALL)
    await mig.world.gate.advance()
    assert {row["state"] for row in (await mig.states()).values()} == {"settled"}
    assert (await mig.place(start=MONDAY + 99 * HOUR, duration="1h")).state == "placed"


async def test_what_was_granted_completes_and_the_rest_can_be_taken_up_again(mig):
    await mig.set(LARGE)
    await mig.world.gate.advance()
    answer = await mig.cancel()
    assert (answer.cancelled, answer.changing, await mig.layout()) == (1, 1, LARGE)
    [granted] = [name for name, row in (await mig.states()).items() if row["state"] == "granted"]
    await mig.converge(granted)
    await mig.world.gate.advance()
    assert {row["state"] for row in (await mig.states()).values()} == {"settled"}
    assert (await mig.set(LARGE)).changing == 1
    await mig.world.gate.advance()
    [other] = {"n1", "n2"} - {granted}
    await mig.converge(other)
    assert (await mig.states())[other]["granted"] == {"migLayout": LARGE}


async def test_the_list_tells_a_node_that_never_changed_and_one_that_does(mig):
    world = mig.world
    views = await list_layouts(world.runtime, world.caller, mig.pool.id)
    assert {(each.state, each.reason["code"]) for each in views} == {("settled", "never_changed")}
    await mig.set(LARGE)
    await world.gate.advance()
    [view] = await list_layouts(world.runtime, world.caller, mig.pool.id, state="granted")
    assert (view.granted, view.generation, view.observed_generation) == ({"migLayout": LARGE}, 2, 1)
    assert {each.state for each in view.gpus} == {"granted"}


async def test_ten_thousand_gpus_are_planned_and_frozen_in_one_go(world):
    """How long that takes, `make bench` measures."""
    mig = Asking(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    nodes = [
        inventory(f"n{at}", *(gpu("H100", index, "7g.80gb@0", node=f"n{at}") for index in range(8)))
        for at in range(1250)
    ]
    for first in range(0, 1250, 250):
        await world.report(mig.pool, *nodes[first : first + 250])
    await mig.world.create(ask(mig.pool.id, device("gpu.mig", profile="7g.80gb"), duration="2h"))
    plan = await mig.plan(layout=LARGE)
    assert (plan.changing, sum(len(node.gpus) for node in plan.nodes)) == (1250, 10_000)
    assert (await mig.set(LARGE)).changing == 1250
