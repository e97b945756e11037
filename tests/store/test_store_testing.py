"""The PostgreSQL that tests get: a fresh database each, and nothing left of it."""

import fcntl
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from apportion.testing import postgres as testing_postgres
from apportion.testing.postgres import Template

pytestmark = pytest.mark.anyio


async def databases(server: str) -> set[str]:
    async with await AsyncConnection.connect(server) as connection:
        cursor = await connection.execute("SELECT datname FROM pg_database")
        return {name for (name,) in await cursor.fetchall()}


async def test_two_copies_are_migrated_and_know_nothing_of_each_other(template: Template):
    async with template.clone() as one, template.clone() as other:
        async with await AsyncConnection.connect(one) as connection:
            await connection.execute(
                "INSERT INTO tenants (id, ancestors, name, created_at)"
                " VALUES ('root', '{root}', 'Here', now())"
            )
        async with await AsyncConnection.connect(other) as connection:
            cursor = await connection.execute("SELECT count(*) FROM tenants")
            assert await cursor.fetchone() == (0,)


async def test_a_copy_is_dropped_whoever_is_still_connected(template: Template):
    before = await databases(template.server)
    async with template.clone() as dsn:
        connection = await AsyncConnection.connect(dsn)
        assert len(await databases(template.server)) == len(before) + 1
    assert await databases(template.server) == before
    await connection.close()


def test_what_a_killed_run_left_is_removed_and_what_a_live_one_uses_is_not(tmp_path: Path):
    for name in ("apportion-test-dead", "apportion-test-live", "apportion-test-new", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        (tmp_path / name / "data").mkdir()
    (tmp_path / "apportion-test-new" / "data").rmdir()  # its run takes the lock at this moment
    with (tmp_path / "apportion-test-live" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        testing_postgres._sweep(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"apportion-test-live", "apportion-test-new", "other"}
