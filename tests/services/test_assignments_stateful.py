"""Whatever order things come in, a node is asked for exactly what runs on it, under one number.

What a spec should have is worked out here from the reservations as their tenants see them; what is
ready from the last report that the server took, as the simulated machine was when it made it.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

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
from apportion.nodes.schemas import NodeUpdate
from apportion.partitions.service import get_spec, take_report, update_node
from apportion.quantities.windows import format_instant
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nodes import SimulatedNode

NODES = ("n1", "n2")
PIECES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", None)
names = st.sampled_from(NODES)


class Demand(RuleBasedStateMachine):
    """Two machines whose instances are made on demand, one of which may be pinned to a layout."""

    template = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.nodes, self.ids = {}, {}
        self.sent = {name: [] for name in NODES}
        self.reports = {name: [] for name in NODES}
        self.taken = {}
        self.known = {}
        self.held = []
        self.world = self.run(self.open())

    def run(self, work):
        return self.runner.run(work)

    async def open(self):
        world = await open_world(self.stack, self.template)
        policy = {"migLayout": "dynamic", "openEnded": True}
        self.pool = await world.pool(pool_of("H100", "mig", **policy))
        for name in NODES:
            node = SimulatedNode(name, "H100")
            [self.ids[name]] = await world.report(self.pool, node.inventory())
            self.nodes[name] = node
            node.read(await get_spec(world.runtime, world.caller, self.ids[name]))
            node.apply()
            await take_report(world.runtime, world.caller, self.ids[name], node.report())
        return world

    def teardown(self):
        try:
            self.finish()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    def finish(self):
        """Let everybody go home: nothing that was made for somebody is left on any machine."""
        for one in self.held:
            self.run(self.world.reservations.release(self.world.caller, one))
        for _ in range(4):
            self.run(self.world.tick(seconds=1))
            for name in NODES:
                self.node_behaves(name)
        for name, node in self.nodes.items():
            assert node.made == {}
            spec = self.run(self.spec(name))
            assert spec.units["devices"]["assignments"] == []

    async def spec(self, name):
        return await get_spec(self.world.runtime, self.world.caller, self.ids[name])

    async def deliver(self, name, report):
        answer = await take_report(self.world.runtime, self.world.caller, self.ids[name], report)
        if answer.accepted:
            self.taken[name] = report

    def apply(self, name):
        """Apply; whoever still runs keeps the very instance that was made for it."""
        node = self.nodes[name]
        before = {key: made.uuid for key, made in node.made.items()}
        owners = {made.allocation_id: key for key, made in node.made.items()}
        node.apply()
        for view in self.begun():
            for booking in view.bookings:
                if booking.node == name and booking.allocation.id in owners:
                    key = owners[booking.allocation.id]
                    assert node.made[key].uuid == before[key], booking

    def begun(self):
        states = ["placed", "active"]
        views = self.run(self.world.reservations.list(self.world.caller, states=states))
        now = self.world.clock()
        # One that is over by the clock, though no tick has said so, may be in a spec or not; and so
        # may one that begins by the clock, which has no allocation before its node is asked.
        return [
            each
            for each in views
            if (each.end is None or each.end > now)
            and each.start <= now
            and each.bookings[0].allocation is not None
        ]

    # -- what happens ------------------------------------------------------------------------------

    @rule(what=st.sampled_from(PIECES), later=st.integers(0, 2), hours=st.integers(0, 3))
    def place(self, what, later, hours):
        start = self.world.clock() + timedelta(hours=later) if later else None
        window = {"duration": f"{hours}h"} if hours else {"open_ended": True}
        piece = device() if what is None else device("gpu.mig", profile=what)
        request = ask(self.pool.id, piece, start=start, **window)
        self.held.append(self.run(self.world.create(request)).id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from(self.held))
        self.run(self.world.reservations.release(self.world.caller, one))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), hours=st.integers(1, 5))
    def change_end(self, data, hours):
        one = data.draw(st.sampled_from(self.held))
        request = ReservationUpdate(duration=f"{hours}h")
        with suppress(ConflictError, InvalidInputError, InvalidStateError):
            self.run(self.world.reservations.update(self.world.caller, one, request))

    @rule(layout=st.sampled_from(["all-1g.10gb", "pool"]))
    def pin(self, layout):
        request = NodeUpdate(mig_layout=layout)
        self.run(update_node(self.world.runtime, self.world.caller, self.ids["n2"], request))

    @rule(minutes=st.sampled_from([1, 60, 150]))
    def time_goes_by(self, minutes):
        self.run(self.world.tick(minutes=minutes))
        for view in self.run(self.world.reservations.list(self.world.caller, states=["placed"])):
            [piece] = view.bookings
            assert (piece.allocation is not None) == (view.start <= self.world.clock())
            assert piece.allocation is None or piece.allocation.state != "ready"

    @rule(minutes=st.sampled_from([30, 60]))
    def time_goes_by_without_a_tick(self, minutes):
        self.world.clock.advance(minutes=minutes)

    @rule()
    def server_restarts(self):
        self.world.restart()

    @rule(name=names)
    def spec_is_sent(self, name):
        self.sent[name].append(self.run(self.spec(name)))

    @rule(name=names, data=st.data())
    def spec_arrives(self, name, data):
        if self.sent[name]:
            self.nodes[name].read(data.draw(st.sampled_from(self.sent[name])))

    @rule(name=names)
    def node_applies(self, name):
        self.apply(name)

    @rule(name=names)
    def node_claims_to_be_done(self, name):
        node = self.nodes[name]
        if node.spec is not None:
            node.converged = dict.fromkeys(node.spec.units, node.spec.generation)

    @rule(name=names)
    def node_reports(self, name):
        self.reports[name].append(self.nodes[name].report())

    @rule(name=names, data=st.data())
    def report_arrives(self, name, data):
        if self.reports[name]:
            self.run(self.deliver(name, data.draw(st.sampled_from(self.reports[name]))))

    @rule(name=names)
    def node_behaves(self, name):
        self.nodes[name].read(self.run(self.spec(name)))
        self.apply(name)
        self.run(self.deliver(name, self.nodes[name].report()))

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def a_spec_says_what_runs_and_one_thing_under_one_number(self):
        views = self.begun()
        now = self.world.clock()
        for name in NODES:
            spec = self.run(self.spec(name))
            number, known = self.known.get(name, (0, None))
            assert spec.generation >= number
            if spec.generation == number:
                assert spec.units == known
            self.known[name] = (spec.generation, spec.units)
            asked = {
                each["allocation_id"]: (
                    each["gpu"],
                    each.get("start"),
                    each["begins"],
                    each["ends"],
                )
                for each in spec.units["devices"]["assignments"]
                if each["ends"] is None or each["ends"] > format_instant(now)
            }
            assert asked == dict(self.running_on(name, views))
            self.judge_instances(spec)

    def running_on(self, name, views):
        for view in views:
            for number, booking in enumerate(view.bookings):
                if booking.node == name:
                    place = booking.atom.partition("@")[2]
                    end = None if booking.end is None else format_instant(booking.end)
                    yield (
                        f"{view.id}.{number}",
                        (
                            booking.gpu_id,
                            int(place) if place else None,
                            format_instant(booking.start),
                            end,
                        ),
                    )

    def judge_instances(self, spec):
        wanted = spec.units["mig-layout"]
        devices = spec.units["devices"]["assignments"]
        if wanted["layout"] != "dynamic":
            return
        [on_gpu] = wanted["gpus"]
        instances = {each["allocation_id"] for each in on_gpu["instances"]}
        assert instances == {e["allocation_id"] for e in devices if e["class"] == "gpu.mig"}
        whole = any(each["class"] == "gpu" for each in devices)
        assert on_gpu["mig"] is (True if instances else False if whole else None)

    @invariant()
    def only_what_was_reported_is_ready(self):
        for view in self.begun():
            for booking in view.bookings:
                if booking.allocation is None or booking.allocation.state != "ready":
                    assert "migUuid" not in booking.attributes
                    continue
                [gpu] = self.taken[booking.node].inventory.gpus
                if booking.class_ == "gpu":
                    assert not gpu.mig.current
                    continue
                [found] = [i for i in gpu.mig.instances if i.uuid == booking.attributes["migUuid"]]
                assert found.allocation_id in (None, booking.allocation.id)
                assert (found.profile, str(found.start)) == (
                    booking.attributes["migProfile"],
                    booking.atom.rpartition("@")[2],
                )

    @invariant()
    def the_auditor_finds_nothing(self):
        assert self.run(self.world.findings()) == []


def test_any_order_of_holders_messages_and_time(template):
    Demand.template = template
    run_state_machine_as_test(
        Demand,
        settings=settings(
            max_examples=settings().max_examples // 8, stateful_step_count=30, deadline=None
        ),
    )
