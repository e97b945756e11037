"""Pools from their creation to their archive: what may change, what never does, who is told."""

import pytest
from pools_acting import archive, limits, listed, offer, refusal, seen, told, update, written

from apportion.errors import (
    ConflictError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
    QuotaExceededError,
)
from apportion.pools import service
from apportion.pools.schemas import PoolCreate, PoolUpdate, PoolValidate, SiteCreate
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

# The document's own example.
FRA1 = {
    "name": "fra1-h100",
    "class": "metal-host",
    "gpu_model": "H100",
    "sharing": "exclusive",
    "policy": {"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"},
    "idempotency_key": "pool-fra1-h100",
}


async def create(world, *, by=None, **fields):
    request = PoolCreate.model_validate({**FRA1, **fields})
    return await service.create_pool(world.runtime, by or world.caller, request)


async def site_of(world, tenant, name="second", **fields):
    request = SiteCreate(name=name, region="north", **fields)
    return await service.create_site(world.runtime, tenant, request)


async def test_a_pool_is_shown_as_in_the_document(world):
    pool = await create(world)
    assert pool.id.startswith("pool_")
    view = pool.model_dump(by_alias=True)
    assert {key: view[key] for key in FRA1.keys() & view.keys()} == {
        key: value for key, value in FRA1.items() if key != "idempotency_key"
    }
    assert (pool.owner_tenant_id, pool.owned, pool.archived, pool.version) == (
        "root",
        True,
        False,
        1,
    )
    assert (pool.agent, pool.region, pool.provider_account_id) == ("apportion", "local", None)
    assert pool.quotas[0].model_dump() == {
        "tenant_id": "root",
        "pool_id": pool.id,
        "resource": "gpu",
        "max": 2147483647,
        "used": 0,
        "available": 2147483647,
    }


async def test_a_pool_that_is_created_is_told_with_what_it_became(world):
    pool = await create(world)
    [(kind, data)] = await told(world, world.caller, "pool.")
    assert (kind, data["name"], data["agent"]) == ("pool.created", "fra1-h100", "apportion")
    [row] = await world.rows("SELECT before, after FROM events WHERE type = 'pool.created'")
    assert row["before"] is None
    assert row["after"] == pool.model_dump(mode="json", by_alias=True)


async def test_a_retry_returns_the_same_pool_whatever_became_of_it(world):
    pool = await create(world)
    await update(world, pool, 1, policy={"maxPending": "1h"})
    again = await create(world, name="other-name", policy={"maxPending": "9h"})
    assert (again.id, again.name, again.policy) == (pool.id, "fra1-h100", {"maxPending": "1h"})
    await archive(world, pool)
    assert (await create(world)).archived is True
    assert len(await world.rows("SELECT id FROM pools")) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"class": "vps-host"},
        {"sharing": "mig"},
        {"agent": "none"},
        {"gpu_model": "H200"},
        {"class": "provider", "provider_account_id": "a"},
    ],
)
async def test_the_same_key_for_another_pool_is_a_conflict(world, fields):
    pool = await create(world)
    before = await written(world)
    error = await refusal(create(world, **fields), ConflictError)
    assert error.field == "idempotency_key"
    assert error.details["pool_id"] == pool.id
    assert {error.details["there"], error.details["asked"]} & {*fields.values()}
    assert await written(world) == before


async def test_the_same_key_in_another_site_or_for_another_account_is_a_conflict(world):
    site = await site_of(world, world.caller)
    provider = {"class": "provider", "provider_account_id": "a", "idempotency_key": "p"}
    [home] = await world.rows("SELECT id FROM sites WHERE name <> 'second'")
    await create(world, site_id=home["id"])
    error = await refusal(create(world, site_id=site.id), ConflictError)
    assert "another site_id" in str(error)
    # Left out, the site is the one that the pool is in, though there are two by now.
    await create(world)
    await create(world, **provider, site_id=home["id"], name="p")
    error = await refusal(create(world, **{**provider, "provider_account_id": "b"}), ConflictError)
    assert "another provider_account_id" in str(error)


async def test_a_key_is_the_callers_own(world, acme):
    await site_of(world, acme, "own")
    other = type(world.caller)("root", "tok_other")
    made = {
        (await create(world)).id,
        (await create(world, by=other, name="second")).id,
        (await create(world, by=acme)).id,
    }
    assert len(made) == 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"class": "provider"}, "provider_account_id"),
        ({"provider_account_id": "a"}, "provider_account_id"),
        ({"class": "provider", "provider_account_id": "a", "agent": "apportion"}, "agent"),
    ],
)
async def test_a_provider_pool_needs_its_account_and_has_no_agent(world, fields, field):
    before = await written(world)
    error = await refusal(create(world, **fields), InvalidInputError)
    assert error.field == field
    assert await written(world) == before


async def test_a_provider_pool_has_agent_none(world):
    pool = await create(world, **{"class": "provider"}, provider_account_id="a", agent="none")
    assert (pool.agent, pool.provider_account_id) == ("none", "a")
    again = await create(world, **{"class": "provider"}, provider_account_id="a")
    assert again.id == pool.id


async def test_the_class_fixes_what_its_nodes_serve(world):
    targets = {}
    for cls in ("metal-host", "vps-host", "kubernetes-host", "slurm-host"):
        pool = await create(world, **{"class": cls}, name=cls, idempotency_key=None)
        node = inventory(cls, gpu("H100", 0, node=cls))
        await world.report(pool, node)
        [row] = await world.rows("SELECT target FROM nodes WHERE name = %s", cls)
        targets[cls] = row["target"]
    assert targets == {
        "metal-host": "direct",
        "vps-host": "direct",
        "kubernetes-host": "kubernetes",
        "slurm-host": "slurm",
    }


async def test_a_site_that_the_tenant_does_not_own_is_not_found(world, acme):
    own = await site_of(world, acme, "own")
    foreign = await refusal(create(world, site_id=own.id), NotFoundError)
    nowhere = await refusal(create(world, site_id="site_none"), NotFoundError)
    assert str(foreign) == str(nowhere).replace("site_none", own.id)
    [roots] = await world.rows("SELECT id FROM sites WHERE tenant_id = 'root'")
    await refusal(create(world, by=acme, site_id=roots["id"]), NotFoundError)
    pool = await create(world, by=acme, site_id=own.id)
    assert (pool.owner_tenant_id, pool.region) == ("acme", "north")


async def test_one_model_only_joins_and_the_reason_is_given(world):
    pool = await create(world)
    error = await refusal(world.report(pool, inventory("n1", gpu("A100", 0))), InvalidInputError)
    assert "the pool holds H100 GPUs and this is of family A100" in str(error)


async def test_an_update_replaces_the_policy_whole(world):
    pool = await create(world)
    view = await update(world, pool, 1, policy={"maxPending": "1h", "colour": "red"})
    assert (view.policy, view.version) == ({"maxPending": "1h", "colour": "red"}, 2)
    assert (await seen(world, world.caller, pool)).policy == view.policy


async def test_an_update_of_another_version_is_a_conflict_that_names_both(world):
    pool = await create(world)
    await update(world, pool, 1, policy={})
    before = await written(world)
    error = await refusal(update(world, pool, 1, policy={"maxPending": "2h"}), ConflictError)
    assert (error.field, error.given) == ("version", 1)
    assert error.details == {"there": 2, "asked": 1}
    assert await written(world) == before


async def test_an_update_that_changes_nothing_is_no_update(world):
    pool = await create(world)
    before = await written(world)
    for fields in ({}, {"policy": FRA1["policy"]}, {"gpu_model": "H100"}):
        assert await update(world, pool, 1, **fields) == pool
    assert await written(world) == before


async def test_what_never_changes_is_no_field_of_an_update():
    assert set(PoolUpdate.model_fields) == {"version", "policy", "gpu_model"}


async def test_the_model_changes_while_no_node_contradicts_it(world):
    pool = await create(world)
    assert (await update(world, pool, 1, gpu_model="A100")).gpu_model == "A100"
    await world.report(pool, inventory("n1", gpu("A100", 0)))
    error = await refusal(update(world, pool, 2, gpu_model="H100"), InvalidStateError)
    assert error.field == "gpu_model"
    assert (await seen(world, world.caller, pool)).gpu_model == "A100"


async def test_an_update_is_told_to_the_owner_and_to_whom_the_pool_is_offered(world, acme, beta):
    pool = await create(world)
    await offer(world, pool, acme)
    await update(world, pool, 1, policy={"maxPending": "1h"}, gpu_model="A100")
    rows = await world.rows(
        "SELECT tenant_id, actor, data, before, after FROM events"
        " WHERE type = 'pool.updated' ORDER BY id"
    )
    assert [(row["tenant_id"], row["actor"]) for row in rows] == [
        ("root", world.caller.actor),
        ("acme", "root"),
    ]
    assert rows[0]["data"] == rows[1]["data"] == {"changed": ["gpu_model", "policy"], "version": 2}
    assert rows[0]["before"]["policy"] == FRA1["policy"]
    assert rows[0]["after"]["policy"] == {"maxPending": "1h"}
    assert rows[1]["after"] is None
    assert await told(world, beta) == []


async def test_an_archived_pool_is_not_updated(world):
    pool = await create(world)
    await archive(world, pool)
    error = await refusal(update(world, pool, 1, policy={}), InvalidStateError)
    assert error.field == "pool_id"


async def test_an_archive_takes_every_offer_and_leaves_what_runs(world, acme, beta):
    node = inventory("n1", *[gpu("H100", index) for index in range(8)])
    pool = await world.pool(pool_of("H100"), node)
    await offer(world, pool, acme, {"gpu": 32})
    await offer(world, pool, beta, {"gpu": 2, "vcpu": "unlimited"})
    running = await world.reservations.create(acme, ask(pool.id, device(count=4), duration="9h"))
    later = await world.reservations.create(
        beta, ask(pool.id, device(), start=world.clock().isoformat(), duration="2h")
    )
    own = await world.create(ask(pool.id, device(count=3), duration="9h"))
    waiting = [
        await world.create(ask(pool.id, device(), duration="1h")),
        await world.reservations.create(acme, ask(pool.id, device(), duration="1h")),
    ]
    assert {each.state for each in waiting} == {"pending"}
    view = await archive(world, pool)
    assert (view.archived, view.owned, view.id) == (True, True, pool.id)
    assert await service.list_offers(world.runtime, world.caller, pool.id) == []
    assert (await limits(world, acme, pool))["gpu"] == ("4", "4")
    assert (await limits(world, beta, pool))["gpu"] == ("1", "1")
    assert (await limits(world, beta, pool))["vcpu"] == ("0", "0")
    for caller, held in ((acme, running), (beta, later), (world.caller, own)):
        after = await world.reservations.get(caller, held.id)
        assert (after.state, after.bookings) == (held.state, held.bookings)
    for caller in (world.caller, acme, beta):
        await refusal(world.reservations.create(caller, ask(pool.id, device())), NotFoundError)
    await world.tick(seconds=1)
    for caller, each in zip((world.caller, acme), waiting, strict=True):
        after = await world.reservations.get(caller, each.id)
        assert (after.state, after.reason["code"]) == ("failed", "PoolGone")
    await world.tick(hours=9)
    assert (await world.reservations.get(acme, running.id)).state == "ended"


async def test_only_the_owner_still_sees_an_archived_pool(world, acme):
    pool = await create(world)
    other = await create(world, name="other", idempotency_key="other")
    await offer(world, pool, acme)
    await archive(world, pool)
    assert (await seen(world, world.caller, pool)).archived is True
    assert await listed(world, world.caller) == [other.id]
    assert await listed(world, world.caller, archived=True) == [pool.id]
    await refusal(seen(world, acme, pool), NotFoundError)
    for archived in (False, True):
        assert await listed(world, acme, archived=archived) == []


async def test_archiving_again_changes_and_tells_nothing(world, acme):
    pool = await create(world)
    await offer(world, pool, acme)
    first = await archive(world, pool)
    before = await written(world)
    assert await archive(world, pool) == first
    assert await written(world) == before


async def test_an_archive_tells_who_lost_the_offer(world, acme, beta):
    pool = await create(world)
    await offer(world, pool, beta)
    await offer(world, pool, acme, {"gpu": 3})
    await archive(world, pool)
    rows = await world.rows(
        "SELECT tenant_id, actor, data, before, after FROM events"
        " WHERE type = 'pool.archived' ORDER BY id"
    )
    assert [(row["tenant_id"], row["actor"], row["data"]) for row in rows] == [
        ("root", world.caller.actor, {"unoffered": ["acme", "beta"]}),
        ("acme", "root", {}),
        ("beta", "root", {}),
    ]
    [before, after] = rows[0]["before"], rows[0]["after"]
    assert (before["archived"], after["archived"]) == (False, True)
    assert [each["tenant_id"] for each in before["offers"]] == ["acme", "beta"]
    assert after["offers"] == []


async def test_machines_of_an_archived_pool_report_on_and_no_other_joins(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    await archive(world, pool)
    await world.report(pool, inventory("n1", gpu("H100", 0, failed="Xid 79")))
    [row] = await world.rows("SELECT health FROM nodes")
    assert row["health"] == "no_capacity"
    before = await written(world)
    joining = inventory("n2", gpu("H100", 0, node="n2"))
    error = await refusal(world.report(pool, joining), InvalidStateError)
    assert error.field == "pool_id"
    assert await written(world) == before


async def test_owners_of_shared_pools_must_add_the_rows_themselves(world):
    request = pool_of("T4", "mps", replicas=4).model_dump(by_alias=True, exclude={"owner_quota"})
    pool = await world.pool(PoolCreate.model_validate(request), inventory("n1", gpu("T4", 0)))
    await refusal(world.create(ask(pool.id, device("gpu.slot"))), QuotaExceededError)
    await world.quota(pool, "gpu.slot", 4)
    assert (await world.create(ask(pool.id, device("gpu.slot")))).state == "active"


async def validate(world, **fields):
    request = PoolValidate.model_validate(fields)
    return await service.validate_pool(world.runtime, world.caller, request)


async def test_a_dry_run_shows_all_that_create_would_refuse_and_changes_nothing(world):
    await create(world)
    before = await written(world)
    found = await validate(
        world,
        create={
            **FRA1,
            "idempotency_key": None,
            "class": "provider",
            "agent": "apportion",
            "site_id": "site_none",
            "policy": {"maxPending": 6, "replicas": 4, "colour": "red"},
            "owner_quota": {"gpu": "1.5"},
        },
    )
    assert found.valid is False
    assert sorted((each.code, each.field) for each in found.problems) == [
        ("CONFLICT", "name"),
        ("INVALID_INPUT", "agent"),
        ("INVALID_INPUT", "owner_quota.gpu"),
        ("INVALID_INPUT", "policy.maxPending"),
        ("INVALID_INPUT", "policy.replicas"),
        ("INVALID_INPUT", "provider_account_id"),
        ("NOT_FOUND", "site_id"),
    ]
    assert {each.code: each.status for each in found.problems} == {
        "CONFLICT": 409,
        "INVALID_INPUT": 400,
        "NOT_FOUND": 404,
    }
    assert found.unknown_fields == ["colour"]
    assert await written(world) == before


async def test_a_dry_run_of_what_create_would_take_finds_nothing(world):
    before = await written(world)
    found = await validate(world, create=FRA1)
    assert (found.valid, found.problems, found.unknown_fields) == (True, [], [])
    assert await written(world) == before
    await create(world)
    assert (await validate(world, create=FRA1)).valid  # a retry
    other = await validate(world, create={**FRA1, "sharing": "mig"})
    assert [(each.code, each.field) for each in other.problems] == [("CONFLICT", "idempotency_key")]


async def test_a_dry_run_shows_all_that_update_would_refuse(world, acme, beta):
    pool = await create(world)
    await offer(world, pool, acme, include_descendants=True)
    await update(world, pool, 1, policy={})
    before = await written(world)
    asked = {"version": 1, "policy": {"singleTenant": True, "maxPending": "soon"}}
    found = await validate(world, pool_id=pool.id, update=asked)
    assert sorted((each.code, each.field) for each in found.problems) == [
        ("CONFLICT", "version"),
        ("INVALID_INPUT", "policy.maxPending"),
        ("INVALID_STATE", "policy.singleTenant"),
    ]
    assert await written(world) == before
    good = await validate(world, pool_id=pool.id, update={"version": 2, "policy": {"x": 1}})
    assert (good.valid, good.unknown_fields) == (True, ["x"])
    await archive(world, pool)
    gone = await validate(world, pool_id=pool.id, update={"version": 2})
    assert [each.code for each in gone.problems] == ["INVALID_STATE"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"create": FRA1, "pool_id": "p"}, {"pool_id": "p"}, {"update": {"version": 1}}],
)
async def test_a_dry_run_is_of_one_thing(world, fields):
    assert (await refusal(validate(world, **fields), InvalidInputError)).field == "create"


async def test_a_dry_run_of_anothers_pool_finds_none(world, acme):
    pool = await create(world)
    await offer(world, pool, acme)
    request = PoolValidate.model_validate({"pool_id": pool.id, "update": {"version": 1}})
    await refusal(service.validate_pool(world.runtime, acme, request), NotFoundError)
