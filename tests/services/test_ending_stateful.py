"""In any order of words, ends and silence nothing is over while somebody is known to be on it.

The model is of machines and of what the server has been told; of the server it reads states alone.
"""

import asyncio
import re
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
from apportion.nodes.service import KEPT
from apportion.partitions.service import get_spec, take_report
from apportion.quantities.windows import parse_instant
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nodes import Made, SimulatedNode

NODES = ("n1", "n2")
PLACES = {
    f"{profile.name}@{place.start}": place.mask
    for profile in SimulatedNode("n1", "H100").board.profiles
    for place in profile.placements
}
names = st.sampled_from(NODES)


def units_of(text):
    """Read units as they are shown into a mask."""
    mask = 0
    for low, high in re.findall(r"\[(\d+),(\d*)\)", text):
        mask |= -1 << int(low) if not high else (1 << int(high)) - (1 << int(low))
    return mask


class Machine:
    """A machine of one GPU: nobody is on units of another, and holders leave when they like."""

    def __init__(self, name):
        self.node = SimulatedNode(name, "H100")
        self.asked = {}
        self.holders = {}
        self.stays = False
        self.words = {}

    def read(self, spec):
        if self.node.read(spec):
            rows = spec.units["devices"]["assignments"]
            self.asked = {row["allocation_id"]: row for row in rows}

    def act(self, now):
        wanted = [
            one for one, row in self.asked.items() if parse_instant(row["ends"], field="") > now
        ]
        for one in [one for one in self.holders if one not in wanted]:
            if self.stays:
                self.words[one] = {"state": "ending", "reason": "holder_still_there"}
            else:
                self.words[one] = {"state": "released"}
                del self.holders[one]
        for one in wanted:
            row = self.asked[one]
            place = None if row["class"] == "gpu" else f"{row['profile']}@{row['start']}"
            mask = -1 if place is None else PLACES[place]
            others = [PLACES.get(each, -1) for each in self.holders.values()]
            if one in self.holders or not any(mask & each for each in others):
                self.holders[one] = place
                self.words[one] = {"state": "bound"}
            else:
                self.words[one] = {"state": "waiting", "reason": "held_by_another"}
        self.make_instances()

    def make_instances(self):
        """Have those instances that somebody is on, and no others."""
        there = {place: one for one, place in self.holders.items() if place is not None}
        kept = {place: self.node.made.get((0, place)) for place in there}
        for place, one in there.items():
            if kept[place] is None or kept[place].allocation_id != one:
                self.node.names += 1
                uuid = f"MIG-{self.node.name}-made-{self.node.names}"
                kept[place] = Made(one, uuid)
        self.node.made = {(0, place): made for place, made in kept.items()}
        self.node.cuts = [tuple(there)]

    def report(self, world):
        known = {*self.holders, *self.asked}
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
    request = pool_of("H100")
    devices = st.builds(device)

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
        self.pool = await world.pool(self.request)
        for name, machine in self.machines.items():
            if self.request.sharing == "mig":
                machine.node.modes[0] = True
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
            and view.bookings[0].node == name
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

    @rule(later=st.integers(0, 2), minutes=st.sampled_from([2, 60, 120]), data=st.data())
    def place(self, later, minutes, data):
        now = self.world.clock()
        start = now + timedelta(hours=later) if later else None
        wanted = data.draw(self.devices)
        request = ask(self.pool.id, wanted, start=start, duration=f"{minutes}m")
        view = self.run(self.world.create(request))
        self.held.append(view.id)
        if view.state == "placed" and view.start <= now:
            assert self.on_units_of(view, self.views()) == set(), "somebody is known to be on it"

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
        self.run(self.world.reservations.lifecycle.end_due())
        self.nobody_else_has_it()

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
                # One that was cancelled before it began is over where it would have begun; one that
                # was released in that very instant has been there for the shortest time there is.
                if view.start is not None and view.end is not None:
                    first = view.start + timedelta(microseconds=1)
                    assert view.end <= max(first, self.world.clock())
                assert self.reasons.setdefault(view.id, view.reason["code"]) == view.reason["code"]
        live = [view for view in views if view.state in ("placed", "active", "ending")]
        used = self.run(self.world.used(self.pool))
        assert sum(used.values()) == len(live)

    def on_units_of(self, view, views):
        """Return who else is known to be on units of a reservation."""
        [mine] = view.bookings
        return {
            other.id
            for other in views
            if other.id != view.id and self.on.get(other.id) is not None
            for theirs in other.bookings
            if theirs.gpu_id == mine.gpu_id and units_of(theirs.units) & units_of(mine.units)
        }

    def nobody_else_has_it(self):
        """Once the clock has gone on, nobody has now what somebody else is known to be on."""
        now, views = self.world.clock(), self.views()
        for view in views:
            begun = view.state in ("placed", "active") and view.start <= now < view.end
            if begun and self.on.get(view.id) is None:
                assert self.on_units_of(view, views) == set()
            if view.delayed_from is not None and view.state == "placed" and view.start > now:
                assert view.reason["code"] == "blocked_by_overrun"
                assert view.start <= now + KEPT
                assert not self.run(self.has_room(view)), "it could begin elsewhere"

    async def has_room(self, view):
        """Tell whether any place of a GPU is nobody else's till the end of a reservation."""
        rows = await self.world.rows(
            "SELECT uuid, units::text FROM gpus LEFT JOIN bookings ON bookings.gpu_id = gpus.id"
            " AND voided_at IS NULL AND reservation_id <> %s AND during && tstzrange(%s, %s)",
            *(view.id, self.world.clock(), view.end),
        )
        taken = {}
        for row in rows:
            taken[row["uuid"]] = taken.get(row["uuid"], 0) | units_of(row["units"] or "")
        [asked] = view.devices
        selector = asked.get("selector", {"matchExpressions": []})
        profiles = [each["values"][0] for each in selector["matchExpressions"]]
        masks = [mask for place, mask in PLACES.items() if place.partition("@")[0] in profiles]
        return any(not mask & busy for busy in taken.values() for mask in masks or [-1])

    def look_closer(self):
        self.nobody_else_has_it()
        assert self.run(self.world.findings()) == []
        assert self.run(self.world.drift()) == {}


class EndsOfParts(Ends):
    """The same where holders have instances of several sizes, made for them when they begin."""

    request = pool_of("H100", "mig", migLayout="dynamic")
    devices = st.builds(
        lambda profile: device("gpu.mig", profile=profile),
        st.sampled_from(["1g.10gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("machine", [Ends, EndsOfParts])
def test_any_order_of_words_ends_and_silence(template, machine):
    machine.template = template
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 16, stateful_step_count=25, deadline=None
        ),
    )
