"""Pools over HTTP: the document's calls, who may make them, and decisions that change at once."""

import pytest

from apportion.authority.service import issue_token
from apportion.store.connections import transaction
from apportion.testing.builders import gpu, inventory

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

FRA1 = {
    "name": "fra1-h100",
    "class": "metal-host",
    "gpu_model": "H100",
    "sharing": "exclusive",
    "policy": {"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"},
    "idempotency_key": "pool-fra1-h100",
}


class Asker:
    """Asks as one tenant's token."""

    def __init__(self, http, token):
        self.http, self.headers = http, {"Authorization": f"Bearer {token}"}

    async def __call__(self, method, path, body=None, **headers):
        answer = await self.http.request(
            method, f"/v1{path}", json=body, headers={**self.headers, **headers}
        )
        told = answer.json()
        told.pop("request_id", None)
        return answer.status_code, told

    async def done(self, method, path, body=None):
        status, told = await self(method, path, body)
        assert status < 300, told
        return told

    async def refused(self, method, path, body=None):
        status, told = await self(method, path, body)
        assert status >= 400, told
        return told["code"], told.get("field")


@pytest.fixture
def as_tenant(http, runtime):
    async def make(tenant_id, role="owner"):
        async with transaction(runtime.db) as connection:
            issued = await issue_token(
                runtime, connection, tenant_id=tenant_id, name="t", role=role
            )
        return Asker(http, issued.token)

    return make


@pytest.fixture
async def root(as_tenant):
    return await as_tenant("root")


@pytest.fixture
async def acme(root, as_tenant):
    await root.done("POST", "/tenants", {"id": "acme", "name": "Acme"})
    return await as_tenant("acme")


async def forbid(root, text):
    made = await root.done("POST", "/policies", {"name": "no", "text": text})
    return made["id"]


async def test_the_documents_calls_one_after_the_other(root, acme):
    pool = await root.done("POST", "/pools", FRA1)
    node = inventory("n1", *[gpu("H100", index) for index in range(8)])
    await root.done(
        "POST", f"/pools/{pool['id']}/nodes", node.model_dump(mode="json", by_alias=True)
    )
    offered = await root.done(
        "PUT", f"/pools/{pool['id']}/offers/acme", {"quota": {"gpu": 32}, "priority": 10}
    )
    assert (offered["priority"], offered["include_descendants"]) == (10, False)
    for _ in range(4):
        await acme.done(
            "POST",
            "/reservations",
            {"pool_id": pool["id"], "devices": [{"class": "gpu"}], "duration": "1h"},
        )
    listed = await acme.done("GET", "/pools")
    [view] = listed["items"]
    assert view["quotas"][0] == {
        "tenant_id": "acme",
        "pool_id": pool["id"],
        "resource": "gpu",
        "max": 32,
        "used": 4,
        "available": 28,
    }
    assert {key: view[key] for key in ("owner_tenant_id", "owned", "archived", "version")} == {
        "owner_tenant_id": "root",
        "owned": False,
        "archived": False,
        "version": 1,
    }
    path = f"/pools/{pool['id']}/offers/acme"
    assert await root.done("DELETE", path) == {"removed": True}
    assert await root.done("DELETE", path) == {"removed": False}
    assert (await acme.done("GET", "/pools"))["items"] == []
    for _ in range(2):
        archived = await root.done("POST", f"/pools/{pool['id']}/archive")
        assert archived["archived"] is True
    assert (await root.done("GET", "/pools"))["items"] == []
    assert len((await root.done("GET", "/pools?archived=true"))["items"]) == 1
    types = [each["type"] for each in (await root.done("GET", "/events"))["items"]]
    assert [each for each in types if each.startswith("pool.")] == [
        "pool.created",
        "pool.offered",
        "pool.unoffered",
        "pool.archived",
    ]


async def test_a_header_is_the_key_too(root):
    body = {key: value for key, value in FRA1.items() if key != "idempotency_key"}
    made = {
        (await root("POST", "/pools", body, **{"Idempotency-Key": "k"}))[1]["id"] for _ in range(2)
    }
    assert len(made) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"priority": 1001}, "priority"),
        ({"priority": -1001}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"include_descendants": "yes"}, "include_descendants"),
        ({"quota": {"gpu": -1}}, "quota.gpu"),
        ({"quota": {"gold": 1}}, "quota"),
        ({"quotas": {}}, "quotas"),
    ],
)
async def test_an_offer_that_can_never_be_names_its_field(root, acme, body, field):
    pool = await root.done("POST", "/pools", FRA1)
    code, told = await root.refused("PUT", f"/pools/{pool['id']}/offers/acme", body)
    assert (code, told.split("[")[0].startswith(field)) == ("INVALID_INPUT", True)
    assert await root.refused("PUT", f"/pools/{pool['id']}/offers/-", {}) == (
        "INVALID_INPUT",
        "tenant_id",
    )


async def test_a_bad_policy_is_refused_at_the_api_with_its_path(root):
    bad = {**FRA1, "policy": {"overcommit": {"vcpu": "much"}}}
    assert await root.refused("POST", "/pools", bad) == (
        "INVALID_INPUT",
        "policy.overcommit.vcpu",
    )
    pool = await root.done("POST", "/pools", FRA1)
    update = {"version": 1, "policy": {"singleTenant": "yes"}}
    assert await root.refused("PATCH", f"/pools/{pool['id']}", update) == (
        "INVALID_INPUT",
        "policy.singleTenant",
    )
    assert (await root.done("GET", f"/pools/{pool['id']}"))["version"] == 1


@pytest.mark.parametrize("role", ["member", "viewer", "node"])
async def test_who_may_only_use_or_look_changes_nothing(root, as_tenant, role):
    pool = await root.done("POST", "/pools", FRA1)
    asker = await as_tenant("root", role)
    path = f"/pools/{pool['id']}"
    for method, at, body in (
        ("POST", "/sites", {"name": "s", "region": "r"}),
        ("POST", "/pools", {**FRA1, "name": "other", "idempotency_key": None}),
        ("POST", "/pools/validate", {"create": FRA1}),
        ("PATCH", path, {"version": 1, "policy": {}}),
        ("POST", f"{path}/archive", None),
        ("PUT", f"{path}/offers/root", {}),
        ("DELETE", f"{path}/offers/root", None),
        ("PUT", "/quotas", {"pool_id": pool["id"], "resource": "gpu", "max": 0}),
    ):
        assert (await asker.refused(method, at, body))[0] == "FORBIDDEN", at
    assert (await root.done("GET", path)) == pool
    reads = 200 if role != "node" else 403
    assert (await asker("GET", path))[0] == reads


async def test_policies_decide_on_what_the_pool_is_to_be(root):
    policy = await forbid(
        root,
        'forbid(principal, action == Action::"compute:pools:create", resource)'
        ' when { context.gpuModel == "H100" && context.region == "local" &&'
        ' context.class == "metal-host" && context.sharing == "exclusive" && context.owned };',
    )
    status, told = await root("POST", "/pools", FRA1)
    assert (status, told["code"], told["details"]["policies"]) == (403, "FORBIDDEN", [policy])
    found = await root.done("POST", "/pools/validate", {"create": FRA1})
    assert [(each["code"], each["status"]) for each in found["problems"]] == [("FORBIDDEN", 403)]
    for fields in ({"gpu_model": "A100"}, {"sharing": "mig"}, {"class": "vps-host"}):
        body = {**FRA1, **fields, "name": next(iter(fields.values())).lower()}
        await root.done("POST", "/pools", {**body, "idempotency_key": None})
    site = await root.done("POST", "/sites", {"name": "far", "region": "far"})
    await root.done("POST", "/pools", {**FRA1, "site_id": site["id"]})


async def test_a_decision_changes_with_the_next_request_after_an_update(root):
    pool = await root.done("POST", "/pools", FRA1)
    await forbid(
        root,
        'forbid(principal, action == Action::"compute:pools:manage", resource)'
        ' when { context.gpuModel == "A100" };',
    )
    path = f"/pools/{pool['id']}"
    await root.done("PATCH", path, {"version": 1, "gpu_model": "A100"})
    assert await root.refused("PATCH", path, {"version": 2, "policy": {}}) == ("FORBIDDEN", None)
    assert (await root.refused("POST", f"{path}/archive"))[0] == "FORBIDDEN"
    found = await root.done(
        "POST", "/pools/validate", {"pool_id": pool["id"], "update": {"version": 1}}
    )
    assert [each["code"] for each in found["problems"]] == ["FORBIDDEN", "CONFLICT"]


async def test_a_decision_changes_with_the_next_request_after_a_site_moved(root):
    site = await root.done("POST", "/sites", {"name": "far", "region": "far"})
    pool = await root.done("POST", "/pools", {**FRA1, "site_id": site["id"]})
    await root.done("POST", "/tenants", {"id": "beta", "name": "Beta"})
    await forbid(
        root,
        'forbid(principal, action == Action::"compute:pools:share", resource)'
        ' unless { context.region == "near" };',
    )
    path = f"/pools/{pool['id']}/offers/beta"
    assert (await root.refused("PUT", path, {}))[0] == "FORBIDDEN"
    await root.done("PATCH", f"/sites/{site['id']}", {"region": "near"})
    await root.done("PUT", path, {})
    await root.done("PATCH", f"/sites/{site['id']}", {"region": "far"})
    assert (await root.refused("DELETE", path))[0] == "FORBIDDEN"


async def test_an_offer_and_an_archive_decide_the_next_request_of_others(root, acme):
    pool = await root.done("POST", "/pools", FRA1)
    path = f"/pools/{pool['id']}"
    ask = {"pool_id": pool["id"], "devices": [{"class": "gpu"}], "duration": "1h"}
    assert (await acme.refused("POST", "/reservations", ask))[0] == "NOT_FOUND"
    await root.done("PUT", f"{path}/offers/acme", {"quota": {"gpu": 1}})
    assert (await acme("POST", "/reservations", ask))[0] == 201
    await root.done("POST", f"{path}/archive")
    assert (await acme.refused("POST", "/reservations", ask))[0] == "NOT_FOUND"
    assert (await root.refused("POST", "/reservations", ask))[0] == "NOT_FOUND"
    assert (await acme.refused("GET", path))[0] == "NOT_FOUND"


async def test_a_forbidden_caller_of_its_own_pool_is_told_before_anything_else(root):
    """Not whether the tenant exists, nor what its offer says."""
    pool = await root.done("POST", "/pools", FRA1)
    await forbid(root, 'forbid(principal, action == Action::"compute:pools:share", resource);')
    for tenant in ("root", "nobody"):
        path = f"/pools/{pool['id']}/offers/{tenant}"
        assert (await root.refused("PUT", path, {}))[0] == "FORBIDDEN"
        assert (await root.refused("DELETE", path))[0] == "FORBIDDEN"


async def test_offers_are_paged_by_tenant(root, acme):
    pool = await root.done("POST", "/pools", FRA1)
    for name in ("a1", "a2", "a3"):
        await root.done("POST", "/tenants", {"id": name, "name": name})
        await root.done("PUT", f"/pools/{pool['id']}/offers/{name}", {})
    path = f"/pools/{pool['id']}/offers"
    seen, cursor = [], ""
    while cursor is not None:
        page = await root.done("GET", f"{path}?limit=2" + (cursor and f"&cursor={cursor}"))
        seen += [each["tenant_id"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ["a1", "a2", "a3"]
    assert (await acme.refused("GET", path))[0] == "NOT_FOUND"


async def test_the_audit_shows_an_offer_before_and_after(root, acme):
    pool = await root.done("POST", "/pools", FRA1)
    path = f"/pools/{pool['id']}/offers/acme"
    await root.done("PUT", path, {"quota": {"gpu": 1}})
    await root.done("PUT", path, {"quota": {"gpu": 2}})
    await root.done("DELETE", path)
    items = (await root.done("GET", f"/audit?subject={pool['id']}"))["items"]
    changes = [
        (
            each["action"],
            *(
                each[side] and [q["max"] for q in each[side]["quotas"] if q["resource"] == "gpu"]
                for side in ("before", "after")
            ),
        )
        for each in reversed(items)
    ]
    assert changes == [
        ("pool.created", None, [2147483647]),
        ("pool.offered", None, [1]),
        ("pool.offered", [1], [2]),
        ("pool.unoffered", [2], None),
    ]
    assert (await acme.done("GET", "/audit"))["items"] == []
