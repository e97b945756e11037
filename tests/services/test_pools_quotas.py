"""Sites, limits, and what becomes of the pools of a tenant that is deleted."""

import pytest
from pools_acting import archive, limit, limits, offer, refusal, seen, told, unoffer, written

from apportion.authority.service import Caller
from apportion.errors import (
    ConflictError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
    QuotaExceededError,
)
from apportion.nodes.service import import_inventories
from apportion.pools import service
from apportion.pools.schemas import SiteCreate, SiteUpdate
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(8)]
    return await world.pool(pool_of("H100", quota={"gpu": 8}), inventory("n1", *gpus))


async def site_of(world, tenant, name="hall", **fields):
    request = SiteCreate.model_validate({"name": name, "region": "north", **fields})
    return await service.create_site(world.runtime, tenant, request)


async def pool_in(world, tenant, site, **fields):
    request = pool_of("H100", **fields).model_copy(update={"site_id": site.id})
    return await service.create_pool(world.runtime, tenant, request)


async def test_roots_sites_are_shared_or_dedicated_and_others_custom(world, acme):
    kinds = [
        (await site_of(world, world.caller, "a")).kind,
        (await site_of(world, world.caller, "b", kind="dedicated")).kind,
        (await site_of(world, acme, "a")).kind,
        (await site_of(world, acme, "b", kind="custom")).kind,
    ]
    assert kinds == ["shared", "dedicated", "custom", "custom"]
    error = await refusal(site_of(world, acme, "c", kind="shared"), InvalidInputError)
    assert (error.field, error.given, error.allowed) == ("kind", "shared", "custom")
    error = await refusal(site_of(world, world.caller, "c", kind="custom"), InvalidInputError)
    assert (error.given, error.allowed) == ("custom", "shared or dedicated")


async def test_a_site_is_made_once_for_a_key(world, acme):
    site = await site_of(world, world.caller, idempotency_key="k")
    assert await site_of(world, world.caller, idempotency_key="k") == site
    await refusal(
        site_of(world, world.caller, kind="dedicated", idempotency_key="k"), ConflictError
    )
    taken = await refusal(site_of(world, world.caller), ConflictError)
    assert taken.field == "name"
    assert (await site_of(world, acme)).name == site.name
    assert [kind for kind, _ in await told(world, world.caller)] == ["site.created"]


async def test_another_tenants_site_does_not_exist(world, acme):
    site = await site_of(world, world.caller)
    before = await written(world)
    for act in (
        lambda site_id: service.get_site(world.runtime, acme, site_id),
        lambda site_id: service.delete_site(world.runtime, acme, site_id),
        lambda site_id: service.update_site(
            world.runtime, acme, site_id, SiteUpdate(region="south")
        ),
    ):
        there = await refusal(act(site.id), NotFoundError)
        nowhere = await refusal(act("site_none"), NotFoundError)
        assert str(there) == str(nowhere).replace("site_none", site.id)
    assert await service.list_sites(world.runtime, acme) == []
    assert await written(world) == before


async def test_a_pools_region_is_its_sites_and_follows_it(world, acme):
    site = await site_of(world, acme)
    pool = await pool_in(world, acme, site)
    assert pool.region == "north"
    moved = await service.update_site(world.runtime, acme, site.id, SiteUpdate(region="south"))
    assert (moved.region, moved.name) == ("south", "hall")
    assert (await seen(world, acme, pool)).region == "south"
    await service.update_site(world.runtime, acme, site.id, SiteUpdate(region="south"))
    [row] = await world.rows("SELECT before, after FROM events WHERE type = 'site.updated'")
    assert [row[side]["region"] for side in ("before", "after")] == ["north", "south"]


async def test_a_site_with_pools_stays_archived_ones_too(world, acme):
    site = await site_of(world, acme)
    pool = await pool_in(world, acme, site)
    for _ in range(2):
        error = await refusal(service.delete_site(world.runtime, acme, site.id), InvalidStateError)
        assert error.details == {"pools": [pool.name]}
        await archive(world, pool, by=acme)
    empty = await site_of(world, acme, "empty")
    assert (await service.delete_site(world.runtime, acme, empty.id)).removed is True
    await refusal(service.get_site(world.runtime, acme, empty.id), NotFoundError)
    assert [kind for kind, _ in await told(world, acme, "site.")][-1] == "site.deleted"


async def test_the_owner_limits_itself_and_those_it_offers_to(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    view = await limit(world, pool, acme, "gpu", 2)
    assert (view.tenant_id, view.max, view.available) == ("acme", 2, 2)
    view = await limit(world, pool, acme, "gpu", "unlimited")
    assert (view.max, view.available) == ("unlimited", "unlimited")
    view = await limit(world, pool, acme, "gpuEquivalents", "7/2")
    assert (view.max, view.available) == ("7/2", "7/2")
    view = await limit(world, pool, world.caller, "gpu", 0)
    assert (view.tenant_id, view.available) == ("root", 0)
    await refusal(world.create(ask(pool.id, device())), QuotaExceededError)
    assert (await world.reservations.create(acme, ask(pool.id, device()))).state == "active"


async def test_a_changed_limit_is_told_to_both_and_an_unchanged_one_to_nobody(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    for _ in range(2):
        await limit(world, pool, acme, "gpu", 2)
    rows = await world.rows(
        "SELECT tenant_id, actor, data, before, after FROM events"
        " WHERE type = 'quota.updated' ORDER BY id"
    )
    data = {"tenant_id": "acme", "resource": "gpu", "max": 2, "previous": 4}
    assert [(row["tenant_id"], row["actor"], row["data"]) for row in rows] == [
        ("root", world.caller.actor, data),
        ("acme", "root", data),
    ]
    assert [rows[0][side]["max"] for side in ("before", "after")] == [4, 2]
    assert (rows[1]["before"], rows[1]["after"]) == (None, None)


async def test_a_limit_below_what_is_used_stops_new_work_and_touches_nothing(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    held = await world.reservations.create(acme, ask(pool.id, device(count=3)))
    view = await limit(world, pool, acme, "gpu", 1)
    assert (view.max, view.used, view.available) == (1, 3, 0)
    await refusal(world.reservations.create(acme, ask(pool.id, device())), QuotaExceededError)
    assert (await world.reservations.get(acme, held.id)).state == "active"
    # A request of 0 needs none.
    assert (await world.reservations.get(acme, held.id)).bookings == held.bookings


async def test_only_the_owner_sets_limits(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 4}, include_descendants=True)
    before = await written(world)
    for tenant in (acme, lab):
        error = await refusal(limit(world, pool, tenant, "gpu", 9, by=tenant), NotFoundError)
        assert (error.field, error.given) == ("pool_id", pool.id)
    assert await written(world) == before


async def test_a_tenant_without_offer_or_quota_has_no_limit_to_set(world, pool, acme):
    error = await refusal(limit(world, pool, acme, "gpu", 1), NotFoundError)
    assert str(error) == "tenant_id: no such tenant (given: 'acme')"
    assert await limits(world, acme, pool) == {}


async def test_what_is_left_of_an_offer_can_be_lowered_only(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    await world.reservations.create(acme, ask(pool.id, device(count=3)))
    await unoffer(world, pool, acme)
    for resource, most in (("gpu", 4), ("gpu", "unlimited"), ("vcpu", 1)):
        error = await refusal(limit(world, pool, acme, resource, most), InvalidStateError)
        assert (error.field, error.given) == ("max", most)
    assert (await limit(world, pool, acme, "gpu", 2)).max == 2


async def test_limits_of_an_archived_pool_are_what_is_in_use(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    await archive(world, pool)
    for tenant in (acme, world.caller):
        await refusal(limit(world, pool, tenant, "gpu", 9), InvalidStateError)


async def test_an_amount_that_a_resource_cannot_have_is_refused(world, pool):
    error = await refusal(limit(world, pool, world.caller, "gpu", "1.5"), InvalidInputError)
    assert (error.field, error.given) == ("max", "1.5")


async def listed(world, caller, **filters):
    found = await service.list_quotas(world.runtime, caller, **filters)
    return [(each.pool_id, each.tenant_id, each.resource) for each in found]


async def test_quotas_are_listed_to_their_tenant_and_to_the_pools_owner(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 4, "vcpu": 2}, include_descendants=True)
    theirs = [(pool.id, "acme", name) for name in ("gpu", "gpuEquivalents", "vcpu")]
    own = [(pool.id, "root", name) for name in ("gpu", "gpuEquivalents")]
    assert await listed(world, world.caller) == theirs + own
    assert await listed(world, acme) == theirs
    assert await listed(world, lab) == theirs
    assert await listed(world, world.caller, tenant_id="acme", resource="gpu") == theirs[:1]
    assert await listed(world, acme, tenant_id="root") == []
    assert await listed(world, world.caller, pool_id="pool_none") == []
    await offer(world, pool, acme, include_descendants=False)
    assert await listed(world, lab) == []


async def test_quotas_are_paged_by_pool_tenant_and_resource(world, pool, acme):
    other = await world.pool(pool_of("A100", quota={"gpu": 1}))
    for each in (pool, other):
        await offer(world, each, acme, {"gpu": 4, "vcpu": 2})
    whole = await listed(world, world.caller)
    assert whole == sorted(whole)
    assert len(whole) == 10
    paged, after = [], ("", "", "")
    while page := await listed(world, world.caller, after=after, limit=3):
        paged += page
        after = page[-1]
    assert paged == whole


async def test_one_quota_is_shown_to_those_whom_it_concerns(world, pool, acme, lab):
    beta = await world.tenant("beta")
    await offer(world, pool, acme, {"gpu": 4}, include_descendants=True)

    async def get(caller, resource="gpu"):
        return await service.get_quota(world.runtime, caller, pool.id, "acme", resource)

    views = [await get(caller) for caller in (world.caller, acme, lab)]
    assert {(each.tenant_id, each.max) for each in views} == {("acme", 4)}
    hidden = await refusal(get(beta), NotFoundError)
    missing = await refusal(get(acme, "gpu.mig"), NotFoundError)
    assert str(hidden) == str(missing).replace("gpu.mig", "gpu")
    await offer(world, pool, acme, {"gpu": 4})
    await refusal(get(lab), NotFoundError)


async def test_a_deleted_tenants_pools_are_archived_and_offers_to_it_withdrawn(world, pool, acme):
    lab = await world.tenant("acme-lab", above="acme")
    other = await world.pool(pool_of("A100"), inventory("n2", gpu("A100", 0, node="n2")))
    await offer(world, pool, acme, {"gpu": 4})
    await offer(world, other, acme, {"gpu": 4})
    site = await site_of(world, lab)
    own = await pool_in(world, lab, site)
    await import_inventories(
        world.runtime, lab, own.id, [inventory("n3", gpu("H100", 0, node="n3"))]
    )
    await offer(world, pool, lab, {"gpu": 2})
    ended = await world.reservations.create(lab, ask(pool.id, device(), duration="9h"))
    runs_on = await world.reservations.create(acme, ask(pool.id, device(), duration="9h"))
    done = await delete_tenant(world.runtime, world.caller, "acme-lab")
    assert done.archived_pools == [own.id]
    assert done.withdrawn_offers == [pool.id]
    assert done.ended_reservations == 1
    [row] = await world.rows("SELECT state FROM reservations WHERE id = %s", ended.id)
    assert row["state"] == "ended"
    assert (await world.reservations.get(acme, runs_on.id)).state == "active"
    assert set((await limits(world, lab, pool)).values()) == {("0", "0")}
    assert set((await limits(world, lab, own)).values()) == {("0", "0")}
    assert (await limits(world, acme, pool))["gpu"] == ("4", "1")
    rows = await world.rows(
        "SELECT type, tenant_id, subject, data, before FROM events"
        " WHERE data ->> 'reason' = 'tenant deleted' ORDER BY id"
    )
    assert [(row["type"], row["tenant_id"], row["subject"], row["data"]) for row in rows] == [
        ("pool.archived", "acme-lab", own.id, {"reason": "tenant deleted", "unoffered": []}),
        (
            "pool.unoffered",
            "root",
            pool.id,
            {"reason": "tenant deleted", "tenant_id": "acme-lab"},
        ),
    ]
    assert rows[1]["before"]["tenant_id"] == "acme-lab"


async def test_what_others_run_in_a_deleted_tenants_pool_runs_on_to_its_end(world, acme, lab):
    site = await site_of(world, acme)
    pool = await pool_in(world, acme, site)
    await offer(world, pool, lab, {"gpu": 1}, by=acme)
    before = await limits(world, lab, pool)
    await delete_tenant(world.runtime, acme, "acme-lab")
    done = await delete_tenant(world.runtime, world.caller, "acme")
    assert before["gpu"] == ("1", "0")
    assert done.archived_pools == [pool.id]
    again = await delete_tenant(world.runtime, world.caller, "acme")
    assert (again.archived_pools, again.withdrawn_offers) == ([], [])


async def test_a_tenant_that_is_deleted_makes_and_is_offered_nothing(world, pool, acme):
    site = await site_of(world, acme)
    await delete_tenant(world.runtime, world.caller, "acme")
    before = await written(world)
    late = Caller("acme", "tok_late", ancestors=("root", "acme"))
    await refusal(site_of(world, late, "late"), NotFoundError)
    await refusal(pool_in(world, late, site), NotFoundError)
    await refusal(offer(world, pool, acme), NotFoundError)
    assert await written(world) == before
