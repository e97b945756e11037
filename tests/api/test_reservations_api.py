"""Over HTTP: whose quota is charged, what explains it, what policies forbid, and what goes."""

import pytest
from tenants_asking import As

from apportion.testing.builders import gpu, inventory

pytestmark = pytest.mark.anyio
CREATE = "compute:reservations:create"


@pytest.fixture
def root(http, token):
    return As(http, token)


@pytest.fixture
async def pool(root):
    made = await root.post("/pools", {"name": "h100", "gpu_model": "H100"})
    machine = inventory("n1", *(gpu("H100", index) for index in range(8)))
    body = machine.model_dump(mode="json", by_alias=True)
    await root.post(f"/pools/{made['id']}/nodes", body, 200)
    return made


@pytest.fixture
async def acme(root, pool):
    """Give an owner of acme, to which the pool is offered with 6 GPUs for it and all below."""
    await root.tenant_of("acme")
    terms = {"quota": {"gpu": 6}, "include_descendants": True}
    await root.put(f"/pools/{pool['id']}/offers/acme", terms)
    return await root.for_tenant("acme").token_of("owner")


def wanted(pool, count=1, **more):
    return {
        "pool_id": pool["id"],
        "devices": [{"class": "gpu", "count": count}],
        "duration": "1h",
        **more,
    }


async def test_a_quota_is_explained_in_pages_to_those_whom_it_concerns(root, pool, acme):
    made = [await acme.post("/reservations", wanted(pool, n, name=f"run-{n}")) for n in (1, 2, 3)]
    assert made[0]["charged_tenant_id"] == "acme"
    assert made[2]["charges"] == {"gpu": 3, "gpuEquivalents": 3}
    path = f"/pools/{pool['id']}/quotas/acme/gpu/explain"
    for door in (root, acme):
        first = await door.get(path, limit=2)
        assert first["quota"]["used"] == first["accounted"] == 6
        rest = await door.get(path, limit=2, cursor=first["next_cursor"])
        assert (rest["next_cursor"], rest["accounted"]) == (None, 6)
        uses = [*first["reservations"], *rest["reservations"]]
        assert [use["id"] for use in uses] == sorted(view["id"] for view in made)
        assert {(use["name"], use["amount"], use["state"], use["tenant_id"]) for use in uses} == {
            (f"run-{n}", n, "active", "acme") for n in (1, 2, 3)
        }
    refused = await acme.refused("POST", "/reservations", 403, "QUOTA_EXCEEDED", wanted(pool))
    assert refused["details"]["tenant_id"] == "acme"


async def test_who_may_not_see_a_quota_is_told_what_one_that_never_was_is_told(root, pool, acme):
    await acme.post("/tenants", {"id": "acme-lab", "name": "Lab"})
    lab = await acme.for_tenant("acme-lab").token_of("owner")
    await root.tenant_of("beta")
    beta = await root.for_tenant("beta").token_of("owner")
    assert (await lab.post("/reservations", wanted(pool)))["charged_tenant_id"] == "acme"

    async def refusal(door, pool_id, tenant):
        path = f"/pools/{pool_id}/quotas/{tenant}/gpu/explain"
        return await door.refused("GET", path, 404, "NOT_FOUND")

    never = await refusal(beta, "pool_0000000000000000000000000", "nobody")
    assert await refusal(lab, pool["id"], "acme") == never
    assert await refusal(beta, pool["id"], "acme") == never
    assert await refusal(acme, pool["id"], "root") == never
    wrong = await acme.refused(
        "GET", f"/pools/{pool['id']}/quotas/acme/gold/explain", 400, "INVALID_INPUT"
    )
    assert wrong["field"] == "resource"
    await acme.refused(
        "GET",
        f"/pools/{pool['id']}/quotas/acme/gpu/explain",
        400,
        "INVALID_INPUT",
        cursor="elsewhere",
    )


async def test_a_policy_of_a_tenant_decides_the_next_ask_by_what_it_asks_for(root, pool, acme):
    text = (
        f'forbid(principal, action == Action::"{CREATE}", resource) when '
        "{ context.gpuCount > 2 || context.durationSeconds > 7200 };"
    )
    await acme.post("/reservations", wanted(pool, 3))
    made = await acme.post("/policies", {"name": "small", "text": text})
    refused = await acme.refused("POST", "/reservations", 403, "FORBIDDEN", wanted(pool, 3))
    assert refused["field"] == "pool_id"
    assert "h100" in refused["detail"]
    assert "small" in refused["detail"]
    assert refused["details"] == {
        "right": CREATE,
        "policies": [made["id"]],
        "pool_id": pool["id"],
    }
    body = {"reservations": [wanted(pool, n, duration=f"{n}h") for n in (3, 2, 1)]}
    answer = await acme.post("/reservations/batch", body, 200)
    assert [sorted(item) for item in answer["items"]] == [
        ["error"],
        ["reservation"],
        ["reservation"],
    ]
    await acme.delete(f"/policies/{made['id']}")
    await root.put(
        "/quotas", {"pool_id": pool["id"], "tenant_id": "acme", "resource": "gpu", "max": 9}
    )
    # Eight GPUs, six of them taken: what is allowed now has to wait.
    assert (await acme.post("/reservations", wanted(pool, 3)))["state"] == "pending"


async def test_an_archive_ends_the_waiting_and_makes_the_pool_not_found(
    root, pool, acme, reservations
):
    runs = await acme.post("/reservations", wanted(pool, 6))
    waits = await root.post("/reservations", wanted(pool, 3))
    assert waits["state"] == "pending"
    await root.post(f"/pools/{pool['id']}/archive", status=200)
    never = wanted({"id": "pool_0000000000000000000000000"})
    for door in (root, acme):
        refused = await door.refused("POST", "/reservations", 404, "NOT_FOUND", wanted(pool))
        unknown = await door.refused("POST", "/reservations", 404, "NOT_FOUND", never)
        assert {**refused, "given": None} == {**unknown, "given": None}
    await reservations.lifecycle.advance()
    failed = await root.get(f"/reservations/{waits['id']}")
    assert (failed["state"], failed["reason"]["code"]) == ("failed", "PoolGone")
    assert (await acme.get(f"/reservations/{runs['id']}"))["state"] == "active"
    told = await root.events("reservation.failed", waits["id"])
    assert [each["data"]["reason"]["code"] for each in told] == ["PoolGone"]
    explained = await root.get(f"/pools/{pool['id']}/quotas/acme/gpu/explain")
    assert [use["id"] for use in explained["reservations"]] == [runs["id"]]


async def test_a_deleted_tenant_ends_all_it_had(root, pool, acme):
    runs = await acme.post("/reservations", wanted(pool, 6))
    done = await root.delete("/tenants/acme")
    assert done["ended_reservations"] == 1
    explained = await root.get(f"/pools/{pool['id']}/quotas/acme/gpu/explain")
    assert (explained["reservations"], explained["accounted"]) == ([], 0)
    await acme.refused("GET", f"/reservations/{runs['id']}", 401, "UNAUTHENTICATED")
    seen = await root.for_tenant("acme").refused(
        "GET", f"/reservations/{runs['id']}", 404, "NOT_FOUND"
    )
    assert seen["field"] == "tenant_id"
