"""Whatever statement a change dies at, and whoever else changes something: specs stay true."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest
from partitions_world import Nodes
from test_services_crash import Killer

from apportion.errors import ApportionError, UnavailableError
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, pool_of

pytestmark = pytest.mark.anyio
HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
async def dynamic(world):
    nodes = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout="dynamic")))
    await nodes.join("n1", layout=None)
    return nodes


async def asked(nodes):
    """Return the generation of the spec, and whose devices are in it."""
    spec = await nodes.spec("n1")
    devices = spec.units["devices"]["assignments"]
    return spec.generation, {each["reservation_id"] for each in devices}


async def begun(world):
    """Return those that their nodes have been asked for, and that live."""
    views = await world.reservations.list(world.caller, states=["placed", "active"])
    return {view.id for view in views if view.bookings[0].allocation is not None}


def steps(nodes):
    """Give what raises a spec's generation, each as what is done, and what makes up for it."""
    world = nodes.world

    async def place():
        await nodes.place("1g.10gb", duration="1h", key=f"key-{world.clock()}")

    async def tick():
        await world.reservations.lifecycle.advance()

    async def cut_short():
        for one in await begun(world):
            await world.reservations.release(world.caller, one)

    async def later():
        for one in await begun(world):
            request = ReservationUpdate(duration="3h")
            await world.reservations.update(world.caller, one, request)

    return {"place": place, "begin": tick, "extend": later, "end": tick, "release": cut_short}


@pytest.mark.parametrize("kind", ["place", "begin", "extend", "end", "release"])
async def test_a_step_that_dies_anywhere_is_whole_or_not_at_all(dynamic, monkeypatch, kind):
    world = dynamic.world
    killer = Killer(monkeypatch)
    step = steps(dynamic)[kind]
    died = 0
    for statement in range(1, 60):
        if kind == "begin":
            await dynamic.place("1g.10gb", start=world.clock() + HALF_AN_HOUR, duration="1h")
            world.clock.advance(minutes=30)
        elif kind != "place":
            await dynamic.place("1g.10gb", duration="2h")
            world.clock.advance(minutes=120 if kind == "end" else 30)
        before = await asked(dynamic), await begun(world)
        killer.left = statement
        with suppress(UnavailableError):
            await step()
        killed, killer.left = killer.left <= 0, None
        after = await asked(dynamic), await begun(world)
        assert (before == after) or (before[0][0] < after[0][0])
        assert after[0][1] == after[1]
        await step()
        generation, whose = await asked(dynamic)
        assert whose == await begun(world)
        assert generation > before[0][0]
        died += killed
        for one in whose:
            await world.reservations.release(world.caller, one)
        world.clock.advance(hours=4)
        if not killed:
            break
    assert died > 8


async def test_reports_that_die_anywhere_are_taken_in_when_sent_again(dynamic, monkeypatch):
    world, node = dynamic.world, dynamic.nodes["n1"]
    killer = Killer(monkeypatch)
    for statement in range(1, 80):
        held = await dynamic.place("1g.10gb", duration="1h")
        node.read(await dynamic.spec("n1"))
        node.apply()
        message = node.report()
        killer.left = statement
        with suppress(UnavailableError):
            await dynamic.deliver("n1", message)
        killed, killer.left = killer.left <= 0, None
        state = (await world.get(held)).bookings[0].allocation.state
        assert state == ("asked" if killed else "ready")
        await dynamic.deliver("n1", message)
        assert (await world.get(held)).bookings[0].allocation.state == "ready"
        await world.release(held)
        if not killed:
            break
    assert statement > 15
    told = await world.rows("SELECT FROM events WHERE type = 'reservation.device_ready'")
    assert len(told) == statement, "once for each, however often it was sent"


async def test_many_at_once_leave_a_spec_that_says_what_runs(dynamic):
    world = dynamic.world

    async def holder(number):
        for _ in range(4):
            with suppress(ApportionError):
                made = await world.create(
                    ask(dynamic.pool.id, device("gpu.mig", profile="1g.10gb"), vcpu=number % 3)
                )
                await asyncio.sleep(0)
                request = ReservationUpdate(duration=f"{2 + number}h")
                if made.state == "placed":
                    await world.reservations.update(world.caller, made.id, request)
                if number % 2:
                    await world.reservations.release(world.caller, made.id)

    async def machine():
        for _ in range(12):
            await dynamic.converge("n1")

    async def clock():
        for _ in range(12):
            await world.reservations.lifecycle.advance()

    await asyncio.gather(machine(), clock(), *(holder(number) for number in range(8)))
    await world.reservations.lifecycle.advance()
    _, whose = await asked(dynamic)
    assert whose == await begun(world)
    assert len(whose) == 14, "all seven of both GPUs"
    await dynamic.converge("n1")
    for one in whose:
        [piece] = (await world.reservations.get(world.caller, one)).bookings
        assert piece.allocation.state == "ready"
