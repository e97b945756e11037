"""Transactions: what is retried, what is not, and in which words a refusal comes out."""

import pytest

from apportion.store.connections import Pool, transaction

pytestmark = pytest.mark.anyio


async def test_a_connection_speaks_utc_and_gives_dicts(db: Pool):
    async with transaction(db) as connection:
        cursor = await connection.execute("SELECT current_setting('TimeZone') AS zone")
        assert await cursor.fetchone() == {"zone": "UTC"}


async def test_tables_are_there(db: Pool):
    async with transaction(db) as connection:
        cursor = await connection.execute("SELECT count(*) AS n FROM bookings")
        assert await cursor.fetchone() == {"n": 0}


@pytest.mark.parametrize("i", range(10))
def test_sync_uses_dsn(dsn, i):
    assert dsn
