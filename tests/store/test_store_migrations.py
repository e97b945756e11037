"""Migrations: applied once each, whole or not at all, by one of many, never over a difference."""

import asyncio

import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from apportion.errors import ApportionError, InvalidStateError, UnavailableError
from apportion.store import migrations
from apportion.store.migrations import Migration, load_migrations, migrate

pytestmark = pytest.mark.anyio

FIRST = Migration(number=1, name="first", sql="CREATE TABLE a (x int); INSERT INTO a VALUES (1)")
SECOND = Migration(number=2, name="second", sql="ALTER TABLE a ADD COLUMN y text")
BROKEN = Migration(number=2, name="broken", sql="CREATE TABLE b (x int); SELECT 1 / 0")


async def execute(dsn: str, statement):
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


@pytest.fixture
async def empty(anyio_backend: str, postgres: str):
    await execute(postgres, "CREATE DATABASE empty_one")
    yield make_conninfo(postgres, dbname="empty_one")
    await execute(postgres, "DROP DATABASE empty_one WITH (FORCE)")


async def tables(dsn: str):
    rows = await execute(dsn, "SELECT relname FROM pg_stat_user_tables ORDER BY relname")
    return [name for (name,) in rows]


async def test_an_empty_database_gets_every_step_in_order(empty: str):
    assert await migrate(empty, [FIRST, SECOND]) == [FIRST, SECOND]
    assert await execute(empty, "SELECT x, y FROM a") == [(1, None)]


async def test_a_second_run_finds_nothing_to_do(empty: str):
    await migrate(empty)
    assert list(await migrate(empty)) == []


async def test_an_older_database_gets_only_what_it_lacks(empty: str):
    await migrate(empty, [FIRST])
    assert await migrate(empty, [FIRST, SECOND]) == [SECOND]
    assert await execute(empty, "SELECT count(*) FROM a") == [(1,)]


async def test_of_many_that_start_at_once_exactly_one_migrates(empty: str):
    applied = await asyncio.gather(*(migrate(empty) for _ in range(12)))
    assert sorted(map(len, applied)) == [0] * 11 + [len(load_migrations())]


async def test_a_step_that_fails_leaves_the_version_before_it(empty: str):
    with pytest.raises(ApportionError, match="division by zero"):
        await migrate(empty, [FIRST, BROKEN])
    assert await tables(empty) == ["a", "schema_migrations"]
    assert await migrate(empty, [FIRST, SECOND]) == [SECOND]


async def test_a_database_of_a_newer_version_is_refused(empty: str):
    await migrate(empty, [FIRST, SECOND])
    with pytest.raises(InvalidStateError, match="newer than this Apportion: it has 0002_second"):
        await migrate(empty, [FIRST])


async def test_a_step_changed_after_it_was_applied_is_refused(empty: str):
    await migrate(empty, [FIRST])
    edited = Migration(number=1, name="first", sql=FIRST.sql + " -- edited")
    with pytest.raises(InvalidStateError, match="0001_first is not the one"):
        await migrate(empty, [edited, SECOND])
    assert await tables(empty) == ["a", "schema_migrations"]


async def test_a_migration_that_takes_too_long_is_named_to_those_who_wait(
    empty: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(migrations, "_WAIT_SECONDS", 0.1)
    async with await AsyncConnection.connect(empty) as other:
        await other.execute("SELECT pg_advisory_lock(%s)", [migrations._LOCK_KEY])
        with pytest.raises(UnavailableError, match="another process has been migrating"):
            await migrate(empty)


async def test_a_missing_extension_is_said_with_what_to_do(empty: str):
    needs = Migration(number=1, name="needs", sql="CREATE EXTENSION no_such_extension")
    with pytest.raises(UnavailableError, match=r"no_such_extension.*administrator"):
        await migrate(empty, [needs])


async def test_a_role_without_the_right_is_said_with_what_to_do(empty: str):
    await execute(empty, "DROP ROLE IF EXISTS visitor")
    await execute(empty, "CREATE ROLE visitor LOGIN")
    with pytest.raises(UnavailableError, match=r"permission denied.*needs CREATE"):
        await migrate(make_conninfo(empty, user="visitor"))


async def test_a_database_that_is_not_there_is_unavailable(postgres: str):
    with pytest.raises(UnavailableError, match="nowhere"):
        await migrate(make_conninfo(postgres, dbname="nowhere"))


def test_a_server_before_15_is_refused_by_its_version():
    with pytest.raises(UnavailableError, match=r"PostgreSQL 14\.9 is too old.*15 or newer"):
        migrations._check_server(140009)
    migrations._check_server(150000)


@pytest.mark.parametrize("name", ["1_x.sql", "0001.sql", "0001_X.sql", "0001_x.sql.orig", "x.sql"])
def test_a_file_name_that_does_not_fit_is_refused(name: str):
    with pytest.raises(ValueError, match="is no name of a migration"):
        migrations._read(name, "SELECT 1")


def test_the_shipped_files_count_from_one():
    assert [step.number for step in load_migrations()] == list(range(1, len(load_migrations()) + 1))


@pytest.mark.parametrize("step", load_migrations(), ids=str)
def test_a_shipped_file_has_no_transaction_of_its_own(step: Migration):
    """A COMMIT in it would end the transaction that makes it whole or nothing."""
    assert not {"BEGIN;", "COMMIT;", "CONCURRENTLY"} & set(step.sql.upper().split())
