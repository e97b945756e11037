"""Whatever statement a connection dies at, nothing is half-written, and the pictures are right."""

from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from psycopg import AsyncConnection, OperationalError

from apportion.errors import ApportionError, UnavailableError
from apportion.store import connections
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
STATEMENTS_MAX = 60


class Killer:
    """Ends the server's side of a connection at the Nth statement from now on."""

    def __init__(self, monkeypatch):
        self.left = None
        execute = AsyncConnection.execute
        killer = self

        async def counted(connection, query, *values, **options):
            if killer.left is not None and query:  # an empty query is the pool's check of it
                killer.left -= 1
                if killer.left == 0:
                    query, values = "SELECT pg_terminate_backend(pg_backend_pid())", ()
            return await execute(connection, query, *values, **options)

        monkeypatch.setattr(AsyncConnection, "execute", counted)

    async def at_each_statement(self, act, check):
        """Do something again and again, killed one statement later each time, till it is through.

        Returns at how many statements it died.
        """
        for statement in range(1, STATEMENTS_MAX):
            self.left = statement
            try:
                outcome = await act()
            except ApportionError as error:
                assert isinstance(error, UnavailableError)  # noqa: PT017 - others are faults
                self.left = None
                await check()
            else:
                self.left = None
                return statement - 1, outcome
        raise AssertionError("too many statements")


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


async def slots(world):
    """Give a pool in which a slot from 10 to 13 needs another booking to move first."""
    pool = await world.pool(pool_of("T4", "mps", replicas=2), inventory("n1", gpu("T4", 0), cpus=8))
    slot = device("gpu.slot")
    filler = await world.create(ask(pool.id, slot, start=MONDAY + HOUR, duration="1h"))
    await world.create(ask(pool.id, slot, start=MONDAY + HOUR, duration="2h"))
    await world.release(filler)
    await world.create(ask(pool.id, slot, start=MONDAY + 3 * HOUR, duration="1h"))
    return pool


async def rows_of(world):
    tables = ("reservations", "bookings", "host_bookings", "quotas", "events")
    return [await world.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables]  # noqa: S608


async def test_a_creation_that_dies_leaves_every_table_as_it_was(world, killer):
    pool = await slots(world)
    across = ask(
        pool.id, device("gpu.slot"), start=MONDAY + HOUR, duration="3h", vcpu=2, key="across"
    )
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.drift() == {}

    died, made = await killer.at_each_statement(
        lambda: world.reservations.create_many(world.caller, [across]), check
    )
    assert died > 10
    view = await world.create(across)
    assert (made, view.state) == ([view.id], "placed")


async def test_a_release_that_dies_leaves_every_table_as_it_was(world, killer):
    pool = await slots(world)
    view = await world.create(ask(pool.id, device("gpu.slot"), vcpu=1))
    world.clock.advance(minutes=10)
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.drift() == {}

    died, _ = await killer.at_each_statement(
        lambda: world.reservations.release(world.caller, view.id), check
    )
    assert died > 6
    ended = await world.get(view)
    assert (ended.state, ended.end) == ("ended", world.clock())
    assert await world.used(pool) == {"gpu.slot": 2}


async def test_a_tick_that_dies_is_made_up_for_by_the_next(world, killer):
    pool = await slots(world)
    await world.create(ask(pool.id, device("gpu.slot", units=2), duration="1h", vcpu=8))
    patience = ask(pool.id, device("gpu.slot", units=2), duration="1h", vcpu=8)
    waiting = await world.create(patience)
    world.clock.advance(hours=4)

    async def check():
        assert await world.findings() == []
        assert await world.drift() == {}

    died, _ = await killer.at_each_statement(world.reservations.lifecycle.advance, check)
    assert died > 6
    assert (await world.get(waiting)).state == "active"
    assert await world.used(pool) == {"gpu.slot": 2, "vcpu": 8}


async def test_an_import_that_dies_leaves_every_table_as_it_was(world, killer):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@0", "3g.40gb@4"))
    )
    await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    report = inventory("n1", gpu("H100", 0, "7g.80gb@0"), gpu("H100", 1), cpus=4)
    query = "SELECT * FROM {} ORDER BY 1, 2, 3"
    tables = ("nodes", "gpus", "atoms", "node_resources", "pools", "events")
    before = [await world.rows(query.format(table)) for table in tables]

    async def check():
        assert [await world.rows(query.format(table)) for table in tables] == before

    died, _ = await killer.at_each_statement(lambda: world.report(pool, report), check)
    assert died > 8


@pytest.mark.parametrize("committed", [True, False])
async def test_a_lost_answer_to_a_commit_leaves_the_picture_as_the_database_is(
    world, monkeypatch, committed
):
    pool = await slots(world)
    begin = connections._begin

    @asynccontextmanager
    async def lost(pool_of_connections):
        async with begin(pool_of_connections) as connection:
            yield connection
            if not committed:
                await connection.close()
        # Before the answer is missed, others here have read what was committed.
        async with world.db.connection() as other:
            await world.reservations.fleet.sync(other, [pool.id], world.clock())
        raise OperationalError("the server closed the connection unexpectedly")

    request = ask(pool.id, device("gpu.slot"), start=MONDAY + HOUR, duration="1h", key="lost")
    again = ask(pool.id, device("gpu.slot"), start=MONDAY + 2 * HOUR, duration="1h", key="again")
    with monkeypatch.context() as broken:
        broken.setattr("apportion.reservations.placer.retrying", retrying_on(lost))
        with pytest.raises(UnavailableError):
            await world.create(request)
        assert await world.drift() == {}
        with pytest.raises(UnavailableError):
            await world.create(again)
    assert await world.drift() == {}
    count = await world.rows("SELECT count(*) FROM reservations WHERE name IS NULL")
    assert count == [{"count": 5 if committed else 3}]
    assert (await world.create(request)).state == "placed"


def retrying_on(begin):
    """Give a `retrying` that runs its transactions by ``begin``, once."""

    async def retrying(pool, work, **_):
        try:
            async with begin(pool) as connection:
                return await work(connection)
        except OperationalError as error:
            raise connections.translate(error) from error

    return retrying
