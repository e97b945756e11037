"""Whatever order things come in, no node is cut otherwise under a holder, and every change ends.

The judge is the simulated machine: whoever is active holds an instance that it really has. What the
gate should want of each node is worked out here from the layouts that were asked for.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from services_world import open_world

from apportion.errors import ConflictError, InvalidInputError, InvalidStateError
from apportion.partitions.service import get_spec, take_report
from apportion.pools.schemas import PoolUpdate
from apportion.pools.service import get_pool, update_pool
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nodes import SimulatedNode

LAYOUTS = ("all-1g.10gb", "mixed:2x3g.40gb", "mixed:3g.40gb+2x2g.20gb")
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
NODES = ("n1", "n2")
GPUS = 2
ACTIVE = """
    SELECT nodes.name AS node, gpus.index, atoms.profile, atoms.start, reservation_id
    FROM bookings
    JOIN gpus ON gpus.id = bookings.gpu_id
    JOIN nodes ON nodes.id = gpus.node_id
    JOIN atoms ON atoms.id = atom_id
    WHERE voided_at IS NULL AND during @> %s::timestamptz"""
BILLED = """
    SELECT nodes.name AS node, share_num, share_den, upper(units) - lower(units) AS units
    FROM bookings
    JOIN gpus ON gpus.id = bookings.gpu_id
    JOIN nodes ON nodes.id = gpus.node_id
    WHERE voided_at IS NULL AND reservation_id IS NOT NULL AND during && tstzrange(%s, NULL)"""
LATER = """
    SELECT nodes.name AS node, upper(during) > '9990-01-01' AS endless FROM bookings
    JOIN gpus ON gpus.id = bookings.gpu_id
    JOIN nodes ON nodes.id = gpus.node_id
    WHERE voided_at IS NULL AND reservation_id IS NOT NULL AND during && tstzrange(%s, NULL)"""
STATES = """
    SELECT name, state, granted, pending, hold_from, node_layouts.reason
    FROM node_layouts JOIN nodes ON id = node_id"""

names = st.sampled_from(NODES)


class Gate(RuleBasedStateMachine):
    """Two machines, one pool, changes, holders, and messages that come late, twice or never."""

    template = None
    cuts = tuple({"migLayout": layout} for layout in LAYOUTS)
    sharing = "mig"

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.desired = self.cuts[0]
        self.nodes, self.ids, self.specs, self.reports = {}, {}, {}, {}
        self.held = []
        self.before = {}
        self.delivered = None
        self.world = self.run(self.open())

    def run(self, work):
        return self.runner.run(work)

    async def open(self):
        world = await open_world(self.stack, self.template)
        self.pool = await world.pool(pool_of("H100", self.sharing, openEnded=True, **self.desired))
        for name in NODES:
            layout = self.desired.get("migLayout")
            node = SimulatedNode(name, "H100", gpus=GPUS, layout=layout)
            [self.ids[name]] = await world.report(self.pool, node.inventory())
            self.nodes[name], self.specs[name], self.reports[name] = node, [], []
            node.read(await get_spec(world.runtime, world.caller, self.ids[name]))
            node.apply()
            await take_report(world.runtime, world.caller, self.ids[name], node.report())
        return world

    def teardown(self):
        try:
            self.run(self.finish())
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    async def finish(self):
        """Let everybody go home: then every change must apply, for nothing is in its way."""
        for one in self.held:
            await self.world.reservations.release(self.world.caller, one)
        for _ in range(4 * len(NODES)):
            await self.world.tick(seconds=1)
            for name, node in self.nodes.items():
                node.read(await get_spec(self.world.runtime, self.world.caller, self.ids[name]))
                node.apply()
                await self.deliver_now(name, node.report())
        for row in await self.world.rows(STATES):
            assert (row["state"], row["granted"]) == ("settled", self.desired), row
        for node in self.nodes.values():
            assert node.cuts == machine_cut(self.desired)
        holds = "SELECT 1 FROM bookings WHERE partition_id IS NOT NULL AND voided_at IS NULL"
        assert await self.world.rows(f"{holds} AND upper_inf(during)") == []

    async def deliver_now(self, name, report):
        return await take_report(self.world.runtime, self.world.caller, self.ids[name], report)

    # -- what happens ------------------------------------------------------------------------------

    @rule(data=st.data())
    def change(self, data):
        cut = data.draw(st.sampled_from(self.cuts))

        async def work():
            world = self.world
            pool = await get_pool(world.runtime, world.caller, self.pool.id)
            policy = {"openEnded": True, **cut}
            request = PoolUpdate(version=pool.version, policy=policy)
            await update_pool(world.runtime, world.caller, pool.id, request)

        self.run(work())
        self.desired = cut

    def piece(self, size):
        return device("gpu.mig", profile=PROFILES[size])

    @rule(size=st.integers(0, 2), later=st.integers(0, 4), hours=st.integers(0, 4))
    def place(self, size, later, hours):
        """Let somebody in, for some hours or (0) without an end."""
        start = self.world.clock() + timedelta(hours=later) if later else None
        window = {"duration": f"{hours}h"} if hours else {"open_ended": True}
        request = ask(self.pool.id, self.piece(size), start=start, **window)
        self.held.append(self.run(self.world.create(request)).id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from(self.held))
        self.run(self.world.reservations.release(self.world.caller, one))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), hours=st.integers(1, 9))
    def change_end(self, data, hours):
        """Ask for another end: past the hold it is refused, before it that is fine."""
        one = data.draw(st.sampled_from(self.held))
        request = ReservationUpdate(duration=f"{hours}h")
        with suppress(ConflictError, InvalidInputError, InvalidStateError):
            self.run(self.world.reservations.update(self.world.caller, one, request))

    @rule(minutes=st.sampled_from([1, 60, 300]))
    def time_goes_by(self, minutes):
        self.run(self.world.tick(minutes=minutes))

    @rule()
    def gate_advances(self):
        """Whoever waits for its turn waits for another node's."""
        self.run(self.world.gate.advance())
        states = [row["state"] for row in self.run(self.world.rows(STATES))]
        assert "pending" not in states or {"scheduled", "granted"} & {*states}, states

    @rule()
    def server_restarts(self):
        self.world.restart()

    @rule(name=names)
    def spec_is_sent(self, name):
        spec = self.run(get_spec(self.world.runtime, self.world.caller, self.ids[name]))
        self.specs[name].append(spec)

    @rule(name=names, data=st.data())
    def spec_arrives(self, name, data):
        """Perhaps late, perhaps once more."""
        if self.specs[name]:
            self.nodes[name].read(data.draw(st.sampled_from(self.specs[name])))

    @rule(name=names, some=st.sampled_from([None, None, [0]]))
    def node_applies(self, name, some):
        self.nodes[name].apply(some)

    @rule(name=names)
    def node_reports(self, name):
        self.reports[name].append(self.nodes[name].report())

    @rule(name=names, data=st.data())
    def report_arrives(self, name, data):
        """Any that was ever sent: perhaps late, perhaps once more, perhaps never."""
        if self.reports[name]:
            self.delivered = name
            self.run(self.deliver_now(name, data.draw(st.sampled_from(self.reports[name]))))

    @rule(name=names)
    def node_speaks_too_soon(self, name):
        """Let it read what it is to be, and speak before it is that."""

        async def work():
            node = self.nodes[name]
            node.read(await get_spec(self.world.runtime, self.world.caller, self.ids[name]))
            await self.deliver_now(name, node.report())

        self.delivered = name
        self.run(work())

    @rule(name=names)
    def node_behaves(self, name):
        async def work():
            node = self.nodes[name]
            node.read(await get_spec(self.world.runtime, self.world.caller, self.ids[name]))
            node.apply()
            await self.deliver_now(name, node.report())

        self.delivered = name
        self.run(work())

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def holders_have_what_they_hold(self):
        for row in self.run(self.world.rows(ACTIVE, self.world.clock())):
            cut = self.nodes[row["node"]].cuts[row["index"]]
            assert f"{row['profile']}@{row['start']}" in cut, (row, cut)

    @invariant()
    def the_gate_stands_where_it_should(self):
        now = self.world.clock()
        rows = {row["name"]: row for row in self.run(self.world.rows(STATES))}
        later = self.run(self.world.rows(LATER, now))
        booked = {row["node"] for row in later}
        endless = {row["node"] for row in later if row["endless"]}
        under_way = [row for row in rows.values() if row["state"] in ("scheduled", "granted")]
        assert len(under_way) <= 1
        for name, row in rows.items():
            wanted = None if row["granted"] == self.desired else self.desired
            assert row["pending"] == wanted, row
            if row["state"] in ("scheduled", "granted"):
                assert name not in endless, row
            assert row["reason"]["code"], row
            if row["state"] == "granted":
                assert name not in booked
            self.judge_step(name, row)
        self.before, self.delivered = rows, None

    def judge_step(self, name, row):
        was = self.before.get(name)
        if was is None:
            return
        if was["state"] == "granted" and row["state"] != "granted":
            assert self.delivered == name, "only its own word lets a node go"
            assert self.nodes[name].cuts == machine_cut(was["granted"])
        if was["state"] == row["state"] == "scheduled":
            assert row["hold_from"] <= was["hold_from"]
        if was["granted"] != row["granted"]:
            assert row["state"] == "granted"
            assert was["pending"] == row["granted"]

    @invariant()
    def the_auditor_finds_nothing(self):
        assert self.run(self.world.findings()) == []


class Slots(Gate):
    """The same of slots: what each holder is billed tells how many there were when it came."""

    cuts = ({"replicas": 2}, {"replicas": 4}, {"replicas": 7})
    sharing = "timeslice"

    def piece(self, size):
        return device("gpu.slot", units=1 + size % 2)

    @invariant()
    def holders_have_what_they_hold(self):
        rows = {row["name"]: row for row in self.run(self.world.rows(STATES))}
        for row in self.run(self.world.rows(BILLED, self.world.clock())):
            node = rows.get(row["node"])
            slots = (self.cuts[0] if node is None else node["granted"])["replicas"]
            assert Fraction(row["share_num"], row["share_den"]) == Fraction(row["units"], slots)


def machine_cut(cut):
    """Return what the machine's GPUs have that is cut so."""
    layout = cut.get("migLayout")
    return SimulatedNode("any", "H100", gpus=GPUS, layout=layout).cuts


@pytest.mark.parametrize("machine", [Gate, Slots])
def test_any_order_of_changes_holders_and_messages(template, machine):
    machine.template = template
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 4, stateful_step_count=30, deadline=None
        ),
    )
