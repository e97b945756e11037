"""To whom a pool is offered, whose machines it then has, and what none of its offers may be."""

import pytest
from pools_acting import offer, refusal, unoffer, update, written
from pydantic import ValidationError

from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError
from apportion.nodes.service import get_node, import_inventories, list_nodes
from apportion.pools.schemas import OfferPut
from apportion.pools.service import archive_pool, get_pool, list_offers, offer_pool
from apportion.store.connections import transaction
from apportion.testing.builders import gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))


@pytest.mark.parametrize("sharing", ["timeslice", "mps"])
async def test_a_pool_without_isolation_is_offered_to_nobody_but_its_owner(world, acme, sharing):
    pool = await world.pool(pool_of("T4", sharing, replicas=4))
    before = await written(world)
    error = await refusal(offer(world, pool, acme), InvalidStateError)
    assert "nobody but its owner" in str(error)
    assert await written(world) == before


async def test_a_pool_with_tenant_owned_nodes_is_offered_to_nobody_but_its_owner(world, acme):
    pool = await world.pool(
        pool_of("H100"), inventory("n1", gpu("H100", 0), owner_tenant_id="acme")
    )
    before = await written(world)
    error = await refusal(offer(world, pool, acme), InvalidStateError)
    assert "tenant-owned nodes" in str(error)
    assert await written(world) == before


async def test_a_tenants_own_machine_does_not_join_a_pool_that_is_offered(world, pool, acme):
    await offer(world, pool, acme)
    theirs = inventory("n2", gpu("H100", 0, node="n2"), owner_tenant_id="acme")
    before = await written(world)
    error = await refusal(world.report(pool, theirs), InvalidStateError)
    assert "tenant-owned nodes" in str(error)
    assert await written(world) == before
    assert len(await list_nodes(world.runtime, world.caller, pool_id=pool.id)) == 1
    await unoffer(world, pool, acme)
    await world.report(pool, theirs)
    await refusal(offer(world, pool, acme), InvalidStateError)


async def test_a_customers_own_pool_with_machines_is_offered_to_none_of_its_own(world, acme, lab):
    own = await customers_pool(world, acme)
    await offer(world, own, lab, by=acme)
    await unoffer(world, own, lab, by=acme)
    node = inventory("n9", gpu("H100", 0, node="n9"))
    await import_inventories(world.runtime, acme, own.id, [node])
    await refusal(offer(world, own, lab, by=acme), InvalidStateError)


async def customers_pool(world, tenant):
    await world.rows(
        "INSERT INTO sites (id, tenant_id, name, region, kind, created_at)"
        " VALUES (%s, %s, 'hall', 'north', 'custom', now())",
        *(f"site_{tenant.tenant_id}", tenant.tenant_id),
    )
    caller, world.caller = world.caller, tenant
    try:
        return await world.pool(pool_of("H100", name="own"))
    finally:
        world.caller = caller


async def test_a_single_tenant_pool_is_offered_to_one_besides_its_owner(world, acme, beta):
    pool = await world.pool(pool_of("H100", singleTenant=True))
    await offer(world, pool, acme)
    await offer(world, pool, acme, {"gpu": 2})  # again to the same one
    before = await written(world)
    error = await refusal(offer(world, pool, beta), InvalidStateError)
    assert "one tenant besides its owner" in str(error)
    assert error.details == {"offered_to": ["acme"]}
    assert await written(world) == before
    await unoffer(world, pool, acme)
    await offer(world, pool, beta)


async def test_a_single_tenant_pool_is_never_offered_with_descendants(world, acme):
    pool = await world.pool(pool_of("H100", singleTenant=True))
    error = await refusal(offer(world, pool, acme, include_descendants=True), InvalidStateError)
    assert (error.field, error.given) == ("include_descendants", True)


async def test_an_offered_pool_becomes_single_tenant_only_where_its_offers_allow(
    world, pool, acme, beta
):
    await offer(world, pool, acme, include_descendants=True)
    await offer(world, pool, beta)
    error = await refusal(update(world, pool, 1, policy={"singleTenant": True}), InvalidStateError)
    assert error.field == "policy.singleTenant"
    assert error.details == {"offered_to": ["acme", "beta"]}
    await unoffer(world, pool, beta)
    await refusal(update(world, pool, 1, policy={"singleTenant": True}), InvalidStateError)
    await offer(world, pool, acme)
    view = await update(world, pool, 1, policy={"singleTenant": True})
    assert view.version == 2
    await refusal(offer(world, pool, beta), InvalidStateError)


async def test_an_archived_pool_is_offered_to_nobody(world, pool, acme):
    await archive_pool(world.runtime, world.caller, pool.id)
    before = await written(world)
    error = await refusal(offer(world, pool, acme), InvalidStateError)
    assert "archived" in str(error)
    assert await written(world) == before


@pytest.mark.parametrize("priority", [-1001, 1001])
def test_a_priority_is_from_minus_1000_to_1000(priority):
    with pytest.raises(ValidationError):
        OfferPut(priority=priority)


async def test_a_pool_is_neither_offered_to_its_owner_nor_taken_from_it(world, pool):
    error = await refusal(offer(world, pool, world.caller), InvalidInputError)
    assert (error.field, error.given) == ("tenant_id", "root")
    error = await refusal(unoffer(world, pool, world.caller), InvalidInputError)
    assert (error.field, error.given) == ("tenant_id", "root")


async def test_a_pool_is_offered_to_those_below_alone_and_others_do_not_exist(
    world, pool, acme, beta, lab
):
    own = await customers_pool(world, acme)
    unknown = OfferPut()
    errors = [
        await refusal(offer_pool(world.runtime, acme, own.id, name, unknown), NotFoundError)
        for name in ("beta", "root", "nobody")
    ]
    assert {str(error).replace(error.given, "X") for error in errors} == {
        "tenant_id: no such tenant (given: 'X')"
    }
    await offer(world, own, lab, by=acme)
    await world.rows("UPDATE tenants SET deleted_at = now() WHERE id = 'beta'")
    await refusal(offer(world, pool, beta), NotFoundError)


async def test_only_the_owner_shares_a_pool_and_others_find_none(world, pool, acme, lab):
    await offer(world, pool, acme)
    before = await written(world)
    errors = [
        await refusal(offer(world, pool, lab, by=acme), NotFoundError),
        await refusal(unoffer(world, pool, lab, by=acme), NotFoundError),
        await refusal(list_offers(world.runtime, acme, pool.id), NotFoundError),
        await refusal(archive_pool(world.runtime, acme, pool.id), NotFoundError),
        await refusal(update(world, pool, 1, policy={}, by=acme), NotFoundError),
        await refusal(
            import_inventories(world.runtime, acme, pool.id, [inventory("n2")]), NotFoundError
        ),
    ]
    nowhere = await refusal(get_pool(world.runtime, acme, "pool_none"), NotFoundError)
    assert {str(error) for error in errors} == {str(nowhere).replace("pool_none", pool.id)}
    assert await written(world) == before


async def test_a_tenants_machine_in_a_platform_pool_is_shown_to_the_pools_owner(world, pool, acme):
    theirs = inventory("n2", gpu("H100", 0, node="n2"), owner_tenant_id="acme")
    [node_id] = await world.report(pool, theirs)
    node = await get_node(world.runtime, world.caller, node_id)
    assert (node.tenant_id, node.pool_id) == ("acme", pool.id)
    # A report that does not say whose the machine is leaves it whose it is.
    await world.report(pool, inventory("n2", gpu("H100", 0, node="n2")))
    assert (await get_node(world.runtime, world.caller, node_id)).tenant_id == "acme"
    error = await refusal(
        world.report(pool, inventory("n2", gpu("H100", 0, node="n2"), owner_tenant_id="root")),
        InvalidStateError,
    )
    assert (error.field, error.allowed) == ("owner_tenant_id", "acme")
    kinds = [
        row["type"] for row in await world.rows("SELECT type FROM events WHERE tenant_id='acme'")
    ]
    assert kinds == ["node.joined", "node.reported"]


async def test_a_machine_of_nobody_below_does_not_join(world, pool, acme, lab):
    own = await customers_pool(world, acme)
    for name in ("root", "nobody"):
        error = await refusal(
            import_inventories(
                world.runtime, acme, own.id, [inventory("n9", owner_tenant_id=name)]
            ),
            NotFoundError,
        )
        assert (error.field, error.given) == ("owner_tenant_id", name)


# What the rules of offers say where nothing above the database has looked.
BROKEN = {
    "offers_not_to_owner": ("tenant_id = 'root'", InvalidInputError),
    "offers_isolated": ("sharing = 'mps'", InvalidStateError),
    "offers_platform_nodes": ("holds_tenant_nodes = true", InvalidStateError),
    "offers_not_archived": ("archived = true", InvalidStateError),
    "offers_priority_range": ("priority = 1001", InvalidInputError),
    "offers_single_tenant_alone": (
        "single_tenant = true, include_descendants = true",
        InvalidStateError,
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
async def test_what_slips_past_the_service_is_refused_by_the_schema_in_the_same_words(
    world, pool, acme, rule
):
    await offer(world, pool, acme)
    change, kind = BROKEN[rule]
    with pytest.raises(kind):
        async with transaction(world.db) as connection:
            await connection.execute(f"UPDATE offers SET {change}")  # noqa: S608


async def test_a_second_offer_of_a_single_tenant_pool_is_refused_by_the_schema(world, acme, beta):
    pool = await world.pool(pool_of("H100", singleTenant=True))
    await offer(world, pool, acme)
    with pytest.raises(InvalidStateError, match="one tenant besides its owner"):
        async with transaction(world.db) as connection:
            await connection.execute(
                "INSERT INTO offers SELECT pool_id, 'beta', priority, include_descendants,"
                " created_at, updated_at, owner_tenant_id, sharing, single_tenant,"
                " holds_tenant_nodes, archived FROM offers"
            )
