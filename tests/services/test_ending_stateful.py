"""In any order of words, ends and silence nothing is over while somebody is known to be on it.

The model is of machines and of what the server has been told; of the server it reads states alone.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

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
from test_holder_overrun import told

from apportion.errors import ConflictError, InvalidInputError, InvalidStateError
from apportion.nodes.schemas import NodeReport
from apportion.partitions.service import get_spec, take_report
from apportion.quantities.windows import parse_instant
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nodes import SimulatedNode

NODES = ("n1", "n2")
names = st.sampled_from(NODES)


class Machine:
    """A machine of one GPU, which one holder has at a time, and leaves when it likes."""

    def __init__(self, name):
        self.node = SimulatedNode(name, "H100")
        self.asked = {}
        self.holder = None
        self.stays = False
        self.words = {}

    def read(self, spec):
        if self.node.read(spec):
            rows = spec.units["devices"]["assignments"]
            self.asked = {row["allocation_id"]: row["ends"] for row in rows}

    def act(self, now):
        wanted = [one for one, end in self.asked.items() if parse_instant(end, field="") > now]
        if self.holder is not None and self.holder not in wanted:
            if self.stays:
                self.words[self.holder] = {"state": "ending", "reason": "holder_still_there"}
            else:
                self.words[self.holder] = {"state": "released"}
                self.holder = None
        for one in wanted:
            if self.holder in (None, one):
                self.holder = one
                self.words[one] = {"state": "bound"}
            else:
                self.words[one] = {"state": "waiting", "reason": "held_by_another"}

    def report(self, world):
        known = {self.holder, *self.asked}
        rows = [
            told(world, one, word)
            for one, word in self.words.items()
            if one in known or word["state"] == "released"
        ]
        report = self.node.report().model_dump(by_alias=True)
        return NodeReport.model_validate({**report, "allocations": rows})


class Ends(RuleBasedStateMachine):
    """Two machines whose agents tell what they hand out, and a server that is told late."""

    template = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.machines = {name: Machine(name) for name in NODES}
        self.sent = {name: [] for name in NODES}
        self.ids, self.held, self.on, self.reasons = {}, [], {}, {}
        self.world = self.run(self.open())

    def run(self, work):
        return self.runner.run(work)

    async def open(self):
        world = await open_world(self.stack, self.template)
        self.pool = await world.pool(pool_of("H100"))
        for name, machine in self.machines.items():
            [self.ids[name]] = await world.report(self.pool, machine.node.inventory())
            machine.read(await get_spec(world.runtime, world.caller, self.ids[name]))
            machine.node.apply()
            report = machine.report(world)
            await take_report(world.runtime, world.caller, self.ids[name], report)
        return world

    def teardown(self):
        try:
            self.finish()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    def finish(self):
        """Let everybody leave, and be heard of: then all is over, and charged to nobody."""
        for one in self.held:
            self.run(self.world.reservations.release(self.world.caller, one))
        for _ in range(3):
            for name, machine in self.machines.items():
                machine.stays = False
                self.node_behaves(name)
            self.run(self.world.tick(seconds=1))
        assert {view.state for view in self.views()} <= {"ended", "failed"}
        assert self.run(self.world.all_used(self.pool)) == {}
        self.look_closer()

    def views(self):
        return self.run(self.world.reservations.list(self.world.caller, limit=1000))

    def deliver(self, name, report):
        """Hear of those that it may hear of: what was withdrawn is handed out by nobody's word."""
        heard = {
            view.id
            for view in self.views()
            if view.state in ("placed", "active")
            and view.bookings[0].allocation is not None
            and view.bookings[0].allocation.state != "withdrawn"
        }
        answer = self.run(
            take_report(self.world.runtime, self.world.caller, self.ids[name], report)
        )
        if not answer.accepted:
            return
        words = {each.allocation_id[:-2]: each.state for each in report.allocations}
        for one, state in words.items():
            if state == "bound" and one in heard:
                self.on.setdefault(one, name)
        for one in [one for one, where in self.on.items() if where == name]:
            if words.get(one, "released") == "released":
                self.on[one] = None

    # -- what happens ------------------------------------------------------------------------------

    @rule(later=st.integers(0, 2), hours=st.integers(1, 2))
    def place(self, later, hours):
        now = self.world.clock()
        ending = {
            view.bookings[0].gpu_id: view
            for view in self.views()
            if view.state == "ending" and self.on.get(view.id) is not None
        }
        start = now + timedelta(hours=later) if later else None
        request = ask(self.pool.id, device(), start=start, duration=f"{hours}h")
        view = self.run(self.world.create(request))
        self.held.append(view.id)
        if view.state == "placed" and view.start <= now:
            gpu = view.bookings[0].gpu_id
            until = ending[gpu].bookings[0].held_until if gpu in ending else now
            assert until <= now, (
                "somebody is known to be on it, and its time was not anybody else's"
            )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from(self.held))
        self.run(self.world.reservations.release(self.world.caller, one))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), hours=st.integers(1, 4))
    def change_end(self, data, hours):
        one = data.draw(st.sampled_from(self.held))
        with suppress(ConflictError, InvalidInputError, InvalidStateError):
            request = ReservationUpdate(duration=f"{hours}h")
            self.run(self.world.reservations.update(self.world.caller, one, request))

    @rule(minutes=st.sampled_from([0, 1, 60]))
    def time_goes_by(self, minutes):
        self.run(self.world.tick(minutes=minutes))
        self.look_closer()

    @rule(minutes=st.sampled_from([30, 60]))
    def time_goes_by_without_a_tick(self, minutes):
        self.world.clock.advance(minutes=minutes)
        self.world.restart()
        self.run(self.world.reservations.lifecycle.keep_in_hands())

    @rule(name=names, stays=st.booleans())
    def holder_makes_up_its_mind(self, name, stays):
        self.machines[name].stays = stays

    @rule(name=names)
    def node_reads(self, name):
        spec = self.run(get_spec(self.world.runtime, self.world.caller, self.ids[name]))
        self.machines[name].read(spec)

    @rule(name=names)
    def node_acts(self, name):
        self.machines[name].act(self.world.clock())

    @rule(name=names)
    def node_reports(self, name):
        self.sent[name].append(self.machines[name].report(self.world))

    @rule(name=names, data=st.data())
    def report_arrives(self, name, data):
        if self.sent[name]:
            self.deliver(name, data.draw(st.sampled_from(self.sent[name])))

    @rule(name=names)
    def node_behaves(self, name):
        self.node_reads(name)
        self.node_acts(name)
        self.deliver(name, self.machines[name].report(self.world))

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def nothing_is_over_while_somebody_is_known_to_be_on_it(self):
        views = self.views()
        for view in views:
            if view.state == "active":
                assert view.id in self.on, "it was never handed out"
            if view.state == "ended":
                assert self.on.get(view.id) is None
            if view.state in ("ending", "ended"):
                # One that was cancelled before it began is over where it would have begun.
                assert view.end <= max(view.start, self.world.clock())
                assert self.reasons.setdefault(view.id, view.reason["code"]) == view.reason["code"]
        live = [view for view in views if view.state in ("placed", "active", "ending")]
        assert self.run(self.world.used(self.pool)) == ({"gpu": len(live)} if live else {})

    def look_closer(self):
        assert self.run(self.world.findings()) == []
        assert self.run(self.world.drift()) == {}


@pytest.mark.timeout(400)
def test_any_order_of_words_ends_and_silence(template):
    Ends.template = template
    run_state_machine_as_test(
        Ends,
        settings=settings(
            max_examples=settings().max_examples // 16, stateful_step_count=25, deadline=None
        ),
    )
