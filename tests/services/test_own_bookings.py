"""What a server has booked itself it does not read again while its pictures have all of it."""

import pytest
from psycopg import AsyncConnection
from services_world import World, held_of, world_on

from apportion.bookings import service as bookings
from apportion.reservations import fleet as fleets
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn) as db, world_on(db) as world:
        yield world


@pytest.fixture
async def pool(world: World):
    names = ("n1", "n2")
    nodes = [inventory(name, *(gpu("H100", at, node=name) for at in range(4))) for name in names]
    return await world.pool(pool_of("H100"), *nodes)


@pytest.fixture
def read(monkeypatch):
    """Note whose bookings are read as changed."""
    changes, seen = bookings.changes, []

    async def noting(*given):
        horizon, gpus, hosts = await changes(*given)
        seen.extend(change.key[0] for change in gpus)
        seen.extend(change.holder for change in hosts)
        return horizon, gpus, hosts

    monkeypatch.setattr(bookings, "changes", noting)
    return seen


def before_holding(monkeypatch, what):
    """Have something happen once when what was decided is about to be held."""
    hold = bookings.ask_to_hold

    async def holding(*given, **named):
        monkeypatch.setattr(bookings, "ask_to_hold", hold)
        await what()
        return await hold(*given, **named)

    monkeypatch.setattr(bookings, "ask_to_hold", holding)


async def test_a_server_reads_what_others_booked_and_not_what_it_booked_itself(
    world: World, pool, read
):
    other = Reservations(world.runtime)
    request = ask(pool.id, device(), vcpu=1)
    await other.create(world.caller, request)
    mine = [await world.create(request) for _ in range(3)]
    read.clear()
    theirs = await other.create(world.caller, request)
    assert {*read} == {each.id for each in mine}
    read.clear()
    await world.create(request)
    assert {*read} == {theirs.id}
    assert await world.drift() == {}


async def test_what_became_of_its_own_bookings_by_others_is_read(world: World, pool):
    other = Reservations(world.runtime)
    kept, ended = [await world.create(ask(pool.id, device())) for _ in range(2)]
    await other.release(world.caller, ended.id)
    assert await world.drift() == {}
    assert {key[2] for key in held_of(world.reservations.fleet)} == {kept.id}


async def test_what_it_let_go_of_though_it_stands_is_read_again(world: World, pool):
    """As a twin with the same key does, of which the database keeps the first."""
    first = await world.create(ask(pool.id, device()))
    [key] = held_of(fleet := world.reservations.fleet)
    async with transaction(world.db) as connection:
        position = await bookings.horizon(connection)
    twin = await world.create(ask(pool.id, device()))
    fleet.indexes[pool.id].free(key[1], (first.id, 0))
    fleet.rewind("0")
    fleet.indexes[pool.id].free(twin.bookings[0].gpu_id, (twin.id, 0))
    fleet.rewind(position)
    assert await world.drift() == {}


async def test_what_is_decided_before_its_pool_is_read_anew_is_read_when_it_is_there(
    world: World, pool, monkeypatch
):
    fleet = world.reservations.fleet
    await world.create(ask(pool.id, device()))

    async def read_anew():
        fleet.forget([pool.id])
        async with transaction(world.db) as connection:
            await fleet.sync(connection, [pool.id], world.clock())

    before_holding(monkeypatch, read_anew)
    view = await world.create(ask(pool.id, device(), vcpu=1))
    assert view.state == "active"
    assert await world.drift() == {}


async def test_what_is_decided_before_others_let_go_is_read_when_it_is_there(
    world: World, pool, monkeypatch, read
):
    fleet = world.reservations.fleet
    await world.create(ask(pool.id, device()))

    async def let_go():
        async with transaction(world.db) as connection:
            fleet.rewind(await bookings.horizon(connection))

    before_holding(monkeypatch, let_go)
    view = await world.create(ask(pool.id, device()))
    read.clear()
    assert await world.drift() == {}
    assert view.id in read


async def test_of_many_transactions_the_last_ones_are_left_out(
    world: World, pool, dsn, monkeypatch, read
):
    """Where something old holds the horizon there would be ever more of them."""
    monkeypatch.setattr(fleets, "OWN_KEPT", 2)
    await world.create(ask(pool.id, device()))
    async with await AsyncConnection.connect(dsn) as old:
        await old.execute("SELECT pg_current_xact_id()")
        mine = [await world.create(ask(pool.id, device())) for _ in range(4)]
        read.clear()
        assert await world.drift() == {}
        assert {*read} == {each.id for each in mine[:2]}


@pytest.mark.parametrize("warm", range(8))
async def test_a_picture_that_has_as_free_what_is_booked_is_made_anew(
    world: World, pool, dsn, warm
):
    """However many statements of the connection are prepared when the database refuses one."""
    request = ask(pool.id, device(), vcpu=1)
    async with open_pool(dsn, size=1) as db:
        server = Reservations(Runtime(db, world.clock, key=KEY))
        for _ in range(warm):
            view = await server.create(world.caller, request)
            await server.release(world.caller, view.id)
        taken = await server.create(world.caller, request)
        await server.find_earliest(world.caller, request)
        for _, number, *key in held_of(server.fleet):
            if len(key) == 2:
                server.fleet.indexes[pool.id].free(number, tuple(key))
        views = [await server.create(world.caller, request) for _ in range(2)]
        assert [view.state for view in views] == ["active"] * 2
        gpus = {each.bookings[0].gpu_id for each in (taken, *views)}
        assert len(gpus) == 3
        assert await world.used(pool) == {"gpu": 3, "vcpu": 3}
        world.reservations = server
        assert await world.drift() == {}
    assert await world.findings() == []


async def test_a_picture_that_has_as_free_a_host_that_is_full_is_made_anew(world: World, pool):
    fleet = world.reservations.fleet
    taken = await world.create(ask(pool.id, device(), vcpu=40))
    [node] = [key[1] for key in held_of(fleet) if len(key) == 3]
    fleet.indexes[pool.id].free_host(node, taken.id)
    on_it = device(where=[("node", "In", [taken.bookings[0].node])])
    view = await world.create(ask(pool.id, on_it, vcpu=40))
    assert (view.state, view.reason["code"]) == ("pending", "host_resources_short")
    assert await world.used(pool) == {"gpu": 1, "vcpu": 40}
    assert await world.drift() == {}
    assert await world.findings() == []
