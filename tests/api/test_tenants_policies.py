"""Access policies: added to a tenant, holding for all below it from the next request on."""

import anyio
import pytest
from tenants_asking import As

from apportion.authority.actions import ACTIONS
from apportion.testing.builders import pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

CREATE = "compute:reservations:create"
POOL = {
    "gpuModel": "H100",
    "class": "metal-host",
    "sharing": "exclusive",
    "region": "local",
    "owned": True,
}
CAP = f'forbid(principal, action == Action::"{CREATE}", resource) when {{ context.gpuCount > 8 }};'


@pytest.fixture
def root(http, token):
    return As(http, token)


def forbid(action):
    return f'forbid(principal, action == Action::"{action}", resource);'


async def add(door, name, text, **more):
    return await door.post("/policies", {"name": name, "text": text, **more})


async def check(door, action, **more):
    return await door.post("/policies/check", {"action": action, **more}, 200)


async def test_a_policy_is_kept_as_it_was_written(root):
    made = await add(root, "cap", CAP, description="Eight whole GPUs at most")
    assert (made["tenant_id"], made["name"], made["text"]) == ("root", "cap", CAP)
    assert (made["effect"], made["version"]) == ("forbid", 1)
    assert made["description"] == "Eight whole GPUs at most"
    assert await root.get(f"/policies/{made['id']}") == made
    assert (await root.get("/policies"))["items"] == [made]


async def test_policies_are_listed_in_pages(root):
    for name in ("a", "b", "c"):
        await add(root, name, CAP)
    page = await root.get("/policies", limit=2)
    rest = await root.get("/policies", limit=2, cursor=page["next_cursor"])
    names = [each["name"] for each in (*page["items"], *rest["items"])]
    assert (sorted(names), rest["next_cursor"]) == (["a", "b", "c"], None)


async def test_a_policy_decides_from_the_next_request_on_added_changed_and_removed(root):
    door = await root.token_of("viewer")
    await door.get("/pools")
    policy = await add(root, "closed", forbid("compute:pools:read"))
    told = await door.refused("GET", "/pools", 403, "FORBIDDEN")
    assert "forbidden by closed" in told["detail"]
    assert told["details"]["policies"] == [policy["id"]]
    path = f"/policies/{policy['id']}"
    await root.put(path, {"version": 1, "text": forbid("compute:nodes:read")})
    await door.get("/pools")
    await door.refused("GET", "/nodes", 403, "FORBIDDEN")
    assert await root.delete(path) == {"removed": True}
    await door.get("/nodes")


async def test_a_permit_adds_to_a_role(root):
    door = await root.token_of("viewer")
    await door.refused("GET", "/audit", 403, "FORBIDDEN")
    text = 'permit(principal in Role::"viewer", action == Action::"compute:audit:read", resource);'
    await add(root, "auditors", text)
    await door.get("/audit")
    await (await root.token_of("member")).refused("GET", "/audit", 403, "FORBIDDEN")


async def test_a_permit_on_a_pool_lets_through_to_where_the_pool_is_known(root):
    door = await root.token_of("viewer")
    pool = pool_of("H100").model_dump(mode="json", by_alias=True)
    text = (
        'permit(principal in Role::"viewer", action == Action::"compute:pools:create", resource) '
        'when { context.gpuModel == "%s" };'
    )
    policy = await add(root, "makers", text % "A100")
    told = await door.refused("POST", "/pools", 403, "FORBIDDEN", pool)
    assert told["details"] == {"right": "compute:pools:create", "policies": []}
    await root.put(f"/policies/{policy['id']}", {"version": 1, "text": text % "H100"})
    await door.post("/pools", pool)


@pytest.mark.parametrize(
    ("action", "method", "path", "body"),
    [
        ("compute:caller:read", "GET", "/caller", None),
        ("compute:tenants:read", "GET", "/tenants", None),
        ("compute:tenants:read", "GET", "/tenants/acme", None),
        ("compute:tenants:create", "POST", "/tenants", {"id": "new", "name": "New"}),
        ("compute:tenants:manage", "PATCH", "/tenants/acme", {"name": "Mine"}),
        ("compute:tenants:delete", "DELETE", "/tenants/acme", None),
        ("compute:tokens:create", "POST", "/tokens", {"name": "t", "role": "viewer"}),
        ("compute:tokens:read", "GET", "/tokens", None),
        ("compute:tokens:read", "GET", "/tokens/{token}", None),
        ("compute:tokens:manage", "POST", "/tokens/{token}/rotate", None),
        ("compute:tokens:manage", "DELETE", "/tokens/{token}", None),
        ("compute:policies:manage", "POST", "/policies", {"name": "p", "text": CAP}),
        ("compute:policies:read", "GET", "/policies", None),
        ("compute:policies:read", "GET", "/policies/{policy}", None),
        ("compute:policies:manage", "PUT", "/policies/{policy}", {"version": 1, "text": CAP}),
        ("compute:policies:manage", "DELETE", "/policies/{policy}", None),
        ("compute:policies:check", "POST", "/policies/check", {"action": "compute:pools:read"}),
        ("compute:policies:read", "GET", "/roles", None),
    ],
)
async def test_a_forbid_of_root_stops_even_an_owner_and_leaves_no_trace(
    root, action, method, path, body
):
    await root.tenant_of("acme")
    other = await root.token_of("viewer")
    policy = await add(root, "cap", CAP)
    owner = await root.token_of("owner")
    own = (await root.get("/caller"))["token_id"]
    text = forbid(action).replace(";", f' unless {{ principal == Token::"{own}" }};')
    await add(root, "closed", text)
    path = path.format(token=other.token_id, policy=policy["id"])
    before = len((await root.get("/events", limit=1000))["items"])
    told = await owner.refused(method, path, 403, "FORBIDDEN", body)
    assert told["details"]["right"] == action
    assert "forbidden by closed" in told["detail"]
    assert len((await root.get("/events", limit=1000))["items"]) == before
    status = {"POST": 201 if path in {"/tenants", "/tokens", "/policies"} else 200}.get(method, 200)
    assert (await root.ask(method, path, body)).status_code == status


async def test_a_policy_of_a_tenant_holds_for_all_below_it_and_nowhere_else(root):
    acme = await root.tenant_of("acme")
    team = await acme.tenant_of("team")
    globex = await root.tenant_of("globex")
    await add(acme, "closed", forbid("compute:pools:read"))
    for door in (acme, team, root.for_tenant("acme"), root.for_tenant("team")):
        await door.refused("GET", "/pools", 403, "FORBIDDEN")
    for door in (root, globex):
        await door.get("/pools")
    # What is permitted below does not open what is forbidden above.
    await add(team, "open", 'permit(principal, action == Action::"compute:pools:read", resource);')
    await team.refused("GET", "/pools", 403, "FORBIDDEN")


async def test_another_tenant_s_policy_does_not_exist(root):
    acme, globex = await root.tenant_of("acme"), await root.tenant_of("globex")
    policy = await add(globex, "closed", forbid("compute:pools:read"))
    for policy_id in (policy["id"], "pol_never"):
        update = {"version": 1, "text": CAP}
        for method, body in (("GET", None), ("PUT", update)):
            path = f"/policies/{policy_id}"
            told = await acme.refused(method, path, 404, "NOT_FOUND", body)
            assert (told["detail"], told["given"]) == ("policy_id: no such policy", policy_id)
        assert await acme.delete(f"/policies/{policy_id}") == {"removed": False}
    assert (await globex.get("/policies"))["items"] == [policy]
    assert (await acme.get("/policies"))["items"] == []


async def test_two_operators_cannot_overwrite_each_other_unseen(root):
    policy = await add(root, "cap", CAP, description="first")
    path = f"/policies/{policy['id']}"
    changed = await root.put(path, {"version": 1, "description": "second"})
    assert (changed["version"], changed["text"], changed["description"]) == (2, CAP, "second")
    late = {"version": 1, "text": forbid(CREATE)}
    told = await root.refused("PUT", path, 409, "CONFLICT", late)
    assert (told["field"], told["details"]) == ("version", {"given": 1, "current": 2})
    assert await root.get(path) == changed
    told = await root.refused("PUT", path, 400, "INVALID_INPUT", {"version": 2})
    assert told["field"] == "text"


async def test_a_name_is_taken_once_in_a_tenant(root):
    await add(root, "cap", CAP)
    told = await root.refused("POST", "/policies", 409, "CONFLICT", {"name": "cap", "text": CAP})
    assert told["field"] == "name"
    acme = await root.tenant_of("acme")
    await add(acme, "cap", CAP)


async def test_a_retry_with_the_same_key_returns_the_same_policy(root):
    body = {"name": "cap", "text": CAP, "idempotency_key": "k"}
    first = await root.post("/policies", body)
    assert await root.post("/policies", body) == first
    for other in ({"text": forbid(CREATE)}, {"name": "cap2"}):
        told = await root.refused("POST", "/policies", 409, "CONFLICT", {**body, **other})
        assert told["field"] == "idempotency_key"
    assert len(await root.events("policy.created")) == 1


async def test_what_is_not_one_valid_policy_changes_nothing(root):
    policy = await add(root, "cap", CAP)
    for text in ("permit(principal, action, resource)", CAP + CAP, CAP.replace("gpuCount", "gpus")):
        tries = (
            ("POST", "/policies", {"name": "new", "text": text}),
            ("PUT", f"/policies/{policy['id']}", {"version": 1, "text": text}),
        )
        for method, path, body in tries:
            told = await root.refused(method, path, 400, "INVALID_INPUT", body)
            assert told["field"] == "text"
    long = {"name": "long", "text": "//" + "x" * 10_000 + "\n" + CAP}
    assert (await root.refused("POST", "/policies", 400, "INVALID_INPUT", long))["field"] == "text"
    escape = {"name": "escape", "text": CAP + "// \x1b[2J"}
    assert (await root.refused("POST", "/policies", 400, "INVALID_INPUT", escape))[
        "field"
    ] == "text"
    assert (await root.get("/policies"))["items"] == [policy]


async def test_a_tenant_has_a_hundred_policies_at_most_whoever_adds_them_at_once(root):
    for number in range(96):
        await add(root, f"p{number}", CAP)
    statuses = []

    async def more(number):
        body = {"name": f"q{number}", "text": CAP}
        statuses.append((await root.ask("POST", "/policies", body)).status_code)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(more, number)
    assert sorted(statuses) == [201] * 4 + [409] * 4
    told = await root.refused("POST", "/policies", 409, "INVALID_STATE", {"name": "x", "text": CAP})
    assert (told["detail"], told["allowed"]) == ("the tenant has 100 other policies", "up to 100")
    assert len((await root.get("/policies", limit=1000))["items"]) == 100


async def test_changes_of_policies_are_told_and_audited(root):
    policy = await add(root, "cap", CAP)
    await root.put(f"/policies/{policy['id']}", {"version": 1, "text": forbid(CREATE)})
    await root.delete(f"/policies/{policy['id']}")
    await root.delete(f"/policies/{policy['id']}")
    [created] = await root.audited("policy.created")
    [updated] = await root.audited("policy.updated")
    [deleted] = await root.audited("policy.deleted")
    assert (created["before"], created["after"]) == (None, policy)
    assert updated["before"] == policy
    assert (updated["after"]["text"], updated["after"]["version"]) == (forbid(CREATE), 2)
    assert (deleted["before"], deleted["after"]) == (updated["after"], None)


async def test_a_check_says_which_policy_decides(root):
    policy = await add(root, "cap", CAP)
    inside = await check(root, CREATE, pool=POOL, ask={"gpuCount": 8})
    assert (inside["allowed"], inside["scope"], inside["role"]) == (True, True, "owner")
    assert inside["message"] == f"{CREATE} is allowed by the role owner"
    [reason] = inside["policies"]
    assert (reason["builtin"], reason["effect"], reason["tenant_id"]) == (True, "permit", None)
    outside = await check(root, CREATE, pool=POOL, ask={"gpuCount": 9})
    assert not outside["allowed"]
    assert outside["message"] == (
        f"{CREATE} is forbidden by the policy cap of root ({policy['id']})"
    )
    [reason] = outside["policies"]
    assert (reason["id"], reason["name"], reason["tenant_id"]) == (policy["id"], "cap", "root")
    assert (reason["builtin"], reason["effect"], reason["text"]) == (False, "forbid", CAP)
    nothing = await check(root, "compute:pools:create", role="viewer", pool=POOL)
    assert (nothing["allowed"], nothing["policies"]) == (False, [])
    assert nothing["message"].startswith("nothing permits compute:pools:create: the role viewer")


async def test_a_check_explains_the_own_token_another_one_and_a_bare_role(root):
    door = await root.token_of("operator", actions=["compute:policies:*", "compute:pools:read"])
    own = await check(door, "compute:audit:read")
    assert (own["allowed"], own["scope"], own["role"]) == (False, False, "operator")
    assert "does not cover compute:audit:read" in own["message"]
    assert (await check(door, "compute:pools:read"))["allowed"]
    by_id = await check(root, "compute:audit:read", token_id=door.token_id)
    assert {**by_id} == {**own}
    assert (await check(root, "compute:audit:read", role="operator"))["allowed"]
    for role in ("member", "viewer", "node"):
        assert not (await check(root, "compute:audit:read", role=role))["allowed"]
    body = {"action": "compute:pools:read", "token_id": door.token_id, "role": "viewer"}
    told = await root.refused("POST", "/policies/check", 400, "INVALID_INPUT", body)
    assert told["field"] == "role"
    await root.delete(f"/tokens/{door.token_id}")
    dead = await check(root, "compute:pools:read", token_id=door.token_id)
    assert (dead["allowed"], dead["message"]) == (False, "the token is revoked: it can do nothing")


async def test_a_check_is_how_the_door_decides(root):
    """For every action on the tenant alone, with a token of each role."""
    await add(root, "closed", forbid("compute:tenants:read"))
    paths = {
        "compute:caller:read": "/caller",
        "compute:tenants:read": "/tenants",
        "compute:tokens:read": "/tokens",
        "compute:policies:read": "/policies",
        "compute:pools:read": "/pools",
        "compute:audit:read": "/audit",
        "compute:events:read": "/events",
    }
    for role in ("owner", "operator", "member", "viewer", "node"):
        door = await root.token_of(role)
        for action, path in paths.items():
            told = await check(root, action, token_id=door.token_id)
            got = (await door.ask("GET", path)).status_code
            assert told["allowed"] == (got == 200), (role, action)


async def test_a_check_takes_the_attributes_that_the_action_has(root):
    async def refused(field, **body):
        told = await root.refused("POST", "/policies/check", 400, "INVALID_INPUT", body)
        assert told["field"] == field
        return told

    told = await refused("action", action="compute:pool:create")
    assert told["allowed"] == ", ".join(ACTIONS)
    assert "compute:pools:create" in told["hint"]
    await refused("pool", action="compute:pools:create")
    await refused("pool", action="compute:pools:read", pool=POOL)
    for name in POOL:
        rest = {key: value for key, value in POOL.items() if key != name}
        await refused(f"pool.{name}", action=CREATE, pool=rest)
    await refused("pool.owned", action=CREATE, pool={**POOL, "owned": "yes"})
    await refused("pool.model", action=CREATE, pool={**POOL, "model": "H100"})
    await refused("ask", action="compute:pools:share", pool=POOL, ask={"gpuCount": 1})
    await refused("ask.gpuCount", action=CREATE, pool=POOL, ask={"gpuCount": -1})
    assert (await check(root, "compute:pools:share", pool=POOL))["allowed"]


async def test_a_check_can_name_a_pool(root):
    await add(root, "one", 'forbid(principal, action, resource == Pool::"pool_1");')
    for pool_id, allowed in (("pool_1", False), ("pool_2", True), (None, True)):
        told = await check(root, "compute:pools:share", pool={**POOL, "id": pool_id})
        assert told["allowed"] == allowed


async def test_a_check_of_another_tenant_s_token_is_not_found(root):
    acme, globex = await root.tenant_of("acme"), await root.tenant_of("globex")
    for token_id in (globex.token_id, "tok_never"):
        body = {"action": "compute:pools:read", "token_id": token_id}
        told = await acme.refused("POST", "/policies/check", 404, "NOT_FOUND", body)
        assert (told["detail"], told["given"]) == ("token_id: no such token", token_id)


async def test_the_text_of_a_policy_from_above_is_not_shown_to_those_below(root):
    """It decides and is named; what it says may be about others."""
    acme = await root.tenant_of("acme")
    text = 'forbid(principal, action == Action::"compute:nodes:read", resource == Tenant::"acme");'
    policy = await add(root, "secret", text)
    below = await check(acme, "compute:nodes:read")
    above = await check(root.for_tenant("acme"), "compute:nodes:read")
    assert below["message"] == above["message"]
    assert [each["text"] for each in below["policies"]] == [""]
    assert [each["text"] for each in above["policies"]] == [text]
    await acme.refused("GET", f"/policies/{policy['id']}", 404, "NOT_FOUND")
    own = await add(acme, "own", forbid("compute:nodes:read"))
    texts = {
        each["id"]: each["text"] for each in (await check(acme, "compute:nodes:read"))["policies"]
    }
    assert texts == {policy["id"]: "", own["id"]: own["text"]}


async def test_a_policy_that_cannot_be_evaluated_is_told_and_forbids(root):
    grows = CAP.replace("context.gpuCount > 8", "context.gpuCount * 9223372036854775807 > 8")
    await add(root, "grows", grows)
    told = await check(root, CREATE, pool=POOL, ask={"gpuCount": 2})
    assert not told["allowed"]
    assert "`grows`" in told["errors"][0]
    assert [each["name"] for each in told["policies"]] == ["grows"]


async def test_roles_are_listed_with_what_they_grant(root):
    items = (await root.get("/roles"))["items"]
    assert [each["role"] for each in items] == ["member", "node", "operator", "owner", "viewer"]
    roles = {each["role"]: each for each in items}
    assert roles["owner"]["actions"] == sorted(ACTIONS)
    assert roles["node"]["actions"] == [
        "compute:caller:read",
        "compute:nodes:join",
        "compute:nodes:report",
    ]
    assert 'permit(principal in Role::"viewer"' in roles["viewer"]["text"]
    page = await root.get("/roles", limit=4)
    rest = await root.get("/roles", limit=4, cursor=page["next_cursor"])
    assert [each["role"] for each in rest["items"]] == ["viewer"]
