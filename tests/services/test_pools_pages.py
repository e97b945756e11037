"""Lists of pools and quotas cost one page wherever they begin, and one query whatever they hold."""

import json

import pytest
from pools_acting import offer
from psycopg import AsyncConnection
from services_world import World

from apportion.pools import service
from apportion.pools.rows import QUERIES
from apportion.testing.builders import pool_of

pytestmark = pytest.mark.anyio

MANY = 10_000


@pytest.fixture
def big(db):
    """Give a world that nobody audits: most of what is in it was never made by a service."""
    return World(db)


@pytest.fixture
async def crowd(big):
    """Make 10,000 pools of root, 500 of which are offered to acme, 20 to its lab as well."""
    acme = await big.tenant("acme")
    lab = await big.tenant("acme-lab", above="acme")
    await big.rows(
        "INSERT INTO pools (id, tenant_id, site_id, name, class, gpu_model, sharing, agent, policy,"
        " created_at)"
        " SELECT 'pool_' || lpad(n::text, 6, '0'), 'root', (SELECT id FROM sites), 'p' || n,"
        " 'metal-host', 'H100', 'exclusive', 'apportion', '{}', now()"
        " FROM generate_series(1, %s) AS n",
        MANY,
    )
    await big.rows(
        "INSERT INTO offers (pool_id, tenant_id, priority, include_descendants, created_at,"
        " updated_at, owner_tenant_id, sharing, single_tenant, holds_tenant_nodes, archived)"
        " SELECT id, tenant, 0, true, now(), now(), 'root', 'exclusive', false, false, false"
        " FROM pools, (VALUES ('acme', 20), ('acme-lab', 500)) AS offered (tenant, every)"
        " WHERE right(id, 6)::int % every = 0"
    )
    await big.rows(
        "INSERT INTO quotas (tenant_id, pool_id, resource, max)"
        " SELECT 'root', id, resource, NULL FROM pools,"
        " unnest(ARRAY['gpu', 'gpuEquivalents']) AS resource"
        " UNION ALL SELECT tenant_id, pool_id, resource, 1 FROM offers,"
        " unnest(ARRAY['gpu', 'gpuEquivalents']) AS resource"
    )
    async with big.db.connection() as connection:
        await connection.set_autocommit(True)
        await connection.execute("ANALYZE")
        await connection.set_autocommit(False)
    return acme, lab


@pytest.fixture
def statements(monkeypatch):
    """Collect the statements of the services' connections."""
    seen = []
    execute = AsyncConnection.execute

    async def counted(connection, query, *values, **options):
        if query:
            seen.append(query)
        return await execute(connection, query, *values, **options)

    monkeypatch.setattr(AsyncConnection, "execute", counted)
    return seen


async def test_five_hundred_pools_are_listed_by_two_queries_with_who_is_not_heard_of(
    big, crowd, statements
):
    acme, _ = crowd
    found = await service.list_pools(big.runtime, acme, limit=1000)
    assert len(found) == 500
    assert all(len(pool.quotas) == 2 and not pool.owned for pool in found)
    assert len(statements) == 2


async def plan(world, query, **parameters):
    """Return how many rows the statement read below each node of its plan, and the node kinds."""
    async with world.db.connection() as connection:
        cursor = await connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + QUERIES[query], parameters
        )
        row = await cursor.fetchone()
    [told] = (
        row["QUERY PLAN"]
        if not isinstance(row["QUERY PLAN"], str)
        else json.loads(row["QUERY PLAN"])
    )
    nodes = [*walk(told["Plan"])]
    top = told["Plan"]
    return {
        "blocks": top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        "scans": {each["Relation Name"] for each in nodes if each["Node Type"] == "Seq Scan"},
    }


def walk(node):
    yield node
    for each in node.get("Plans", ()):
        yield from walk(each)


def pools_of(caller, **filters):
    everything = dict.fromkeys(
        ("id", "name", "model", "sharing", "class", "site_id", "owned", "archived")
    )
    return {
        **everything,
        "tenant_id": caller.tenant_id,
        "lineage": list(caller.lineage),
        "after": "",
        "limit": 50,
        "archived": False,
        **filters,
    }


async def test_a_page_of_pools_costs_the_same_wherever_it_begins(big, crowd):
    acme, lab = crowd
    for caller, last in (
        (big.caller, "pool_009900"),
        (acme, "pool_008900"),
        (lab, "pool_008900"),
    ):
        first = await plan(big, "select", **pools_of(caller))
        deep = await plan(big, "select", **pools_of(caller, after=last))
        assert first["scans"] | deep["scans"] <= {"sites"}
        assert deep["blocks"] < 2 * first["blocks"] < 3000


async def test_one_pool_among_many_is_found_by_its_index(big, crowd):
    for caller in (big.caller, *crowd):
        found = await plan(big, "select", **pools_of(caller, id="pool_005000", limit=1))
        assert found["scans"] <= {"sites"}
        assert found["blocks"] < 100


async def test_a_page_of_quotas_costs_the_same_wherever_it_begins(big, crowd):
    acme, lab = crowd
    names = ("pool_id", "tenant_id", "resource")
    for caller, last in (
        (big.caller, "pool_009900"),
        (acme, "pool_008900"),
        (lab, "pool_008900"),
    ):
        start = {
            "caller": caller.tenant_id,
            "lineage": list(caller.lineage),
            "limit": 50,
            **dict.fromkeys(names),
        }
        at = ("after_pool", "after_tenant", "after_resource")
        first = await plan(big, "list_quotas", **start, **dict.fromkeys(at, ""))
        deep = await plan(
            big, "list_quotas", **start, **dict(zip(at, (last, "root", "gpu"), strict=True))
        )
        # 520 offers are a few blocks, and read as a whole.
        assert first["scans"] | deep["scans"] <= {"offers"}
        # Where the table is new, the first page is a few blocks; to read all of it is thousands.
        assert deep["blocks"] < max(2 * first["blocks"], 400)
        assert first["blocks"] < 1500


async def test_pages_hold_each_pool_once_by_whatever_way_it_is_reached(world):
    acme = await world.tenant("acme")
    lab = await world.tenant("acme-lab", above="acme")
    pools = [await world.pool(pool_of("H100", name=f"p{index}")) for index in range(7)]
    for at, pool in enumerate(pools):
        if at % 2 == 0:
            await offer(world, pool, acme, include_descendants=True)
        if at % 3 == 0:
            await offer(world, pool, lab, {"gpu": 1})
    expected = [pool.id for at, pool in enumerate(pools) if at % 2 == 0 or at % 3 == 0]
    for size in (1, 2, 3, 10):
        paged, after = [], ""
        while page := await service.list_pools(world.runtime, lab, after=after, limit=size):
            paged += page
            after = page[-1].id
        assert [each.id for each in paged] == sorted(expected)
        nearest = {each.id: {quota.tenant_id for quota in each.quotas} for each in paged}
        assert all(
            nearest[pool.id] == {"acme-lab" if at % 3 == 0 else "acme"}
            for at, pool in enumerate(pools)
            if pool.id in nearest
        )


async def test_filters_narrow_the_list_of_pools(world):
    acme = await world.tenant("acme")
    one = await world.pool(pool_of("H100", "mig", name="one"))
    two = await world.pool(pool_of("A100", name="two"))
    await offer(world, one, acme)

    async def ids(caller, **filters):
        return [each.id for each in await service.list_pools(world.runtime, caller, **filters)]

    assert await ids(world.caller, name="two") == [two.id]
    assert await ids(world.caller, gpu_model="h100") == [one.id]
    assert await ids(world.caller, sharing="mig", cls="metal-host") == [one.id]
    assert await ids(world.caller, cls="slurm-host") == []
    assert await ids(world.caller, site_id=one.site_id) == sorted([one.id, two.id])
    assert await ids(world.caller, site_id="site_none") == []
    assert await ids(world.caller, owned=False) == []
    assert await ids(acme, owned=False) == [one.id]
    assert await ids(acme, owned=True) == []
    assert await ids(acme, sharing="exclusive") == []
