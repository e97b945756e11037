"""The tree of tenants: who sees whom, who makes whom, and what deleting one ends."""

import pytest
from tenants_asking import As

from apportion.store.connections import transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(http, token):
    return As(http, token)


async def ids(door, **query):
    return [each["id"] for each in (await door.get("/tenants", **query))["items"]]


async def rows(runtime, query, *values):
    async with transaction(runtime.db) as connection:
        return await (await connection.execute(query, values or None)).fetchall()


def json_of(request):
    return request.model_dump(mode="json", by_alias=True)


async def test_a_tenant_is_made_under_the_caller_or_below_and_knows_its_way_from_root(root):
    made = await root.post("/tenants", {"id": "acme", "name": "Acme Corp"})
    assert (made["id"], made["name"], made["parent_id"]) == ("acme", "Acme Corp", "root")
    assert made["ancestors"] == ["root", "acme"]
    assert made["deleted_at"] is None
    acme = await root.for_tenant("acme").token_of()
    team = await acme.post("/tenants", {"id": "team", "name": "Team"})
    assert team["ancestors"] == ["root", "acme", "team"]
    lab = await root.post("/tenants", {"id": "lab", "name": "Lab", "parent_id": "team"})
    assert lab["ancestors"] == ["root", "acme", "team", "lab"]
    assert await acme.get("/tenants/lab") == lab


async def test_a_caller_lists_its_own_tenant_and_those_below_in_pages(root):
    acme = await root.tenant_of("acme")
    await root.tenant_of("globex")
    for name in ("a-1", "b-2"):
        await acme.tenant_of(name)
    assert await ids(root) == ["a-1", "acme", "b-2", "globex", "root"]
    assert await ids(acme) == ["a-1", "acme", "b-2"]
    assert await ids(root.for_tenant("acme")) == ["a-1", "acme", "b-2"]
    assert await ids(acme, parent_id="acme") == ["a-1", "b-2"]
    assert await ids(acme, name="A-1") == ["a-1"]
    assert await ids(acme, parent_id="root") == ["acme"]
    assert await ids(acme, name="Globex") == []
    first = await acme.get("/tenants", limit=2)
    rest = await acme.get("/tenants", limit=2, cursor=first["next_cursor"])
    assert [each["id"] for each in rest["items"]] == ["b-2"]
    assert rest["next_cursor"] is None


async def test_another_tenant_does_not_exist_in_the_words_of_one_that_never_did(root):
    acme = await root.tenant_of("acme")
    globex = await root.tenant_of("globex")
    await globex.tenant_of("branch")
    for name in ("globex", "branch", "root", "never"):
        tries = [
            ("GET", f"/tenants/{name}", None),
            ("PATCH", f"/tenants/{name}", {"name": "Mine"}),
            ("DELETE", f"/tenants/{name}", None),
            ("POST", "/tenants", {"id": "new", "name": "New", "parent_id": name}),
        ]
        for method, path, body in tries:
            told = await acme.refused(method, path, 404, "NOT_FOUND", body)
            assert told["given"] == name
            assert told["detail"].endswith("no such tenant")
        told = await acme.for_tenant(name).refused("GET", "/caller", 404, "NOT_FOUND")
        assert (told["field"], told["given"]) == ("tenant_id", name)
    assert await ids(root) == ["acme", "branch", "globex", "root"]
    assert (await root.get("/tenants/globex"))["name"] == "Globex"


async def test_an_id_that_is_taken_is_a_conflict_that_says_nothing_more(root):
    acme = await root.tenant_of("acme")
    await root.tenant_of("globex")
    await root.tenant_of("gone")
    await root.delete("/tenants/gone")
    problems = [
        await acme.refused("POST", "/tenants", 409, "CONFLICT", {"id": name, "name": "X"})
        for name in ("globex", "gone", "acme", "root")
    ]
    assert {each["detail"] for each in problems} == {"id: this id is taken"}
    assert await root.events("tenant.created", "globex")
    assert len(await ids(root)) == 3


async def test_what_is_no_id_of_a_tenant_is_refused(root):
    for name in ("", "Acme", "-a", "a-", "a_b", "a" * 64, "a.b"):
        told = await root.refused(
            "POST", "/tenants", 400, "INVALID_INPUT", {"id": name, "name": "X"}
        )
        assert told["field"] == "id"


async def test_the_tree_is_ten_deep_at_most_root_counted(root):
    parent = "root"
    for depth in range(2, 11):
        made = {"id": f"t{depth}", "name": "T", "parent_id": parent}
        assert len((await root.post("/tenants", made))["ancestors"]) == depth
        parent = f"t{depth}"
    told = await root.refused(
        "POST", "/tenants", 400, "INVALID_INPUT", {"id": "t11", "name": "T", "parent_id": parent}
    )
    assert (told["field"], told["given"]) == ("parent_id", "t10")
    assert "10 tenants" in told["allowed"]


async def test_a_token_acts_for_a_tenant_below_its_own_and_for_no_other(root):
    acme = await root.tenant_of("acme")
    team = await acme.tenant_of("team")
    acting = await root.for_tenant("team").get("/caller")
    assert (acting["tenant_id"], acting["home_tenant_id"]) == ("team", "root")
    own = await team.get("/caller")
    assert (own["tenant_id"], own["token_id"], own["role"]) == ("team", team.token_id, "owner")
    assert (own["actions"], own["expires_at"]) == (["*"], None)
    await team.for_tenant("acme").refused("GET", "/caller", 404, "NOT_FOUND")


async def test_a_rename_is_told_to_the_tenant_and_its_parent_and_audited_where_it_was_done(root):
    acme = await root.tenant_of("acme")
    team = await acme.tenant_of("team")
    renamed = await root.patch("/tenants/team", {"name": "The Team"})
    assert renamed["name"] == (await team.get("/tenants/team"))["name"] == "The Team"
    for door in (root, acme, team):
        [event] = await door.events("tenant.updated", "team")
        assert event["data"] == {"name": "The Team", "parent_id": "acme"}
    [record] = await root.audited("tenant.updated")
    assert (record["before"]["name"], record["after"]["name"]) == ("Team", "The Team")
    # Whose token it was is the business of those who hold it.
    assert (await team.events("tenant.updated"))[0]["actor"] == "root"
    assert await team.audited("tenant.updated") == []


async def test_making_a_tenant_is_told_and_audited(root):
    acme = await root.tenant_of("acme")
    await acme.tenant_of("team")
    [record] = await acme.audited("tenant.created")
    assert (record["subject"], record["before"]) == ("team", None)
    assert record["after"]["ancestors"] == ["root", "acme", "team"]
    assert record["actor"] == acme.token_id
    assert [each["subject"] for each in await acme.events("tenant.created")] == ["acme", "team"]
    assert [each["subject"] for each in await root.events("tenant.created")] == ["acme"]


async def test_root_cannot_be_deleted(root):
    told = await root.refused("DELETE", "/tenants/root", 409, "INVALID_STATE")
    assert told["field"] == "tenant_id"
    assert (await root.get("/tenants/root"))["deleted_at"] is None


async def test_a_tenant_with_living_ones_below_it_is_not_deleted(root):
    await root.tenant_of("acme")
    for number in range(12):
        await root.post("/tenants", {"id": f"c{number:02}", "name": "C", "parent_id": "acme"})
    told = await root.refused("DELETE", "/tenants/acme", 409, "INVALID_STATE")
    assert "has 12 tenants below it: c00, c01," in told["detail"]
    assert "and 2 more" in told["detail"]
    assert told["details"]["count"] == 12
    for number in range(12):
        await root.delete(f"/tenants/c{number:02}")
    assert (await root.delete("/tenants/acme"))["tenant"]["deleted_at"] is not None


async def test_the_tokens_of_a_deleted_tenant_stop_at_once(root):
    acme = await root.tenant_of("acme")
    others = [await acme.token_of(role) for role in ("operator", "viewer")]
    deleted = await root.delete("/tenants/acme")
    assert deleted["revoked_tokens"] == 3
    for door in (acme, *others):
        await door.refused("GET", "/caller", 401, "UNAUTHENTICATED")
    await root.for_tenant("acme").refused("GET", "/caller", 404, "NOT_FOUND")


async def test_a_deleted_tenant_is_shown_to_those_above_and_listed_only_when_asked_for(root):
    acme = await root.tenant_of("acme")
    await acme.tenant_of("team")
    await acme.delete("/tenants/team")
    assert (await acme.get("/tenants/team"))["deleted_at"] is not None
    assert await ids(acme) == ["acme"]
    assert await ids(acme, include_deleted="true") == ["acme", "team"]
    assert await ids(acme, include_deleted="false") == ["acme"]
    await acme.refused("GET", "/tenants", 400, "INVALID_INPUT", include_deleted="yes")
    told = await acme.refused("PATCH", "/tenants/team", 409, "INVALID_STATE", {"name": "Again"})
    assert "is deleted" in told["detail"]
    new = {"id": "sub", "name": "Sub", "parent_id": "team"}
    await acme.refused("POST", "/tenants", 404, "NOT_FOUND", new)


async def test_deleting_again_says_the_same_and_does_nothing(root, runtime, clock):
    await root.tenant_of("acme")
    first = await root.delete("/tenants/acme")
    clock.advance(hours=1)
    again = await root.delete("/tenants/acme")
    assert again == {
        "tenant": first["tenant"],
        "archived_pools": [],
        "withdrawn_offers": [],
        "ended_reservations": 0,
        "revoked_tokens": 0,
    }
    assert len(await root.events("tenant.deleted", "acme")) == 1


async def test_a_tenant_may_delete_itself(root):
    acme = await root.tenant_of("acme")
    assert (await acme.delete("/tenants/acme"))["tenant"]["id"] == "acme"
    assert await ids(root) == ["root"]
    assert len(await root.events("tenant.deleted", "acme")) == 1


async def test_a_deletion_is_told_to_the_parent_with_counts_and_leaves_no_policy(root, runtime):
    acme = await root.tenant_of("acme")
    team = await acme.tenant_of("team")
    text = 'forbid(principal in Role::"node", action, resource);'
    await team.post("/policies", {"name": "no-nodes", "text": text})
    await root.delete("/tenants/team")
    for door in (root, acme):
        [event] = await door.events("tenant.deleted", "team")
        assert event["data"] == {
            "name": "Team",
            "parent_id": "acme",
            "archived_pools": 0,
            "withdrawn_offers": 0,
            "ended_reservations": 0,
            "revoked_tokens": 1,
        }
    [record] = await root.audited("tenant.deleted")
    assert record["before"]["deleted_at"] is None
    assert record["after"]["deleted_at"] is not None
    assert await rows(runtime, "SELECT id FROM access_policies") == []
    told = await rows(
        runtime,
        "SELECT type, data->>'reason' AS reason FROM events WHERE tenant_id = 'team'"
        " AND type IN ('token.revoked', 'policy.deleted') ORDER BY type",
    )
    assert [(row["type"], row["reason"]) for row in told] == [
        ("policy.deleted", "tenant deleted"),
        ("token.revoked", "tenant deleted"),
    ]


async def test_deleting_a_tenant_ends_what_it_has_and_lets_others_run_out(root, runtime):
    """Its pools are archived, offers to it withdrawn, its reservations ended; others run out."""
    acme = await root.tenant_of("acme")
    team = await acme.tenant_of("team")
    lent = await root.post("/pools", json_of(pool_of("H100", name="lent")))
    await root.post(
        f"/pools/{lent['id']}/nodes", json_of(inventory("n1", gpu("H100", 0), gpu("H100", 1))), 200
    )
    await root.put(f"/pools/{lent['id']}/offers/team", {"quota": {"gpu": 2}})
    site = await team.post("/sites", {"name": "own", "region": "fra1", "kind": "custom"})
    own = await team.post("/pools", {**json_of(pool_of("H100", name="own")), "site_id": site["id"]})
    theirs = await team.post("/reservations", json_of(ask(lent["id"], device("gpu"))))
    others = await root.post("/reservations", json_of(ask(lent["id"], device("gpu"))))
    assert (theirs["state"], others["state"]) == ("active", "active")

    deleted = await acme.delete("/tenants/team")

    assert deleted["archived_pools"] == [own["id"]]
    assert deleted["withdrawn_offers"] == [lent["id"]]
    assert deleted["ended_reservations"] == 1
    assert deleted["revoked_tokens"] == 1
    assert (await root.get(f"/reservations/{others['id']}"))["state"] == "active"
    [withdrawn] = await root.events("pool.unoffered", lent["id"])
    assert withdrawn["data"]["tenant_id"] == "team"
    states = await rows(
        runtime, "SELECT state, reason->>'code' AS code FROM reservations WHERE tenant_id = 'team'"
    )
    assert [row["state"] for row in states] == ["ended"]
    [archived] = await rows(
        runtime, "SELECT data FROM events WHERE type = 'pool.archived' AND subject = %s", own["id"]
    )
    assert archived["data"]["reason"] == "tenant deleted"
    live = await root.post("/reservations", json_of(ask(lent["id"], device("gpu"))))
    assert live["state"] == "active"  # on the GPU that was given back


async def test_only_an_owner_makes_renames_and_deletes_tenants(root):
    await root.tenant_of("acme")
    for role in ("operator", "member", "viewer", "node"):
        door = await root.token_of(role)
        for method, path, body in (
            ("POST", "/tenants", {"id": "new", "name": "New"}),
            ("PATCH", "/tenants/acme", {"name": "Mine"}),
            ("DELETE", "/tenants/acme", None),
        ):
            await door.refused(method, path, 403, "FORBIDDEN", body)
    assert await ids(root) == ["acme", "root"]
    assert (await root.get("/tenants/acme"))["name"] == "Acme"
