"""A node is cut otherwise only when nothing of it is in anybody's hands, and says so itself."""

import pytest
from partitions_world import HOUR, LARGE, NOTHING, SMALL, Nodes

from apportion.errors import ConflictError, InvalidInputError
from apportion.nodes.schemas import NodeUpdate
from apportion.partitions import gate
from apportion.partitions.service import update_node
from apportion.partitions.turn import take_turn
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of
from apportion.testing.nodes import SimulatedNode

pytestmark = pytest.mark.anyio


@pytest.fixture
async def mig(world):
    nodes = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await nodes.join("n1")
    return nodes


async def test_an_idle_node_is_granted_at_once_and_released_by_its_word_alone(mig):
    await mig.change(migLayout=LARGE)
    assert await mig.state() == "pending"
    assert await mig.world.gate.advance() == 1
    assert await mig.state() == "granted"
    waiting = await mig.place("3g.40gb")
    assert waiting.state == "pending"
    await mig.world.tick(hours=48)  # no timer lets go
    assert await mig.state() == "granted"
    assert (await mig.place()).state == "pending"
    await mig.converge("n1")
    assert await mig.state() == "settled"
    waiting = await mig.place("3g.40gb")
    assert waiting.state == "placed"
    assert [kind for kind, _ in await mig.events()] == ["pending", "granted", "applied"]


async def test_idle_time_before_the_last_holder_ends_still_books_and_nothing_lands_past_it(mig):
    held = await mig.place(start=MONDAY + HOUR, duration="3h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    row = (await mig.states())["n1"]
    assert (row["state"], row["hold_from"]) == ("scheduled", MONDAY + 4 * HOUR)
    assert row["reason"]["held_by"] == [held.id]
    assert (await mig.place(duration="4h")).state == "placed"
    past = await mig.place(duration="241m")
    assert (past.state, past.reason["code"]) == ("pending", "layout_change_scheduled")
    assert "1 to be cut otherwise by then" in past.reason["message"]
    told = await mig.world.reservations.explain(mig.world.caller, past.id)
    assert [(each.code, each.count) for each in told.pools[0].reasons] == [
        ("layout_change_scheduled", 1)
    ]
    assert (await mig.place(start=MONDAY + 9 * HOUR, duration="1h")).state == "pending"
    await mig.world.tick(hours=4)
    assert await mig.state() == "granted"
    told = dict(await mig.events())
    assert told["scheduled"]["at"] == "2026-03-02T13:00:00Z"
    assert told["granted"]["cut"] == {"migLayout": LARGE}


async def test_a_holder_that_goes_earlier_brings_the_change_forward(mig):
    held = await mig.place(duration="8h")
    other = await mig.place(duration="2h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.world.reservations.release(mig.world.caller, held.id)
    assert await mig.world.gate.advance() == 1
    assert (await mig.states())["n1"]["hold_from"] == other.end
    assert await mig.world.gate.advance() == 0
    holds = await mig.world.rows(
        "SELECT lower(during) AS start, partition_id FROM bookings"
        " WHERE partition_id IS NOT NULL AND voided_at IS NULL ORDER BY gpu_id"
    )
    assert [row["start"] for row in holds] == [other.end] * 2
    assert holds[0]["partition_id"] == "partition:GPU-n1-0:2026-03-02T11:00:00Z"


async def test_nobody_stays_past_the_time_of_the_change(mig):
    held = await mig.place(duration="2h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    with pytest.raises(ConflictError) as refused:
        await mig.world.reservations.update(
            mig.world.caller, held.id, ReservationUpdate(duration="3h")
        )
    assert refused.value.details["free_until"] == "2026-03-02T11:00:00Z"
    [blocked] = refused.value.details["in_the_way"]
    assert blocked["code"] == "layout_change_scheduled"


async def test_a_holder_without_an_end_is_waited_for_by_name_and_keeps_nobody_else_out(mig):
    await mig.change(openEnded=True)
    held = await mig.place(open_ended=True)
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    row = (await mig.states())["n1"]
    assert (row["state"], row["hold_from"]) == ("waiting_open_ended", None)
    assert row["reason"]["held_by"] == [held.id]
    assert await mig.world.gate.advance() == 0
    assert (await mig.place(duration="9h")).state == "placed"
    await mig.world.reservations.update(mig.world.caller, held.id, ReservationUpdate(duration="1h"))
    await mig.world.gate.advance()
    assert await mig.state() == "scheduled"


async def test_a_newer_change_replaces_a_pending_one_and_going_back_cancels_it(mig):
    await mig.place(duration="1h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.change(migLayout="all-2g.20gb")
    row = (await mig.states())["n1"]
    assert (row["state"], row["pending"]) == ("scheduled", {"migLayout": "all-2g.20gb"})
    await mig.change(migLayout=SMALL)
    row = (await mig.states())["n1"]
    assert (row["state"], row["pending"], row["granted"]) == ("settled", None, {"migLayout": SMALL})
    assert (await mig.place(start=MONDAY + 9 * HOUR, duration="1h")).state == "placed"


async def test_a_granted_change_completes_before_the_next_one(mig):
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.change(migLayout="all-2g.20gb")
    assert (await mig.spec("n1")).units["mig-layout"]["layout"] == LARGE
    await mig.converge("n1")
    assert await mig.state() == "pending"
    await mig.world.gate.advance()
    assert (await mig.spec("n1")).units["mig-layout"]["layout"] == "all-2g.20gb"
    await mig.converge("n1")
    assert await mig.state() == "settled"


async def test_what_a_granted_node_says_late_or_twice_or_only_half_lets_nothing_go(mig):
    node = mig.nodes["n1"]
    early = node.report()
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    assert (await mig.deliver("n1", early)).accepted
    assert await mig.state() == "granted"
    node.read(await mig.spec("n1"))
    assert (await mig.deliver("n1", node.report())).accepted  # seen, not done
    node.apply([0])
    await mig.deliver("n1", node.report())
    assert await mig.state() == "granted"
    node.converged = {"mig-layout": node.spec.generation}  # it says so, and is not
    await mig.deliver("n1", node.report())
    assert await mig.state() == "granted"
    late = node.report()
    node.apply()
    done = node.report()
    assert (await mig.deliver("n1", done)).accepted
    assert await mig.state() == "settled"
    atoms = {atom.id for atom in await mig.world.atoms(mig.pool, cls="gpu.mig")}
    for message in (late, done, early):
        answer = await mig.deliver("n1", message)
        assert (answer.accepted, answer.reason) == (False, "report_out_of_order")
    assert {atom.id for atom in await mig.world.atoms(mig.pool, cls="gpu.mig")} == atoms


async def test_a_generation_that_nobody_asked_for_is_refused(mig):
    report = mig.nodes["n1"].report()
    for wrong, field in (
        ({"observed_generation": 9}, "observed_generation"),
        ({"converged": {"mig-layout": 2}}, "converged.mig-layout"),
        ({"inventory": inventory("n2", gpu("H100", 0))}, "inventory.node"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            await mig.deliver("n1", report.model_copy(update=wrong))
        assert refused.value.field == field


@pytest.mark.parametrize(("rule", "at_once"), [(1, 1), (2, 2), ("50%", 2), (9, 3), ("100%", 3)])
async def test_a_change_rolls_over_a_pool_and_never_takes_all_of_it_away(world, rule, at_once):
    policy = {"migLayout": SMALL, "rollout": {"maxUnavailable": rule}}
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", **policy)))
    await mig.join("n1", "n2", "n3", "n4")
    await mig.change(**policy | {"migLayout": LARGE})
    seen = set()
    while True:
        await world.gate.advance()
        states = await mig.states()
        away = [name for name, row in states.items() if row["state"] == "granted"]
        assert len(away) <= at_once
        codes = {row["reason"]["code"] for row in states.values() if row["state"] == "pending"}
        assert codes <= {"rollout_limited"}
        if not away:
            break
        seen.add(len(away))
        await mig.converge(away[0])
    assert {row["state"] for row in states.values()} == {"settled"}
    assert max(seen) == at_once


async def test_a_node_that_takes_no_layout_from_its_pool_is_let_go_at_the_grant(mig):
    request = NodeUpdate(mig_layout_from="node")
    world = mig.world
    node = await update_node(world.runtime, world.caller, mig.ids["n1"], request)
    assert (node.mig_layout_from, node.spec_generation) == ("node", 2)
    assert (await mig.spec("n1")).units == {"devices": NOTHING}
    await mig.place(duration="1h")
    await mig.change(migLayout=LARGE)
    await world.gate.advance()
    assert await mig.state() == "scheduled"
    await world.tick(hours=1)
    assert await mig.state() == "settled"
    assert (await mig.states())["n1"]["reason"]["code"] == "nobody_applies"
    assert (await mig.place()).state == "placed"  # on the old instances, which are there


async def test_a_node_that_stops_taking_its_layout_is_let_go_once_it_knows(mig):
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    before = mig.nodes["n1"].report()
    await update_node(
        mig.world.runtime,
        mig.world.caller,
        mig.ids["n1"],
        NodeUpdate(mig_layout_from="node"),
    )
    await mig.deliver("n1", before)
    assert await mig.state() == "granted"
    await mig.converge("n1")
    assert await mig.state() == "settled"


async def test_a_node_whose_reports_are_imported_is_let_go_at_the_grant(world):
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await mig.join("n1", agent=None)
    assert (await mig.place()).state == "active"  # and needs no convergence
    await world.tick(hours=1)
    await mig.change(migLayout=LARGE)
    await world.gate.advance()
    assert await mig.state() == "settled"


async def test_a_node_that_joins_later_reads_the_pools_layout_and_takes_work_once_it_has_it(mig):
    await mig.place(duration="1h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.join("n2", layout=None, converged=False)
    assert (await mig.spec("n2")).units["mig-layout"]["layout"] == LARGE
    reasons = {gpu.reason for gpu in await mig.world.atoms(mig.pool) if gpu.node == "n2"}
    assert reasons == {"spec_not_converged"}
    assert (await mig.place("3g.40gb")).state == "pending"
    await mig.deliver("n2", mig.nodes["n2"].report())  # it speaks, and is not done
    assert (await mig.place("3g.40gb")).state == "pending"
    await mig.converge("n2")
    assert (await mig.place("3g.40gb")).state == "placed"
    assert "n2" not in await mig.states()


@pytest.mark.parametrize("agent", [None, "simulated"])
async def test_slots_change_like_a_layout(world, agent):
    pool = await world.pool(pool_of("H100", "mps", replicas=4))
    slots = Nodes(world, pool)
    await slots.join("n1", gpus=1, layout=None, agent=agent)
    held = await world.create(ask(pool.id, device("gpu.slot"), duration="2h"))
    await slots.change(replicas=2)
    await world.gate.advance()
    assert await slots.state() == "scheduled"
    again = await world.create(ask(pool.id, device("gpu.slot", units=2), duration="2h"))
    assert again.state == ("active" if agent is None else "placed")
    assert again.bookings[0].share == held.bookings[0].share * 2
    past = await world.create(ask(pool.id, device("gpu.slot"), duration="3h"))
    assert past.state == "pending"
    await world.tick(hours=2)
    if agent is not None:
        assert (await world.get(past)).state == "pending"
        assert (await slots.spec("n1")).units == {
            "gpu-sharing": {"mode": "mps", "replicas": 2, "mps_units": 50, "widest": {}},
            "devices": NOTHING,
        }
        await slots.converge("n1")
        await world.tick(seconds=1)
    assert await slots.state() == "settled"
    assert len(await world.atoms(pool, cls="gpu.slot")) == 2
    assert (await world.get(past)).bookings[0].share == 2 * held.bookings[0].share


async def test_a_report_in_between_leaves_a_node_cut_as_it_was_granted(world):
    pool = await world.pool(pool_of("H100", "timeslice", replicas=4))
    slots = Nodes(world, pool)
    await slots.join("n1", gpus=1, layout=None, agent=None)
    await world.create(ask(pool.id, device("gpu.slot"), duration="2h"))
    await slots.change(shares=100)
    await world.report(pool, slots.nodes["n1"].inventory())
    assert len(await world.atoms(pool, cls="gpu.slot")) == 4
    await slots.change(replicas=4)
    await world.tick(hours=3)
    assert len(await world.atoms(pool, cls="gpu.slot")) == 4


async def test_a_gpu_that_joins_a_scheduled_node_changes_with_it(mig):
    await mig.place(duration="2h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    node = mig.nodes["n1"]
    node.gpus, node.cuts = 3, [*node.cuts, node.cuts[0]]
    await mig.deliver("n1", node.report())
    late = await mig.place(duration="3h")
    assert late.state == "placed"  # on the new one, which nobody holds yet
    await mig.world.tick(hours=2)
    row = (await mig.states())["n1"]
    assert (row["state"], row["hold_from"]) == ("scheduled", late.end)
    assert (await mig.place(duration="2h")).state == "pending"
    await mig.world.tick(hours=1)
    assert await mig.state() == "granted"


async def test_a_node_that_is_cut_so_already_is_let_go_only_when_it_has_been_asked(mig):
    """An older spec that it has yet to follow would cut it otherwise under whoever came next."""
    node = mig.nodes["n1"]
    node.cuts = SimulatedNode("any", "H100", gpus=2, layout=LARGE).cuts
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.deliver("n1", node.report())
    assert await mig.state() == "granted"
    node.read(await mig.spec("n1"))
    await mig.deliver("n1", node.report())
    assert await mig.state() == "granted", "it has read that, and is not done with it"
    await mig.converge("n1")
    assert await mig.state() == "settled"


async def test_slots_are_let_go_only_when_their_node_is_done_with_them(world):
    slots = Nodes(world, await world.pool(pool_of("H100", "mps", replicas=4)))
    await slots.join("n1", gpus=1, layout=None)
    await slots.change(replicas=2)
    await world.gate.advance()
    await slots.deliver("n1", slots.nodes["n1"].report())
    assert await slots.state() == "granted"
    await slots.converge("n1")
    assert await slots.state() == "settled"


async def test_the_gate_touches_only_nodes_that_have_something_to_do(world, monkeypatch):
    touched = []

    async def counted(connection, node_id, **of):
        touched.append(node_id)
        return await take_turn(connection, node_id, **of)

    monkeypatch.setattr(gate, "take_turn", counted)
    policy = {"migLayout": SMALL, "rollout": {"maxUnavailable": 2}}
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", **policy)))
    others = Nodes(world, await world.pool(pool_of("H100", "mig", name="others", migLayout=SMALL)))
    names = [f"n{at}" for at in range(12)]
    await mig.join(*names, gpus=1)
    await others.join("o1", gpus=1)

    async def advance():
        touched.clear()
        await world.gate.advance()
        return len(touched)

    await advance()
    assert await advance() == 0, "nobody asked for anything"
    held = [await mig.place(duration="4h") for _ in range(7 * 12)]
    await mig.change(**{**policy, "migLayout": LARGE})
    assert await advance() == 2, "as many as may change at once"
    assert await advance() == 0, "they wait for their holders, the others for them"
    scheduled = [name for name, row in (await mig.states()).items() if row["state"] == "scheduled"]
    await world.reservations.release(world.caller, held[0].id)
    [node] = {booking.node for booking in held[0].bookings}
    assert await advance() == (1 if node in scheduled else 0)
    await world.tick(hours=4)
    assert await mig.state(scheduled[0]) == "granted"
    assert await advance() == 0, "they wait for their nodes' word"
    await mig.converge(scheduled[0])
    assert await advance() == 1, "one has its turn where one is done"


async def test_going_back_to_what_was_granted_leaves_it_granted(mig):
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    await mig.change(migLayout=SMALL)
    assert (await mig.states())["n1"]["pending"] == {"migLayout": SMALL}
    await mig.change(migLayout=LARGE)
    row = (await mig.states())["n1"]
    assert (row["state"], row["granted"], row["pending"]) == ("granted", {"migLayout": LARGE}, None)
    assert (await mig.place("3g.40gb")).state == "pending"
    await mig.converge("n1")
    assert await mig.state() == "settled"


async def test_one_that_got_an_end_waits_for_its_turn_behind_others(world):
    policy = {"migLayout": SMALL, "openEnded": True}
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", **policy)))
    await mig.join("n1", "n2", gpus=1)
    held = await world.create(
        ask(mig.pool.id, device("gpu.mig", profile="1g.10gb"), open_ended=True)
    )
    await mig.change(**{**policy, "migLayout": LARGE})
    await world.gate.advance()
    [name] = {booking.node for booking in held.bookings}
    [other] = {"n1", "n2"} - {name}
    assert (await mig.state(name), await mig.state(other)) == ("waiting_open_ended", "granted")
    await world.reservations.release(world.caller, held.id)
    await world.gate.advance()
    row = (await mig.states())[name]
    assert (row["state"], row["reason"]["code"]) == ("pending", "rollout_limited")
    await mig.converge(other)
    await world.gate.advance()
    assert (await mig.state(name), await mig.state(other)) == ("granted", "settled")


async def test_a_gpu_that_joins_with_a_holder_without_an_end_sets_the_others_free(world):
    policy = {"migLayout": SMALL, "openEnded": True}
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", **policy)))
    await mig.join("n1", gpus=1)
    await mig.place(duration="2h")
    await mig.change(**{**policy, "migLayout": LARGE})
    await world.gate.advance()
    assert (await mig.place(duration="3h")).state == "pending"
    node = mig.nodes["n1"]
    node.gpus, node.cuts = 2, [*node.cuts, node.cuts[0]]
    await mig.deliver("n1", node.report())
    late = await world.create(
        ask(mig.pool.id, device("gpu.mig", profile="1g.10gb"), open_ended=True)
    )
    assert late.state == "placed"
    await world.tick(hours=2)
    assert await mig.state() == "waiting_open_ended"
    holds = "SELECT FROM bookings WHERE partition_id IS NOT NULL AND voided_at IS NULL"
    assert await world.rows(f"{holds} AND upper_inf(during)") == []
    assert (await mig.place("1g.10gb", duration="9h")).bookings != []
