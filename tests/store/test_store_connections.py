"""Connections are set up alike; transactions are whole; only what may succeed later is retried."""

import asyncio
import os
import socket
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import AsyncConnection, OperationalError
from psycopg.conninfo import conninfo_to_dict

from apportion.errors import ConflictError, InvalidInputError, UnavailableError
from apportion.store import embedded
from apportion.store.connections import (
    Connection,
    Pool,
    configured,
    open_pool,
    retrying,
    transaction,
)

pytestmark = pytest.mark.anyio

CLASH = "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"


@pytest.fixture
async def counters(db: Pool):
    """Give a pool with a table of two counters."""
    async with transaction(db) as connection:
        await connection.execute("CREATE TABLE counters (name text PRIMARY KEY, n int NOT NULL)")
        await connection.execute("INSERT INTO counters VALUES ('a', 0), ('b', 0)")
    return db


async def add(connection: Connection, name: str) -> None:
    await connection.execute("UPDATE counters SET n = n + 1 WHERE name = %s", [name])


async def totals(pool: Pool):
    async with transaction(pool) as connection:
        cursor = await connection.execute("SELECT n FROM counters ORDER BY name")
        return [row["n"] for row in await cursor.fetchall()]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("TimeZone", "UTC"),
        ("application_name", "apportion"),
        ("statement_timeout", "30s"),
        ("lock_timeout", "10s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("transaction_isolation", "read committed"),
        ("client_connection_check_interval", "1s"),
    ],
)
async def test_every_connection_is_set_up_alike(db: Pool, setting: str, value: str):
    async with transaction(db) as connection:
        cursor = await connection.execute("SELECT current_setting(%s) AS value", [setting])
        assert await cursor.fetchone() == {"value": value}


def test_what_the_dsn_says_itself_wins():
    given = "host=h user=u application_name=mine connect_timeout=3 options='-c lock_timeout=1s'"
    got = conninfo_to_dict(configured(given))
    assert (got["host"], got["application_name"], got["connect_timeout"]) == ("h", "mine", "3")
    assert str(got["options"]).endswith("-c lock_timeout=1s")


@pytest.mark.parametrize("dsn", ["nonsense", "postgresql://h/db?color=red", "host=h color=red"])
def test_a_dsn_that_cannot_be_read_is_bad_input(dsn: str):
    with pytest.raises(InvalidInputError) as caught:
        configured(dsn)
    assert caught.value.field == "database_url"


def test_a_refused_dsn_does_not_show_its_password():
    with pytest.raises(InvalidInputError) as caught:
        configured("postgresql://user:hunter2@h/db?color=red")
    assert "hunter2" not in str(caught.value)


async def test_a_database_that_cannot_be_reached_says_so_at_once():
    with pytest.raises(UnavailableError, match="cannot be reached"):
        async with open_pool("host=/nowhere user=u dbname=d"):
            pass


async def test_an_error_undoes_the_whole_block(counters: Pool):
    async def fail_half_way() -> None:
        async with transaction(counters) as connection:
            await add(connection, "a")
            raise ConflictError("ours, and not the database's")

    with pytest.raises(ConflictError, match="ours"):
        await fail_half_way()
    assert await totals(counters) == [0, 0]


async def test_what_a_deferred_constraint_refuses_at_the_commit_is_translated(db: Pool):
    async with transaction(db) as connection:
        await connection.execute(
            "CREATE TABLE pairs (id int PRIMARY KEY,"
            " other int REFERENCES pairs DEFERRABLE INITIALLY DEFERRED)"
        )
    with pytest.raises(ConflictError, match="pairs"):
        async with transaction(db) as connection:
            await connection.execute("INSERT INTO pairs VALUES (1, 2)")


async def test_a_deadlock_is_retried_and_both_sides_get_through(counters: Pool):
    """Two in opposite order: PostgreSQL ends one of them, which starts again from nothing."""
    both_hold_one = asyncio.Barrier(2)
    attempts: list[str] = []

    async def both(first: str, second: str) -> None:
        async def work(connection: Connection) -> None:
            again = first in attempts
            attempts.append(first)
            await add(connection, first)
            if not again:
                await both_hold_one.wait()
            await add(connection, second)

        await retrying(counters, work)

    await asyncio.gather(both("a", "b"), both("b", "a"))
    assert await totals(counters) == [2, 2]
    # One of them began again; where it was back before the other had woken up, once more.
    assert len(attempts) > 2


async def test_retries_are_bounded_and_their_pauses_double_with_jitter(counters: Pool):
    pauses: list[float] = []
    tries: list[Connection] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def work(connection: Connection) -> None:
        tries.append(connection)
        await add(connection, "a")
        await connection.execute(CLASH)

    with pytest.raises(UnavailableError, match="too many others"):
        await retrying(counters, work, attempts=4, jitter=lambda: 0.5, sleep=sleep)
    assert len(tries) == 4
    assert pauses == [0.01, 0.02, 0.04]
    assert await totals(counters) == [0, 0]


@pytest.mark.parametrize("state", ["23505", "57014", "40003", "P0001"])
async def test_nothing_else_is_retried(counters: Pool, state: str):
    tries: list[Connection] = []

    async def work(connection: Connection) -> None:
        tries.append(connection)
        await connection.execute(CLASH.replace("40001", state))  # pyright: ignore[reportArgumentType]

    with pytest.raises(Exception, match=r"."):
        await retrying(counters, work)
    assert len(tries) == 1


async def test_the_result_of_the_attempt_that_worked_comes_back(counters: Pool):
    async def work(connection: Connection) -> str:
        await add(connection, "b")
        return "done"

    assert await retrying(counters, work) == "done"
    assert await totals(counters) == [0, 1]


async def test_a_database_that_was_away_for_long_is_found_again_at_once(open_path: Path):
    """Its socket has another name for a while, and whoever was connected is cut off."""
    with embedded.start(open_path, durable=False) as server:
        [directory] = parse_qs(urlsplit(server.dsn).query)["host"]
        door, away = Path(directory, ".s.PGSQL.5432"), Path(directory, "away")
        async with open_pool(server.dsn, size=4) as pool:
            await asyncio.gather(*(hold_for_a_moment(pool) for _ in range(4)))
            async with await AsyncConnection.connect(server.dsn) as admin:
                door.rename(away)  # noqa: ASYNC240 - it takes no time
                await admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'apportion'"
                )
            waits = asyncio.create_task(hold_for_a_moment(pool))
            await asyncio.sleep(4)  # by then a pool that doubles its pauses waits for 3 s more
            away.rename(door)  # noqa: ASYNC240
            async with asyncio.timeout(2):
                await waits


async def hold_for_a_moment(pool: Pool):
    async with transaction(pool) as connection:
        await connection.execute("SELECT pg_sleep(0.1)")


async def test_what_a_client_has_locked_is_free_soon_after_its_death(counters: Pool, dsn: str):
    """It holds one row and waits for another; the server would keep both waiting, and the lock."""
    async with transaction(counters) as other:
        await add(other, "b")
        dying = await AsyncConnection.connect(configured(dsn))
        await dying.execute("UPDATE counters SET n = 9 WHERE name = 'a'")
        waits = asyncio.create_task(dying.execute("UPDATE counters SET n = 9 WHERE name = 'b'"))
        await asyncio.sleep(0.1)
        with socket.socket(fileno=os.dup(dying.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that was killed
        with pytest.raises(OperationalError):
            await waits
        async with asyncio.timeout(5), transaction(counters) as third:
            await add(third, "a")
        await dying.close()
    assert await totals(counters) == [1, 1]
