"""A page of a hundred thousand reservations costs the same wherever it lies; counted, not timed."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import AsyncConnection
from services_world import World

from apportion.reservations import rows
from apportion.store.connections import open_pool
from apportion.testing.builders import pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
MANY = 100_000
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
# A reservation a second: one of a thousand is in the small pool, one of five hundred failed, the
# last thousand live.
FILL = """
    INSERT INTO reservations (
        id, tenant_id, caller, name, pool_id, candidates, state, reason, devices, vcpu_milli,
        memory_mib, duration, starts_at, ends_at, pending_until, charges, charged_tenant_id,
        request_hash, created_at, updated_at
    )
    SELECT
        'res_' || lpad(n::text, 26, '0'), 'root', 'tok', 'job-' || n %% 1000,
        CASE WHEN n %% 1000 = 0 THEN small ELSE big END, ARRAY[big, small],
        CASE WHEN n > many - 1000 THEN 'active' WHEN n %% 500 = 0 THEN 'failed' ELSE 'ended' END,
        '{"code": "expired"}', '[{"class": "gpu", "count": 1, "units": 1}]',
        0, 0, '1h', moment, moment + interval '1h', moment, '{}',
        'root', '', moment, moment
    FROM (VALUES (%(small)s, %(big)s, %(many)s::int)) AS given (small, big, many),
        generate_series(1, many) AS n,
        LATERAL (SELECT %(first)s::timestamptz + n * interval '1s' AS moment) AS at"""
FILTERS = {
    "all": {},
    "of the big pool": {"pool_id": "big"},
    "of the small pool": {"pool_id": "small"},
    "that live": {"states": ["pending", "placed", "active", "ending"]},
    "that are active": {"states": ["active"]},
    "that ended": {"states": ["ended"]},
    "that failed": {"states": ["failed"]},
    "that wait": {"states": ["pending"]},
    "of a name": {"name": "job-7"},
    "of no name that there is": {"name": "none"},
}


@pytest.fixture(scope="module")
async def crowd(template):
    """Give a world with so many, made once: no test changes anything."""
    async with template.clone() as dsn, open_pool(dsn) as db:
        world = World(db)
        pools = {
            name: (await world.pool(pool_of("H100", name=name))).id for name in ("small", "big")
        }
        async with db.connection() as connection:
            await connection.execute(FILL, {**pools, "many": MANY, "first": FIRST})
            await connection.commit()
            await connection.set_autocommit(True)
            await connection.execute("VACUUM ANALYZE reservations")
            await connection.set_autocommit(False)
        yield world, pools


@pytest.fixture
def counted(monkeypatch):
    """Give the plan of each list that is run, as it was run: with its values and how it is sent."""
    plans = []
    execute = AsyncConnection.execute

    async def explained(connection, query, *values, **options):
        if query is rows.QUERIES["list"]:
            text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query
            cursor = await execute(connection, text, *values, **options)
            plans.append((await cursor.fetchone())["QUERY PLAN"][0]["Plan"])
        return await execute(connection, query, *values, **options)

    monkeypatch.setattr(AsyncConnection, "execute", explained)
    return plans


def named(pools, **filters):
    return {**filters, "pool_id": pools[filters["pool_id"]]} if "pool_id" in filters else filters


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
async def test_a_page_reads_as_little_in_the_depth_as_at_the_beginning(crowd, counted, filters):
    world, pools = crowd
    for number in (None, 99_500, 50_000, 1_000, 150):
        before = None if number is None else (FIRST + timedelta(seconds=number), id_of(number))
        page = await world.reservations.list(
            world.caller, before=before, limit=100, **named(pools, **filters)
        )
        plan = counted.pop()
        # At most a page of the table for each item, and the way down an index.
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 120
        assert len(page) == plan["Actual Rows"] <= 100


def id_of(number):
    return f"res_{number:026d}"


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"pool_id": "small"}, 100),
        ({"states": ["failed"]}, 198),
        ({"states": ["active"]}, 1000),
        ({"name": "job-7"}, 100),
        ({"name": "job-0", "pool_id": "big"}, 0),
    ],
)
async def test_the_pages_together_are_all_that_match_each_once_newest_first(crowd, filters, count):
    world, pools = crowd
    seen, before = [], None
    while page := await world.reservations.list(
        world.caller, before=before, limit=33, **named(pools, **filters)
    ):
        seen += [view.id for view in page]
        before = (page[-1].created_at, page[-1].id)
    assert len(seen) == count
    assert seen == sorted(set(seen), reverse=True)


async def test_how_many_live_is_counted_without_reading_what_is_over(crowd):
    world, pools = crowd
    async with world.db.connection() as connection:
        text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + rows.QUERIES["standing"]
        cursor = await connection.execute(text, {"tenant_id": "root"})
        plan = (await cursor.fetchone())["QUERY PLAN"][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 120
    assert (await world.reservations.standing(world.caller)).live == {
        pools["small"]: 1,
        pools["big"]: 999,
    }


async def test_each_page_is_planned_for_the_filters_that_it_has(crowd):
    """A plan that was kept for any of them could not use the index of one."""
    world, pools = crowd
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(world.db.connection()) for _ in range(9)]
        assert len(held) == 9  # which leaves one connection for what follows
        for filters in [*FILTERS.values()] * 2:
            await world.reservations.list(world.caller, limit=3, **named(pools, **filters))
        kept = await world.rows(
            "SELECT statement FROM pg_prepared_statements"
            " WHERE position('ORDER BY created_at DESC' IN statement) > 0"
        )
    assert kept == []
