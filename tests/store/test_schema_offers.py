"""A pool never becomes what may not be offered while it is: its offers follow it, and refuse."""

import asyncio

import pytest
from psycopg import sql
from psycopg.errors import IntegrityError
from schema_rows import ROWS, fill, insert

from apportion.store.connections import Pool

pytestmark = pytest.mark.anyio


@pytest.fixture
async def offered(db: Pool):
    """Give a pool of root that is offered to acme, with another one that is offered to nobody."""
    await fill(db)
    await insert(db, "pools", **{**ROWS["pools"], "id": "pool_2", "name": "h200"})
    return db


async def run(pool: Pool, statement, values=()):
    """Run one statement as a transaction, and return its rows; it must have touched some."""
    async with pool.connection() as connection:
        cursor = await connection.execute(statement, values)
        assert cursor.rowcount
        return await cursor.fetchall() if cursor.description else []


def update(pool: Pool, pool_id: str = "pool_1", **changes):
    assignments = [sql.SQL("{} = %s").format(sql.Identifier(column)) for column in changes]
    statement = sql.SQL("UPDATE pools SET {} WHERE id = %s").format(sql.SQL(", ").join(assignments))
    return run(pool, statement, [*changes.values(), pool_id])


async def also_to_globex(pool: Pool, **changes):
    await insert(pool, "offers", **{**ROWS["offers"], "tenant_id": "globex", **changes})


async def refusal(pool: Pool, work) -> str | None:
    """Return the name of the constraint that refuses, and see that nothing was changed."""
    query = "SELECT pools, offers FROM pools LEFT JOIN offers ON pool_id = pools.id ORDER BY 1, 2"
    before = await run(pool, query)
    with pytest.raises(IntegrityError) as caught:
        await work
    assert await run(pool, query) == before
    return caught.value.diag.constraint_name


async def test_the_terms_of_an_offer_follow_its_pool(offered: Pool):
    await update(offered, single_tenant=True, sharing="mig")
    assert await run(offered, "SELECT sharing, single_tenant, archived FROM offers") == [
        {"sharing": "mig", "single_tenant": True, "archived": False}
    ]
    await update(offered, single_tenant=False)
    assert await run(offered, "SELECT single_tenant FROM offers") == [{"single_tenant": False}]


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"archived_at": "2026-03-02"}, "offers_not_archived"),
        ({"holds_tenant_nodes": True}, "offers_platform_nodes"),
        ({"sharing": "timeslice", "replicas": 4}, "offers_isolated"),
        ({"sharing": "mps", "shares": 100}, "offers_isolated"),
        ({"tenant_id": "acme"}, "offers_not_to_owner"),
    ],
)
async def test_an_offered_pool_does_not_become_what_may_not_be_offered(
    offered: Pool, changes, constraint: str
):
    assert await refusal(offered, update(offered, **changes)) == constraint
    await update(offered, "pool_2", **changes)  # one that is not offered may
    await run(offered, "DELETE FROM offers")
    await update(offered, **changes)


async def test_a_pool_offered_to_two_does_not_become_one_for_a_single_tenant(offered: Pool):
    await also_to_globex(offered)
    changes = {"single_tenant": True}
    assert await refusal(offered, update(offered, **changes)) == "offers_single_tenant_one"
    await run(offered, "DELETE FROM offers WHERE tenant_id = 'globex'")
    await update(offered, **changes)


async def test_a_pool_for_a_single_tenant_is_offered_to_one_alone(offered: Pool):
    await update(offered, single_tenant=True)
    second = also_to_globex(offered, single_tenant=True)
    assert await refusal(offered, second) == "offers_single_tenant_one"
    await update(offered, "pool_2", single_tenant=True)
    await also_to_globex(offered, pool_id="pool_2", single_tenant=True)  # another pool: another one


async def test_an_offer_to_descendants_keeps_its_pool_from_becoming_one_for_a_single_tenant(
    offered: Pool,
):
    await run(offered, "UPDATE offers SET include_descendants = true")
    changed = update(offered, single_tenant=True)
    assert await refusal(offered, changed) == "offers_single_tenant_alone"


ARCHIVE = "UPDATE pools SET archived_at = '2026-03-02' WHERE id = 'pool_2'"
OFFER = """
    INSERT INTO offers (pool_id, tenant_id, priority, include_descendants, created_at, updated_at,
        owner_tenant_id, sharing, single_tenant, holds_tenant_nodes, archived)
    VALUES ('pool_2', 'acme', 0, false, '2026-03-02', '2026-03-02',
        'root', 'exclusive', false, false, false)"""
WAITING = "SELECT count(*) AS count FROM pg_locks WHERE NOT granted"


@pytest.mark.parametrize(
    ("first", "second", "constraint"),
    [(ARCHIVE, OFFER, "offers_terms_fkey"), (OFFER, ARCHIVE, "offers_not_archived")],
)
async def test_of_an_offer_and_an_archive_at_once_only_the_first_happens(
    offered: Pool, first, second, constraint: str
):
    """Neither sees the other's rows: the key between the two tables is where they meet."""
    async with offered.connection() as connection:
        await connection.execute(first)
        other = asyncio.create_task(run(offered, second))
        while await run(offered, WAITING) == [{"count": 0}]:
            pass
        assert not other.done()
    with pytest.raises(IntegrityError) as caught:
        await other
    assert caught.value.diag.constraint_name == constraint
