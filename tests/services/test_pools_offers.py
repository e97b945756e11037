"""Offers: a pool exists for another tenant while it is offered, with a quota of its own."""

import pytest
from pools_acting import UNLIMITED, limits, listed, offer, refusal, seen, told, unoffer

from apportion.errors import InvalidInputError, NotFoundError, QuotaExceededError
from apportion.nodes.service import get_node, list_atoms, list_gpus, list_nodes
from apportion.pools.service import list_offers
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(8)]
    return await world.pool(pool_of("H100", maxPending="6h"), inventory("n1", *gpus))


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


async def test_a_default_owner_quota_is_whole_gpus_with_the_documents_number(world, acme):
    request = pool_of("H100").model_dump(by_alias=True, exclude={"owner_quota"})
    pool = await world.pool(pool_of("H100").model_validate(request))
    view = await seen(world, world.caller, pool)
    assert {each.resource: each.max for each in view.quotas} == {
        "gpu": UNLIMITED,
        "gpuEquivalents": "unlimited",
    }
