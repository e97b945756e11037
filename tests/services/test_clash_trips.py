"""What losing to another server costs: one trip more, in which all is read that others did."""

import tempfile
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from pools_acting import limits, offer
from services_world import World, world_on
from services_world import held_of as held_in

from apportion.bookings import service as bookings
from apportion.bookings.holding import AskedToHold
from apportion.reservations.fleet import Fleet
from apportion.reservations.placer import LOOKS_MAX
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn) as db, world_on(db) as world:
        yield world


class Wire:
    """What is said on the one connection of a server, by the driver's own account."""

    def __init__(self, file):
        self._file = file

    def counts(self):
        """Count (trips, transactions): how often we spoke and then listened, and what we began."""
        self._file.flush()
        lines = [line.split("\t") for line in Path(self._file.name).read_text().splitlines()]
        # A statement of several lines goes on below.
        said = [line for line in lines if len(line) > 3 and line[1] in "FB"]
        trips = sum(one[1] == "F" and next_[1] == "B" for one, next_ in pairwise(said))
        return trips, sum(line[1] == "F" and "BEGIN" in line[-1] for line in said)


@asynccontextmanager
async def other_server(world, dsn):
    """Give a second server, whose statements are prepared by now, and its wire."""
    async with open_pool(dsn, size=1) as db:
        with tempfile.NamedTemporaryFile("w+") as file:
            async with db.connection() as connection:
                connection.pgconn.trace(file.fileno())
            yield Reservations(Runtime(db, world.clock, key=KEY)), Wire(file)


@pytest.fixture
def beaten(monkeypatch):
    """Let others do something, one thing each time, when a server is about to hold its choice."""
    hold, coming, busy = bookings.ask_to_hold, [], False

    async def holding(*given, **named):
        nonlocal busy
        if coming and not busy:
            busy = True
            await coming.pop(0)()
            busy = False
        return await hold(*given, **named)

    monkeypatch.setattr(bookings, "ask_to_hold", holding)
    return coming


def nodes(count, gpus=4, **host):
    names = [f"n{at}" for at in range(count)]
    return [
        inventory(name, *(gpu("H100", at, node=name) for at in range(gpus)), **host)
        for name in names
    ]


async def cost(wire, what):
    """Return what something costs in (trips, transactions), and what came of it."""
    before = wire.counts()
    found = await what
    return tuple(b - a for a, b in zip(before, wire.counts(), strict=True)), found


@pytest.mark.parametrize("host", [0, 1])
async def test_a_clash_costs_one_trip_more_and_no_transaction_more(world: World, dsn, beaten, host):
    pool = await world.pool(pool_of("H100"), *nodes(8))
    request = ask(pool.id, device(), vcpu=host, duration="1h")
    async with other_server(world, dsn) as (server, wire):
        for _ in range(8):
            await server.create(world.caller, request)
        alone, _ = await cost(wire, server.create(world.caller, request))
        taken = []

        async def take():
            taken.append(await world.create(request))

        beaten.append(take)
        clash, view = await cost(wire, server.create(world.caller, request))
        assert clash == (alone[0] + 1, alone[1])
        assert view.state == taken[0].state == "active"
        assert view.bookings[0].gpu_id != taken[0].bookings[0].gpu_id
        assert await world.used(pool) == {"gpu": 11} | ({"vcpu": 11} if host else {})


@pytest.mark.parametrize("host", [{"vcpu": 40}, {"memory_gib": 40}])
async def test_losing_cpu_or_memory_alone_costs_one_trip_more_and_no_transaction_more(
    world: World, dsn, beaten, host
):
    """The GPU that was chosen is free still, but its host has no room for it any more."""
    pool = await world.pool(pool_of("H100"), *nodes(2, cpus=64, memory_gib=64))
    request = ask(pool.id, device(), **host)
    async with other_server(world, dsn) as (server, wire):
        for _ in range(8):
            view = await server.create(world.caller, request)
            await server.release(world.caller, view.id)
        alone, first = await cost(wire, server.create(world.caller, request))
        await server.release(world.caller, first.id)
        [booked] = first.bookings
        beside = [
            ("node", "In", [booked.node]),
            ("gpuUuid", "NotIn", [booked.gpu_id]),
        ]
        taken = []

        async def take():
            taken.append(await world.create(ask(pool.id, device(where=beside), **host)))

        beaten.append(take)
        clash, view = await cost(wire, server.create(world.caller, request))
        assert clash == (alone[0] + 1, alone[1])
        assert view.state == taken[0].state == "active"
        assert view.bookings[0].node != taken[0].bookings[0].node == booked.node
        world.reservations = server
        assert await world.drift() == {}


async def test_who_fits_beside_what_others_took_one_after_the_other_keeps_its_place(
    world: World, dsn, beaten
):
    """Counted together it is more than the host has; at no instant is it."""
    pool = await world.pool(pool_of("H100"), *nodes(1, memory_gib=64))
    request = ask(pool.id, device(), memory_gib=32, duration="3h")
    async with other_server(world, dsn) as (server, wire):
        for _ in range(8):
            view = await server.create(world.caller, request)
            await server.release(world.caller, view.id)
        alone, view = await cost(wire, server.create(world.caller, request))
        await server.release(world.caller, view.id)
        another = device(where=[("gpuUuid", "NotIn", [view.bookings[0].gpu_id])])

        async def take():
            for hours in (0, 1):
                start = world.clock() + timedelta(hours=hours)
                some = ask(pool.id, another, memory_gib=20, start=start, duration="1h")
                assert (await world.create(some)).state in ("placed", "active")

        beaten.append(take)
        clash, view = await cost(wire, server.create(world.caller, request))
        # What only may be in the way is told as well, and then it is written bit by bit.
        assert clash[0] <= alone[0] + 4
        assert clash[1] == alone[1]
        assert view.state == "active"
        world.reservations = server
        assert await world.drift() == {}


async def test_only_those_whose_places_are_gone_are_decided_again(world: World, beaten):
    pool = await world.pool(pool_of("H100", "mig"), *cut())
    server = Reservations(world.runtime)
    small = ask(pool.id, device("gpu.mig", profile="1g.10gb"), duration="1h")
    large = ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h")
    beaten.append(lambda: world.create(large))
    ids = await server.create_many(world.caller, [small, large, small])
    views = [await server.get(world.caller, each) for each in ids]
    assert [view.state for view in views] == ["active"] * 3
    taken = await world.rows("SELECT reservation_id, gpu_id, units::text FROM bookings")
    assert len({(row["gpu_id"], row["units"]) for row in taken}) == 4


def cut():
    return [
        inventory(name, gpu("H100", 0, "3g.40gb@4", "1g.10gb@0", "1g.10gb@1", node=name))
        for name in ("n1", "n2", "n3")
    ]


async def test_who_finds_nothing_left_waits_with_the_reason_of_that_instant(world: World, beaten):
    pool = await world.pool(pool_of("H100"), *nodes(1, gpus=2))
    server = Reservations(world.runtime)
    beaten.append(lambda: world.create(ask(pool.id, device(count=2), duration="1h")))
    view = await server.create(world.caller, ask(pool.id, device(), duration="1h"))
    assert (view.state, view.reason["code"]) == ("pending", "units_booked")
    assert await world.used(pool) == {"gpu": 2}
    # It is told in the transaction that found it out, and nothing is left of what it held.
    world.reservations = server
    assert await world.drift() == {}


async def test_one_that_loses_every_look_is_placed_by_the_next_transaction(
    world: World, dsn, beaten
):
    pool = await world.pool(pool_of("H100"), *nodes(4))
    request = ask(pool.id, device(), duration="1h")
    async with other_server(world, dsn) as (server, wire):
        for _ in range(8):
            await server.create(world.caller, request)
        alone, _ = await cost(wire, server.create(world.caller, request))

        # Of another tenant: what is to be taken back has been charged to the quota of this one.
        other = await world.tenant("other")
        await offer(world, pool, other)
        beaten.extend([lambda: world.reservations.create(other, request)] * LOOKS_MAX)
        lost, view = await cost(wire, server.create(world.caller, request))
        assert (view.state, beaten) == ("active", [])
        assert lost[1] == alone[1] + 1
        assert lost[0] < 2 * alone[0] + LOOKS_MAX
        assert (await limits(world, other, pool))["gpu"] == ("32", str(LOOKS_MAX))
        assert await world.used(pool) == {"gpu": 10}


async def test_what_was_held_for_the_first_plan_is_let_go_at_once(
    world: World, beaten, monkeypatch
):
    """Else two who lose to each other could wait for what the other no longer wants."""
    pool = await world.pool(pool_of("H100"), *nodes(1))
    hour = ask(pool.id, device(), duration="1h")
    holding, taken, held = AskedToHold.holding, [], []

    async def take():
        taken.append((await world.create(hour)).bookings[0].gpu_id)

    async def noting(asked):
        found = await holding(asked)
        if taken and not found.tells:
            held.extend(await held_of(world))
        return found

    beaten.append(take)
    monkeypatch.setattr(AskedToHold, "holding", noting)
    view = await Reservations(world.runtime).create(world.caller, hour)
    assert held == [view.bookings[0].gpu_id] != taken


async def held_of(world):
    """Return the GPUs whose rows somebody holds."""
    free = await world.rows("SELECT uuid FROM gpus FOR NO KEY UPDATE SKIP LOCKED")
    every = await world.rows("SELECT uuid FROM gpus")
    return {row["uuid"] for row in every} - {row["uuid"] for row in free}


async def test_a_picture_that_learns_late_what_is_old_by_then_reads_it_again(
    world: World, beaten, monkeypatch
):
    """What is read amid a transaction may be older than what another group has read meanwhile."""
    pool = await world.pool(pool_of("H100"), *nodes(1))
    server = world.reservations = Reservations(world.runtime)
    other = Reservations(world.runtime)
    hour = ask(pool.id, device(), duration="1h")
    learn, taken = Fleet.learn, []

    async def take():
        taken.append(await other.create(world.caller, hour))

    def learn_late(fleet, holding, since):
        fleet.learnt = holding, since

    beaten.append(take)
    monkeypatch.setattr(Fleet, "learn", learn_late)
    await server.create(world.caller, hour)
    await other.release(world.caller, taken[0].id)
    async with world.db.connection() as connection:
        await server.fleet.sync(connection, [pool.id], world.clock())
    learn(server.fleet, *server.fleet.learnt)
    assert taken[0].id in {key[2] for key in held_in(server.fleet)}
    assert await world.drift() == {}
