"""Nodes that nobody hears of take nothing new, keep what is booked, and are told of everywhere."""

import pytest
from joined_node import Node

from apportion.nodes.schemas import NodeReport
from apportion.nodes.service import (
    Watch,
    get_node,
    list_gpus,
    list_nodes,
    revoke_node,
)
from apportion.partitions.service import get_spec, take_report
from apportion.pools.schemas import PoolUpdate
from apportion.pools.service import update_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100", name="p"))


@pytest.fixture
async def node(world, pool):
    node = await Node(world, "m1").join(pool)
    await node.report()
    return node


async def watched(world, watch, **by):
    """Let time go by as the clock does, look by look; return how many nodes became stale."""
    from datetime import timedelta

    left, found = timedelta(**by), 0
    while left > timedelta(0):
        step = min(left, timedelta(seconds=5))
        world.clock.advance(seconds=step.seconds)
        left -= step
        found += await watch.advance()
    return found


async def events(world, kind):
    rows = await world.rows("SELECT data FROM events WHERE type = %s ORDER BY id", kind)
    return [row["data"] for row in rows]


async def test_three_missed_reports_make_a_node_stale_and_the_next_one_ends_it(world, pool, node):
    watch = Watch(world.runtime)
    assert await watched(world, watch, seconds=25) == 0
    held = await world.create(ask(pool.id, device(), duration="1h"))
    assert await watched(world, watch, seconds=10) == 1
    view = await node.view()
    assert view.reason["code"] == "node_stale"
    assert view.reason["since"] == "2026-03-02T09:00:30Z"
    assert view.reason["heard_at"] == "2026-03-02T09:00:00Z"
    assert (await events(world, "node.stale")) == [
        {"pool_id": pool.id, "name": "m1", "heard_at": "2026-03-02T09:00:00Z", "gpus": 1}
    ]
    assert (await world.get(held)).state == "placed"
    assert await watched(world, watch, minutes=5) == 0  # it is told of once
    await node.report()
    assert (await node.view()).reason is None
    assert len(await events(world, "node.returned")) == 1


async def test_nothing_new_is_booked_on_a_stale_node_until_it_is_heard_of(world, pool, node):
    watch = Watch(world.runtime)
    await watched(world, watch, seconds=31)
    waits = await world.create(ask(pool.id, device(), duration="1h"))
    assert waits.state == "pending"
    assert waits.reason["code"] == "node_stale"
    [reason] = waits.reason["reasons"]
    assert reason == {"code": "node_stale", "count": 1, "since": "2026-03-02T09:00:30Z"}
    later = await world.create(
        ask(pool.id, device(), start=world.clock().replace(hour=20), duration="1h")
    )
    assert later.state == "pending"
    await node.report()
    await world.reservations.lifecycle.retry_pending()
    assert (await world.get(waits)).state == "placed"
    assert (await world.get(later)).state == "placed"


async def test_it_is_said_wherever_a_number_is_shown(world, pool, node):
    from datetime import timedelta

    from apportion.reservations.capacity import pool_capacity

    watch = Watch(world.runtime)
    await watched(world, watch, seconds=31)
    since = world.clock().replace(second=30)
    [shown] = await list_gpus(world.runtime, world.caller)
    assert (shown.unbookable_reason, shown.stale_since) == ("node_stale", since)
    [atom] = await world.atoms(pool)
    assert (atom.bookable, atom.reason, atom.stale_since) == (False, "node_stale", since)
    assert await world.atoms(pool, bookable=True) == []
    capacity = await pool_capacity(
        world.runtime, world.reservations.fleet, world.caller, pool.id, timedelta(hours=1)
    )
    assert (capacity.nodes, capacity.stale_nodes, capacity.stale_gpus) == (1, 1, 1)
    assert capacity.stale_since == since
    assert capacity.free == []
    [found] = await list_nodes(world.runtime, world.caller, stale=True)
    assert found.id == node.id
    assert await list_nodes(world.runtime, world.caller, stale=False) == []


async def test_a_server_that_was_away_does_not_blame_the_nodes(world, node):
    watch = Watch(world.runtime)
    world.clock.advance(hours=2)  # nobody looked: the process slept, or the database was away
    assert await watch.advance() == 0
    assert await watched(world, watch, seconds=20) == 0
    assert await watched(world, watch, seconds=15) == 1
    fresh = Watch(world.runtime)
    assert await fresh.advance() == 0


async def test_a_pool_says_how_often_it_wants_to_hear(world, pool, node):
    request = PoolUpdate(version=1, policy={"reportInterval": "1m"})
    before = await get_spec(world.runtime, node.caller, node.id)
    await update_pool(world.runtime, world.caller, pool.id, request)
    spec = await get_spec(world.runtime, node.caller, node.id)
    assert (spec.report_every_seconds, spec.generation) == (60, before.generation + 1)
    watch = Watch(world.runtime)
    assert await watched(world, watch, minutes=2, seconds=55) == 0
    assert await watched(world, watch, seconds=10) == 1


async def test_imported_nodes_are_never_stale(world, pool):
    await world.report(pool, inventory("n1", gpu("H100", 0), agent="slurm"))
    assert await watched(world, Watch(world.runtime), minutes=10) == 0


async def test_an_agent_without_a_key_is_missed_as_well_until_somebody_speaks_for_its_node(
    world, pool
):
    document = inventory("n1", gpu("H100", 0))
    [node_id] = await world.report(pool, document)
    watch = Watch(world.runtime)

    async def report(sequence):
        told = {"sequence": sequence, "observed_generation": 1, "inventory": document}
        report = NodeReport.model_validate({**told, "converged": {}})
        await take_report(world.runtime, world.caller, node_id, report)

    await report(1)
    assert await watched(world, watch, seconds=25) == 0
    await report(2)
    assert await watched(world, watch, seconds=35) == 1
    assert (await get_node(world.runtime, world.caller, node_id)).reason["code"] == "node_stale"
    await report(3)
    assert (await get_node(world.runtime, world.caller, node_id)).stale_since is None
    assert await watched(world, watch, seconds=35) == 1
    await world.report(pool, document)
    assert (await get_node(world.runtime, world.caller, node_id)).stale_since is None
    assert len(await events(world, "node.returned")) == 2
    assert await watched(world, watch, minutes=10) == 0  # from now on it is imported
    await report(4)
    assert await watched(world, watch, seconds=35) == 1


async def test_a_revoked_node_takes_nothing_new_at_once(world, pool, node):
    await revoke_node(world.runtime, world.caller, node.id)
    view = await node.view()
    assert view.reason["code"] == "node_stale"
    assert "revoked" in view.reason["message"]
    assert (await world.create(ask(pool.id, device(), duration="1h"))).state == "pending"


async def test_a_report_that_says_the_same_is_noted_and_nothing_else(world, node):
    async def counts():
        [row] = await world.rows(
            "SELECT (SELECT count(*) FROM events)::int AS events, fleet_revision, report_sequence"
            " FROM nodes JOIN pools ON pools.id = nodes.pool_id"
        )
        return row["events"], row["fleet_revision"], row["report_sequence"]

    events_before, revision, sequence = await counts()
    world.clock.advance(seconds=10)
    assert (await node.report()).accepted
    assert await counts() == (events_before, revision, sequence + 1)
    assert (await node.view()).observed_at == world.clock()
    await node.report(inventory=node.inventory(numa_node=1))
    after = await counts()
    assert (after[0] > events_before, after[1] > revision) == (True, True)
    world.clock.advance(minutes=11)  # long ago: bookings have come and gone
    before = await counts()
    await node.report(inventory=node.inventory(numa_node=1))
    assert (await counts())[1] > before[1]


async def test_missed_reports_are_told_by_their_numbers(world, node):
    node.sequence += 3
    await node.report()
    [told] = await events(world, "node.reports_missed")
    assert (told["first"], told["last"]) == (2, 4)


async def test_a_new_node_takes_work_when_it_has_passed(world):
    pool = await world.pool(pool_of("H100", name="q", acceptance=[{"kind": "diag.nvml", "x": 1}]))
    node = await Node(world, "m2").join(pool)
    assert (await node.view()).reason["code"] == "spec_not_converged"
    spec = await get_spec(world.runtime, node.caller, node.id)
    assert spec.acceptance == [{"kind": "diag.nvml", "x": 1}]
    await node.report()
    assert (await node.view()).reason["code"] == "acceptance_pending"
    failed = {"diag.nvml": {"passed": False, "details": {"gpu": "GPU-m2-0", "retired": 2}}}
    for _ in range(2):
        await node.report(acceptance=failed)
    view = await node.view()
    assert view.reason == {
        "code": "acceptance_failed",
        "message": "it has not passed diag.nvml",
        "checks": failed,
    }
    assert [atom.reason for atom in await world.atoms(pool)] == ["acceptance_failed"]
    assert len(await events(world, "node.not_accepted")) == 1
    assert (await world.create(ask(pool.id, device(), duration="1h"))).state == "pending"
    await node.report(acceptance={"diag.nvml": {"passed": True, "details": {}}})
    view = await node.view()
    assert (view.reason, view.accepted_at) == (None, world.clock())
    assert view.acceptance == {"diag.nvml": {"passed": True, "details": {}}}
    assert [atom.reason for atom in await world.atoms(pool)] == [None]
    assert len(await events(world, "node.accepted")) == 1
    await node.report(acceptance=failed)  # it is no new node any more
    assert [atom.reason for atom in await world.atoms(pool)] == [None]
    assert (await get_spec(world.runtime, node.caller, node.id)).acceptance == []


async def test_what_keeps_a_unit_from_being_done_stands_on_the_node(world, pool):
    node = await Node(world, "m3").join(pool)
    outcome = {
        "done": False,
        "reason": "device_missing",
        "message": "no such instance",
        "objects": ["GPU-m3-0"],
        "mismatches": [],
    }
    await node.report(converged={}, outcomes={"devices": outcome})
    view = await node.view()
    assert view.outcomes == {"devices": outcome}
    assert view.reason["code"] == "spec_not_converged"
    assert view.reason["units"] == {"devices": outcome}
