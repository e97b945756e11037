"""Anything that may happen, in any order, judged by the auditor and by a model of the room.

The model knows the asks and the machines, and reads which GPU was chosen; whether there was room it
counts by itself, at each instant, because slots and shares are interchangeable. By which policy a
place is chosen it does not know: under each of them what has room is placed.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import get_args

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
from apportion.pools.policy import PlacementPolicy
from apportion.reservations.schemas import LIVE, ReservationUpdate
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

POLICIES = tuple(each for each in get_args(PlacementPolicy) if each != "exact")
"""Those of single asks; batches are planned exactly."""
TOGETHER = {"slots": "gpu", "mig": "gpu", "whole": "numa"}
"""What may be asked of pieces that lie together, and may come true; NUMA nodes are not reported."""
SEATS = 48
CPUS = 8
GPUS = {"whole": 2, "slots": 2, "shares": 2}
UNITS = {"slots": 2, "shares": 100}
CUTS = (
    ("3g.40gb@4", "2g.20gb@0", "2g.20gb@2"),
    ("3g.40gb@4", "3g.40gb@0"),
    ("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4"),
)
KINDS = {
    "whole": pool_of("H100", name="whole"),
    "mig": pool_of("H100", "mig", name="mig"),
    "slots": pool_of("T4", "timeslice", name="slots", replicas=2),
    "shares": pool_of("T4", "mps", name="shares", shares=100),
}
CLASSES = {"whole": "gpu", "mig": "gpu.mig", "slots": "gpu.slot", "shares": "gpu.share"}

SIZES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}

ROWS = """
    SELECT uuid, units, ruler, lower(during) AS start, upper(during) AS end
    FROM bookings JOIN gpus ON gpus.id = gpu_id JOIN nodes ON nodes.id = node_id
    WHERE voided_at IS NULL AND nodes.name = %s"""
HOSTS = """
    SELECT vcpu_milli, lower(during) AS start, upper(during) AS end
    FROM host_bookings JOIN nodes ON nodes.id = node_id
    WHERE voided_at IS NULL AND nodes.name = %s"""


def peak(rows, start, amount):
    """Return the most that these hold at one instant: at ``start``, or where one of them begins."""
    instants = {start} | {row["start"] for row in rows if row["start"] > start}
    return max(
        sum(amount(row) for row in rows if row["start"] <= at < row["end"]) for at in instants
    )


def units_of(row):
    """Return how many slots or hundredths a booking has; the seats of shares come after those."""
    inside = [part for part in row["units"] if part.lower < row["ruler"]]
    return sum(min(part.upper, row["ruler"]) - part.lower for part in inside)


@st.composite
def wants(draw):
    """Draw an ask: pieces of one size on one node, with CPUs or without, now or later."""
    kind = draw(st.sampled_from([*KINDS, "slots", "slots"]))  # where units are dealt again
    sizes = {"slots": [1, 1, 1, 2], "shares": [1, 30, 60, 100]}.get(kind, [1])
    return {
        "kind": kind,
        "count": draw(st.sampled_from([1, 1, 1, 2])),
        "units": draw(st.sampled_from(sizes)),
        "profile": draw(st.sampled_from(sorted(SIZES))),
        "later": draw(st.sampled_from([None, 1, 2, 3, 4, 5])),
        "hours": draw(st.integers(1, 3)),
        "vcpu": draw(st.sampled_from([0, 0, 0, 0, 3, 8])),
        "policy": draw(st.sampled_from([None, *POLICIES])),
        "lie": draw(st.sampled_from(["anyhow", "anyhow", "together", "apart"])),
    }


def arrangement(wanted):
    """Say by which policy a place is to be chosen, and how its pieces are to lie."""
    together = TOGETHER.get(wanted["kind"], "node") if wanted["lie"] == "together" else "node"
    if wanted["units"] * wanted["count"] > UNITS.get(wanted["kind"], 8):
        together = "node"  # more than one GPU has is refused at once
    return {
        "policy": wanted["policy"],
        "together": together,
        "apart": wanted["lie"] == "apart",
    }


class Services(RuleBasedStateMachine):
    """One server; asks, other ends, releases, reports, and a clock that goes by fits and starts."""

    template = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.asked = {}
        self.cut = 0
        self.world = self.run(self.open())

    def run(self, work):
        return self.runner.run(work)

    async def open(self):
        world = await open_world(self.stack, self.template)
        self.pools = {kind: await world.pool(request) for kind, request in KINDS.items()}
        for kind in ("whole", "slots", "shares"):
            model = KINDS[kind].gpu_model
            gpus = [gpu(model, index, node=kind) for index in range(GPUS[kind])]
            await world.report(self.pools[kind], inventory(kind, *gpus, cpus=CPUS))
        await world.report(self.pools["mig"], self.mig_node())
        return world

    def mig_node(self):
        return inventory("mig", gpu("H100", 0, *CUTS[self.cut], node="mig"), cpus=CPUS)

    def teardown(self):
        self.run(self.stack.aclose())
        self.runner.close()

    # -- the model ---------------------------------------------------------------------------------

    async def has_room(self, wanted, now):
        """Tell whether the pool's node can take the ask in every instant of its window."""
        start = wanted["start"] or now
        end = start + timedelta(hours=wanted["hours"])
        rows, hosts = [
            [
                row
                for row in await self.world.rows(query, wanted["kind"])
                if row["start"] < end and row["end"] > start
            ]
            for query in (ROWS, HOSTS)
        ]
        used = peak(hosts, start, lambda row: row["vcpu_milli"])
        if wanted["vcpu"] and used + wanted["vcpu"] * 1000 > CPUS * 1000:
            return False
        room, lies = self.pieces(rows, wanted, start), arrangement(wanted)
        if lies["together"] in ("gpu", "numa"):  # a GPU of no known NUMA node is one by itself
            return max(room) >= wanted["count"]
        if lies["apart"]:
            return sum(each > 0 for each in room) >= wanted["count"]
        return sum(room) >= wanted["count"]

    def pieces(self, rows, wanted, start):
        """Return how many pieces of the wanted size each GPU has room for beside these bookings."""
        kind = wanted["kind"]
        if kind == "mig":
            taken = [part for row in rows for part in row["units"]]
            instances = [instance.split("@") for instance in CUTS[self.cut]]
            free = sum(
                profile == wanted["profile"]
                and not any(t.lower < int(at) + SIZES[profile] and t.upper > int(at) for t in taken)
                for profile, at in instances
            )
            return [free]
        room = []
        for uuid in (f"GPU-{kind}-{index}" for index in range(GPUS[kind])):
            own = [row for row in rows if row["uuid"] == uuid]
            if kind == "whole":
                room.append(int(not own))
                continue
            free = UNITS[kind] - peak(own, start, units_of)
            if kind == "slots":
                room.append(free // wanted["units"])
            else:
                seats = SEATS - peak(own, start, lambda _: 1)
                room.append(int(free >= wanted["units"] and seats > 0))
        return room

    # -- what happens ------------------------------------------------------------------------------

    @rule(several=st.lists(wants(), min_size=1, max_size=6))
    def create(self, several):
        for wanted in several:
            self.create_one(wanted)

    def create_one(self, wanted):
        world, kind, now = self.world, wanted["kind"], self.world.clock()
        later = wanted["later"]
        wanted["start"] = None if later is None else now + timedelta(hours=later)
        profile = wanted["profile"] if kind == "mig" else None
        piece = device(CLASSES[kind], wanted["count"], wanted["units"], profile=profile)
        request = ask(
            self.pools[kind].id,
            piece,
            duration=f"{wanted['hours']}h",
            start=wanted["start"],
            vcpu=wanted["vcpu"],
            placement=arrangement(wanted),
        )
        expected = self.run(self.has_room(wanted, now))
        view = self.run(world.create(request))
        assert (view.state != "pending") == expected, (wanted, view.reason)
        self.asked[view.id] = wanted
        gpus = Counter(each.gpu_id for each in view.bookings)
        lies = arrangement(wanted)
        assert not lies["apart"] or all(count == 1 for count in gpus.values())
        assert lies["together"] != "gpu" or len(gpus) <= 1

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from(sorted(self.asked)))
        service, caller = self.world.reservations, self.world.caller
        assert self.run(service.release(caller, one)).state in ("ended", "failed")

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), hours=st.integers(1, 8))
    def change_end(self, data, hours):
        """Let one end otherwise; what a refusal says can be had can be had."""
        one = data.draw(st.sampled_from(sorted(self.asked)))
        service, caller, now = self.world.reservations, self.world.caller, self.world.clock()
        before = self.run(service.get(caller, one))
        request = ReservationUpdate(duration=f"{hours}h")
        lives = before.state in LIVE and before.end > now
        if not lives or before.start + timedelta(hours=hours) <= now:
            refusal = InvalidInputError if lives else InvalidStateError
            with pytest.raises(refusal):
                self.run(service.update(caller, one, request))
            return
        try:
            view = self.run(service.update(caller, one, request))
        except ConflictError as error:
            assert before == self.run(service.get(caller, one))
            until = datetime.fromisoformat(error.details["free_until"])
            assert before.end <= until < before.start + timedelta(hours=hours)
            if until > before.end:  # what is said can be had, and not an instant more
                request = ReservationUpdate(end=error.details["free_until"])
                assert self.run(service.update(caller, one, request)).end == until
            return
        assert view.end == before.start + timedelta(hours=hours)
        begun = before.start <= now
        assert not begun or [b.units for b in view.bookings] == [b.units for b in before.bookings]

    @rule(minutes=st.sampled_from([1, 59, 60, 61, 200]))
    def time_passes(self, minutes):
        self.world.clock.advance(minutes=minutes)

    @rule()
    def tick(self):
        self.run(self.world.tick())
        self.run(self.nothing_waits_that_has_room())
        self.run(self.states_follow_the_clock())

    @rule(cut=st.integers(0, len(CUTS) - 1))
    def report(self, cut):
        self.cut = cut
        self.run(self.world.report(self.pools["mig"], self.mig_node()))

    @rule()
    def restart(self):
        self.world.restart()

    # -- what holds --------------------------------------------------------------------------------

    async def nothing_waits_that_has_room(self):
        now = self.world.clock()
        for view in await self.world.reservations.list(self.world.caller, states=["pending"]):
            wanted = self.asked[view.id]
            assert view.reason["message"]
            assert not await self.has_room(wanted, now), (wanted, view.reason)

    async def states_follow_the_clock(self):
        now = self.world.clock()
        for view in await self.world.reservations.list(self.world.caller, limit=1000):
            if view.state == "placed":
                assert view.start > now
            if view.state == "active":
                assert view.start <= now < view.end

    @invariant()
    def the_auditor_finds_nothing(self):
        assert self.run(self.world.findings()) == []

    @invariant()
    def the_pictures_are_those_of_the_database(self):
        assert self.run(self.world.drift()) == {}


# Thirty steps of a world each; on a busy machine they take their time.
@pytest.mark.timeout(400)
def test_whatever_happens_room_is_used_and_rules_hold(template):
    Services.template = template
    run_state_machine_as_test(
        Services,
        settings=settings(
            max_examples=settings().max_examples // 4, stateful_step_count=30, deadline=None
        ),
    )
