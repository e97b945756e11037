"""Offers: a pool exists for another tenant while it is offered, with a quota of its own."""

import pytest
from pools_acting import (
    UNLIMITED,
    limits,
    listed,
    offer,
    seen,
    told,
    unoffer,
    update,
    written,
)
from pydantic import ValidationError

from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError, QuotaExceededError
from apportion.nodes.service import (
    get_node,
    import_inventories,
    list_atoms,
    list_gpus,
    list_nodes,
)
from apportion.pools.schemas import OfferPut
from apportion.pools.service import archive_pool, get_pool, list_offers, offer_pool
from apportion.store.connections import transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def acme(world):
    return await world.tenant("acme")


@pytest.fixture
async def beta(world):
    return await world.tenant("beta")


@pytest.fixture
async def lab(world, acme):
    return await world.tenant("acme-lab", above=acme.tenant_id)


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(8)]
    return await world.pool(pool_of("H100", maxPending="6h"), inventory("n1", *gpus))


async def refusal(awaitable, kind):
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value


async def test_other_tenants_see_a_pool_only_when_it_is_offered(world, pool, acme, beta):
    error = await refusal(seen(world, acme, pool), NotFoundError)
    assert await listed(world, acme) == []
    await offer(world, pool, acme, {"gpu": 32}, priority=10)
    view = await seen(world, acme, pool)
    assert (view.owned, view.archived, view.version) == (False, False, 1)
    assert (view.owner_tenant_id, view.policy) == ("root", {"maxPending": "6h"})
    assert await listed(world, acme) == [pool.id]
    again = await refusal(seen(world, beta, pool), NotFoundError)
    assert str(again) == str(error)
    assert await listed(world, beta) == []


async def test_an_offer_makes_the_tenants_quota_rows_with_the_documents_numbers(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 32})
    for _ in range(4):
        await world.reservations.create(acme, ask(pool.id, device()))
    view = await seen(world, acme, pool)
    [quota] = [each for each in view.quotas if each.resource == "gpu"]
    assert quota.model_dump() == {
        "tenant_id": "acme",
        "pool_id": pool.id,
        "resource": "gpu",
        "max": 32,
        "used": 4,
        "available": 28,
    }
    [other] = [each for each in view.quotas if each.resource != "gpu"]
    assert (other.resource, other.max, other.used) == ("gpuEquivalents", "unlimited", 4)


async def test_a_resource_without_a_quota_row_grants_nothing(world, acme):
    node = inventory("n1", gpu("H100", 0, "3g.40gb@4"), gpu("H100", 1))
    pool = await world.pool(pool_of("H100", "mig"), node)
    await offer(world, pool, acme, {"gpu": 1})
    await refusal(
        world.reservations.create(acme, ask(pool.id, device("gpu.mig"))), QuotaExceededError
    )
    assert (await world.reservations.create(acme, ask(pool.id, device()))).state == "active"


async def test_an_offer_without_a_quota_grants_nothing_and_is_counted(world, pool, acme):
    view = await offer(world, pool, acme, {})
    assert [(each.resource, each.max) for each in view.quotas] == [("gpuEquivalents", "unlimited")]
    await refusal(world.reservations.create(acme, ask(pool.id, device())), QuotaExceededError)


async def test_an_offer_can_limit_exact_equivalents_and_host_scalars(world, pool, acme):
    view = await offer(
        world, pool, acme, {"gpu": 2, "gpuEquivalents": "7/2", "vcpu": "2.5", "memoryGiB": 16}
    )
    assert {each.resource: each.max for each in view.quotas} == {
        "gpu": 2,
        "gpuEquivalents": "7/2",
        "vcpu": "2.5",
        "memoryGiB": 16,
    }
    bad = await refusal(offer(world, pool, acme, {"gpu": "1.5"}), InvalidInputError)
    assert (bad.field, bad.given) == ("quota.gpu", "1.5")
    assert await limits(world, acme, pool) == {
        "gpu": ("2", "0"),
        "gpuEquivalents": ("1549522252122998353200", "0"),
        "vcpu": ("2.5", "0"),
        "memoryGiB": ("16", "0"),
    }


async def test_offering_again_updates_the_offer_and_the_quota(world, pool, acme):
    first = await offer(world, pool, acme, {"gpu": 32, "vcpu": 8}, priority=10)
    world.clock.advance(minutes=1)
    again = await offer(world, pool, acme, {"gpu": 16}, priority=-1000, include_descendants=True)
    assert (again.priority, again.include_descendants) == (-1000, True)
    assert again.created_at == first.created_at < again.updated_at
    assert {each.resource: each.max for each in again.quotas} == {
        "gpu": 16,
        "vcpu": 8,  # not mentioned, so it stays
        "gpuEquivalents": "unlimited",
    }
    [stored] = await list_offers(world.runtime, world.caller, pool.id)
    assert stored == again


async def test_offering_again_keeps_a_limit_of_equivalents_and_a_new_offer_begins_without(
    world, pool, acme
):
    await offer(world, pool, acme, {"gpu": 8, "gpuEquivalents": 2})
    again = await offer(world, pool, acme, {"gpu": 9})
    assert {each.resource: each.max for each in again.quotas}["gpuEquivalents"] == 2
    await unoffer(world, pool, acme)
    fresh = await offer(world, pool, acme, {"gpu": 1})
    assert {each.resource: each.max for each in fresh.quotas} == {
        "gpu": 1,
        "gpuEquivalents": "unlimited",
    }
    assert (await world.reservations.create(acme, ask(pool.id, device()))).state == "active"


async def test_owner_and_offered_tenant_are_told_each_in_its_own_way(world, pool, acme, beta):
    await offer(world, pool, acme, {"gpu": 32}, priority=10)
    await offer(world, pool, acme, {"gpu": 32}, priority=10)  # changes nothing, so tells nothing
    rows = await world.rows(
        "SELECT tenant_id, actor, subject, data, before, after FROM events"
        " WHERE type = 'pool.offered' ORDER BY id"
    )
    assert [(row["tenant_id"], row["actor"]) for row in rows] == [
        ("root", world.caller.actor),
        ("acme", "root"),  # whose token it was is nobody else's business
    ]
    owners, theirs = rows
    assert owners["data"] == theirs["data"]
    assert owners["data"]["quota"] == {"gpu": 32, "gpuEquivalents": "unlimited"}
    assert (owners["data"]["priority"], owners["data"]["tenant_id"]) == (10, "acme")
    assert (owners["before"], owners["after"]["priority"]) == (None, 10)
    assert (theirs["before"], theirs["after"]) == (None, None)
    assert {row["subject"] for row in rows} == {pool.id}
    assert await told(world, beta) == []


async def test_a_changed_offer_tells_what_it_was_and_became(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 32})
    await offer(world, pool, acme, {"gpu": 8})
    [row] = await world.rows(
        "SELECT before, after FROM events WHERE type = 'pool.offered' AND before IS NOT NULL"
    )
    change = [
        {each["resource"]: each["max"] for each in row[side]["quotas"]}["gpu"]
        for side in ("before", "after")
    ]
    assert change == [32, 8]


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


async def test_descendants_use_the_pool_on_the_offered_tenants_quota(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 2}, include_descendants=True)
    view = await seen(world, lab, pool)
    assert (view.owned, {each.tenant_id for each in view.quotas}) == (False, {"acme"})
    await world.reservations.create(lab, ask(pool.id, device()))
    await world.reservations.create(acme, ask(pool.id, device()))
    assert (await limits(world, acme, pool))["gpu"] == ("2", "2")
    assert await limits(world, lab, pool) == {}
    await refusal(world.reservations.create(lab, ask(pool.id, device())), QuotaExceededError)


async def test_without_descendants_only_the_offered_tenant_itself_sees_the_pool(
    world, pool, acme, lab
):
    await offer(world, pool, acme)
    await refusal(seen(world, lab, pool), NotFoundError)
    assert await listed(world, lab) == []
    await refusal(world.reservations.create(lab, ask(pool.id, device())), NotFoundError)


async def test_the_nearest_offer_is_the_one_that_counts(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 2}, include_descendants=True)
    await offer(world, pool, lab, {"gpu": 5})
    view = await seen(world, lab, pool)
    assert {each.resource: (each.tenant_id, each.max) for each in view.quotas}["gpu"] == (
        "acme-lab",
        5,
    )
    assert await listed(world, lab) == [pool.id]
    await world.reservations.create(lab, ask(pool.id, device()))
    assert (await limits(world, lab, pool))["gpu"] == ("5", "1")
    await unoffer(world, pool, lab)
    view = await seen(world, lab, pool)
    assert {each.tenant_id for each in view.quotas} == {"acme"}


async def test_the_offered_see_no_offers_and_quotas_of_others(world, pool, acme, beta):
    await offer(world, pool, acme, {"gpu": 3})
    await offer(world, pool, beta, {"gpu": 5})
    view = await seen(world, beta, pool)
    assert {each.tenant_id for each in view.quotas} == {"beta"}
    owners = await seen(world, world.caller, pool)
    assert {each.tenant_id for each in owners.quotas} == {"root"}
    assert [each.tenant_id for each in await list_offers(world.runtime, world.caller, pool.id)] == [
        "acme",
        "beta",
    ]


async def test_a_provider_account_is_between_its_owner_and_the_provider(world, acme):
    request = pool_of("H100").model_copy(
        update={"class_": "provider", "provider_account_id": "account-7"}
    )
    pool = await world.pool(request)
    await offer(world, pool, acme)
    assert (await seen(world, world.caller, pool)).provider_account_id == "account-7"
    assert (await seen(world, acme, pool)).provider_account_id is None


async def test_taking_a_pool_back_lowers_quotas_to_what_is_in_use_and_ends_nothing(
    world, pool, acme
):
    await offer(world, pool, acme, {"gpu": 32, "vcpu": "unlimited", "memoryGiB": 64})
    held = await world.reservations.create(acme, ask(pool.id, device(count=4), vcpu=2))
    assert await unoffer(world, pool, acme) is True
    after = await limits(world, acme, pool)
    assert {resource: after[resource] for resource in ("gpu", "vcpu", "memoryGiB")} == {
        "gpu": ("4", "4"),
        "vcpu": ("2", "2"),
        "memoryGiB": ("0", "0"),
    }
    assert after["gpuEquivalents"][0] == after["gpuEquivalents"][1] != "0"
    view = await world.reservations.get(acme, held.id)
    assert (view.state, len(view.bookings)) == ("active", 4)
    await refusal(world.reservations.create(acme, ask(pool.id, device())), NotFoundError)
    await refusal(seen(world, acme, pool), NotFoundError)
    assert await unoffer(world, pool, acme) is False
    assert [kind for kind, _ in await told(world, acme, "pool.")] == [
        "pool.offered",
        "pool.unoffered",
    ]
    assert (await told(world, acme, "pool."))[-1][1]["quota"]["gpu"] == 4


async def test_taking_back_never_raises_a_limit_that_was_below_what_is_used(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 8})
    await world.reservations.create(acme, ask(pool.id, device(count=6)))
    await offer(world, pool, acme, {"gpu": 2})
    await unoffer(world, pool, acme)
    assert (await limits(world, acme, pool))["gpu"] == ("2", "6")


async def test_waiting_work_fails_with_pool_gone_at_its_next_retry(world, pool, acme):
    await world.create(ask(pool.id, device(count=8), duration="5h"))
    await offer(world, pool, acme, {"gpu": 8})
    waiting = await world.reservations.create(acme, ask(pool.id, device()))
    assert waiting.state == "pending"
    await unoffer(world, pool, acme)
    await world.tick(seconds=1)
    view = await world.reservations.get(acme, waiting.id)
    assert (view.state, view.reason["code"]) == ("failed", "PoolGone")


async def test_a_new_offer_is_tried_at_once_by_what_waits_elsewhere(world, pool, acme):
    before = await world.rows("SELECT changed_xid FROM pools WHERE id = %s", pool.id)
    await offer(world, pool, acme)
    offered = await world.rows("SELECT changed_xid FROM pools WHERE id = %s", pool.id)
    await unoffer(world, pool, acme)
    taken = await world.rows("SELECT changed_xid FROM pools WHERE id = %s", pool.id)
    assert before != offered != taken


async def test_whoever_is_offered_a_pool_sees_what_can_be_booked_and_no_machine(world, pool, acme):
    assert await list_gpus(world.runtime, acme) == []
    assert await list_atoms(world.runtime, acme) == []
    await offer(world, pool, acme)
    gpus = await list_gpus(world.runtime, acme, pool_id=pool.id)
    assert gpus == await list_gpus(world.runtime, world.caller, pool_id=pool.id) != []
    atoms = await list_atoms(world.runtime, acme)
    assert atoms == await list_atoms(world.runtime, world.caller, pool_id=pool.id) != []
    assert await list_nodes(world.runtime, acme) == []
    [node] = await list_nodes(world.runtime, world.caller)
    await refusal(get_node(world.runtime, acme, node.id), NotFoundError)
    await unoffer(world, pool, acme)
    assert await list_gpus(world.runtime, acme) == []
    assert await list_atoms(world.runtime, acme) == []


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


async def test_a_default_owner_quota_is_whole_gpus_with_the_documents_number(world, acme):
    request = pool_of("H100").model_dump(by_alias=True, exclude={"owner_quota"})
    pool = await world.pool(pool_of("H100").model_validate(request))
    view = await seen(world, world.caller, pool)
    assert {each.resource: each.max for each in view.quotas} == {
        "gpu": UNLIMITED,
        "gpuEquivalents": "unlimited",
    }


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
