"""Every route with another tenant's token and ids: as if they had never existed, and no effect.

The walk is over the OpenAPI document, so a new route is in it by itself; one whose body can name an
object must say how in BODIES, or the test fails.
"""

import json

import httpx2
import pytest
from psycopg import sql

from apportion.authority.actions import ACTIONS
from apportion.authority.service import issue_token
from apportion.doors.rights import RIGHTS
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["operationId"] in RIGHTS
}

# A body for each operation that takes one; what stands in braces is an id of another tenant.


def series_in(pool_id):
    """Build a series of one window, far ahead."""
    hours = {"start": "09:00", "end": "17:00", "zone": "UTC"}
    recurrence = {"days": ["mon"], **hours, "from": "2036-12-01", "count": 1}
    return {"pool_id": pool_id, "devices": [{"class": "gpu"}], "recurrence": recurrence}


BODIES = {
    "create_tenant": {"id": "gamma", "name": "Gamma", "parent_id": "{tenant_id}"},
    "update_tenant": {"name": "Taken"},
    "create_token": {"name": "t", "role": "viewer"},
    "rotate_token": {},
    "create_policy": {"name": "p", "text": "forbid(principal, action, resource);"},
    "update_policy": {"version": 1, "text": "permit(principal, action, resource);"},
    "check_policy": {"action": "compute:pools:read", "token_id": "{token_id}"},
    "create_site": {"name": "s", "region": "r"},
    "update_site": {"region": "elsewhere"},
    "create_pool": {"name": "mine", "gpu_model": "H100", "site_id": "{site_id}"},
    "validate_pool": {"pool_id": "{pool_id}", "update": {"version": 1, "policy": {}}},
    "defragment_pool": {"free_gpus": True},
    "update_pool": {"version": 1, "policy": {"maxPending": "1h"}},
    "offer_pool": {"quota": {"gpu": 1}},
    "set_quota": {"pool_id": "{pool_id}", "resource": "gpu", "max": 0},
    "join_node": inventory("n9", gpu("H100", 0, node="n9")).model_dump(mode="json", by_alias=True),
    "report_inventory": inventory("n1", gpu("H100", 0)).model_dump(mode="json", by_alias=True),
    "report_node": {
        "sequence": 1,
        "observed_generation": 1,
        "inventory": inventory("n1", gpu("H100", 0)).model_dump(mode="json", by_alias=True),
    },
    "update_node": {"mig_layout_from": "node"},
    "create_join_token": {"name": "machine"},
    "set_layout": {"layout": "all-1g.10gb"},
    "plan_layout": {"layout": "all-1g.10gb"},
    "create_reservation": {
        "pool_id": "{pool_id}",
        "devices": [{"class": "gpu"}],
        "duration": "1h",
    },
    "create_reservations": {
        "reservations": [
            {"pool_id": "{pool_id}", "devices": [{"class": "gpu"}], "duration": "1h"},
        ]
    },
    "find_earliest": {"pool_id": "{pool_id}", "devices": [{"class": "gpu"}], "duration": "1h"},
    "find_free_windows": {"pool_id": "{pool_id}", "devices": [{"class": "gpu"}], "duration": "1h"},
    "create_series": series_in("{pool_id}"),
    "update_reservation": {"duration": "2h"},
    "create_webhook": {"name": "w", "url": "https://93.184.215.14/hook"},
    "update_webhook": {"version": 1, "enabled": False},
}
# What an id that never existed looks like.
NOBODYS = {
    "tenant_id": "nobody",
    "token_id": "tok_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "policy_id": "pol_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "site_id": "site_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "pool_id": "pool_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "join_token_id": "join_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "node_id": "node_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "reservation_id": "res_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "series_id": "ser_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "webhook_id": "whk_01kzzzzzzzzzzzzzzzzzzzzzzz",
    "delivery_id": "999999",
    "gpu_id": "GPU-nobody",
    "resource": "gpu",
}
OWNER_ONLY = (
    "update_pool",
    "archive_pool",
    "list_offers",
    "offer_pool",
    "unoffer_pool",
    "set_quota",
    "join_node",
    "report_inventory",
    "get_node",
    "get_spec",
    "list_layouts",
    "set_layout",
    "plan_layout",
    "cancel_layout",
    "report_node",
    "update_node",
    "revoke_node",
    "create_join_token",
)


@pytest.fixture
async def world(http, runtime, with_client):
    """Give what acme has, by the name of its parameter, and beta's token."""

    def build(client):
        client.create_tenant({"id": "acme", "name": "Acme"})
        client.create_tenant({"id": "beta", "name": "Beta"})
        shared = client.create_pool(pool_of("A100", "mig", name="shared"))
        for tenant in ("acme", "beta"):
            client.offer_pool(shared.id, tenant, {"quota": {"gpu.mig": 4}})
        node = client.join_node(shared.id, inventory("s1", gpu("A100", 0, "1g.5gb@0", node="s1")))
        return shared, node

    shared, node = await with_client(build)
    async with transaction(runtime.db) as connection:
        acme = await issue_token(runtime, connection, tenant_id="acme", name="acme")
        beta = await issue_token(runtime, connection, tenant_id="beta", name="beta")

    async def make(method, path, body):
        answer = await http.request(
            method, path, json=body, headers={"Authorization": f"Bearer {acme.token}"}
        )
        assert answer.is_success, answer.text
        return answer.json()

    site = await make("POST", "/v1/sites", {"name": "hall", "region": "north"})
    pool = await make(
        "POST", "/v1/pools", {"name": "own", "gpu_model": "H100", "site_id": site["id"]}
    )
    await make("POST", f"/v1/pools/{pool['id']}/nodes", BODIES["join_node"] | {"node": "n1"})
    reserved = await make(
        "POST", "/v1/reservations", ask(pool["id"], device()).model_dump(by_alias=True)
    )
    series = await make("POST", "/v1/series", series_in(pool["id"]))
    nodes = await make("GET", "/v1/nodes", None)
    joining = await make("POST", f"/v1/pools/{pool['id']}/join-tokens", {"name": "machine"})
    policy = await make(
        "POST",
        "/v1/policies",
        BODIES["create_policy"]
        | {"name": "q", "text": ('forbid(principal in Role::"node", action, resource);')},
    )
    webhook = await make("POST", "/v1/webhooks", BODIES["create_webhook"])
    theirs = {
        "tenant_id": "acme",
        "token_id": acme.id,
        "policy_id": policy["id"],
        "site_id": site["id"],
        "pool_id": pool["id"],
        "join_token_id": joining["record"]["id"],
        "node_id": nodes["items"][0]["id"],
        "reservation_id": reserved["id"],
        "series_id": series["id"],
        "webhook_id": webhook["webhook"]["id"],
        "delivery_id": "1",
        "gpu_id": "GPU-n9-0",
        "resource": "gpu",
    }
    return theirs, {"Authorization": f"Bearer {beta.token}"}, shared.id, node.id


def test_every_operation_with_a_body_is_walked_with_one():
    taking = {name for name, (_, _, each) in OPERATIONS.items() if "requestBody" in each}
    assert taking == set(BODIES)


async def ask_with(http, headers, operation_id, ids, query=()):
    """Ask an operation with some ids; return the answer with those ids taken out of it."""
    method, path, _ = OPERATIONS[operation_id]
    body = BODIES.get(operation_id)
    written = json.dumps(body)
    for name, value in ids.items():
        path = path.replace(f"{{{name}}}", value)
        written = written.replace(f"{{{name}}}", value)
    answer = await http.request(
        method,
        path,
        params=query,
        content=None if body is None else written,
        headers={**headers, "Content-Type": "application/json"},
    )
    text = answer.text
    for value in sorted(ids.values(), key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "ID")
    return answer.status_code, json.loads(text, object_hook=without_request_id)


def without_request_id(document):
    return {key: value for key, value in document.items() if key != "request_id"}


async def everything(runtime):
    """Return every row of every table, but for when tokens were used."""
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            "SELECT relname FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        found = {}
        for row in await cursor.fetchall():
            rows = await connection.execute(
                sql.SQL("SELECT to_jsonb(t) - 'last_used_at' AS row FROM {} AS t").format(
                    sql.Identifier(row["relname"])
                )
            )
            found[row["relname"]] = sorted(
                json.dumps(each["row"], sort_keys=True) for each in await rows.fetchall()
            )
        return found


def names_an_object(operation_id):
    _, path, _ = OPERATIONS[operation_id]
    return "{" in path + json.dumps(BODIES.get(operation_id, "")).replace('{"', "").replace(
        "{}", ""
    )


def tells_of_nothing(status, told):
    """Tell whether an answer says that there is no such object, in the way of its operation."""
    if status == httpx2.codes.NOT_FOUND:
        return told["code"] == "NOT_FOUND"
    if "removed" in told:
        return told["removed"] is False
    if "problems" in told:
        return [each["code"] for each in told["problems"]] == ["NOT_FOUND"]
    return [each["error"]["code"] for each in told["items"]] == ["NOT_FOUND"]


async def test_another_tenants_object_is_one_that_never_existed(http, runtime, world):
    theirs, beta, _, _ = world
    walked = [name for name in OPERATIONS if names_an_object(name)]
    assert len(walked) > 30
    await ask_with(http, beta, "get_caller", {})
    before = await everything(runtime)
    different = []
    for name in walked:
        there = await ask_with(http, beta, name, theirs)
        nowhere = await ask_with(http, beta, name, NOBODYS)
        if there != nowhere or not tells_of_nothing(*there):
            different.append((name, there, nowhere))
    assert different == []
    assert await everything(runtime) == before


async def test_acting_for_another_tenant_is_acting_for_one_that_never_existed(http, runtime, world):
    theirs, beta, _, _ = world
    await ask_with(http, beta, "get_caller", {})
    before = await everything(runtime)
    different = []
    for name in OPERATIONS:
        there = await ask_with(http, beta | {"Apportion-Tenant": "acme"}, name, theirs)
        nowhere = await ask_with(http, beta | {"Apportion-Tenant": "nobody"}, name, NOBODYS)
        if there != nowhere or there[0] != 404:
            different.append((name, there, nowhere))
    assert different == []
    assert await everything(runtime) == before


async def test_filters_find_nothing_of_another_tenant(http, runtime, world):
    theirs, beta, _, _ = world
    values = theirs | {"subject": theirs["pool_id"], "actor": theirs["token_id"]}
    nobodys = NOBODYS | {"subject": NOBODYS["pool_id"], "actor": NOBODYS["token_id"]}
    await ask_with(http, beta, "get_caller", {})
    before = await everything(runtime)
    different = []
    walked = 0
    for name, (method, path, operation) in OPERATIONS.items():
        for parameter in operation.get("parameters", ()):
            field = parameter["name"]
            if method != "GET" or parameter["in"] != "query" or field not in values or "{" in path:
                continue
            if name == "stream_events":
                continue  # its filter is the list's; it never ends by itself
            walked += 1
            own = {field: values[field]}
            there = await ask_with(http, beta, name, own, [(field, values[field])])
            nobody = {field: nobodys[field]}
            nowhere = await ask_with(http, beta, name, nobody, [(field, nobodys[field])])
            if there != nowhere:
                different.append((name, field, there, nowhere))
    assert walked > 8
    assert different == []
    assert await everything(runtime) == before


async def test_the_owners_operations_on_an_offered_pool_are_not_found(http, runtime, world):
    _, beta, shared, node = world
    ids = NOBODYS | {"pool_id": shared, "node_id": node, "tenant_id": "beta"}
    await ask_with(http, beta, "get_caller", {})
    before = await everything(runtime)
    different = []
    for name in OWNER_ONLY:
        there = await ask_with(http, beta, name, ids)
        nowhere = await ask_with(http, beta, name, NOBODYS | {"tenant_id": "beta"})
        if there != nowhere or there[0] != 404:
            different.append((name, there, nowhere))
    assert different == []
    assert await everything(runtime) == before


async def test_without_a_token_every_operation_is_unauthenticated(http, runtime, world):
    theirs, *_ = world
    before = await everything(runtime)
    for name in OPERATIONS:
        for header in ("", "Bearer ", "Bearer apt_wrong", "Basic cm9vdDpyb290"):
            status, told = await ask_with(http, {"Authorization": header}, name, theirs)
            assert (name, status, told["code"]) == (name, 401, "UNAUTHENTICATED")
    assert await everything(runtime) == before


async def test_a_policy_that_forbids_an_action_forbids_each_of_its_operations(http, runtime, world):
    """Nobody forgot to ask the policies: with one more of them each operation is refused."""
    theirs, _, _, _ = world
    async with transaction(runtime.db) as connection:
        acme = await issue_token(runtime, connection, tenant_id="acme", name="again")
    headers = {"Authorization": f"Bearer {acme.token}"}
    allowed = []
    for action in ACTIONS:
        async with transaction(runtime.db) as connection:
            await connection.execute("DELETE FROM access_policies")
            await connection.execute(
                "INSERT INTO access_policies (id, tenant_id, name, description, text, created_at,"
                " updated_at) VALUES ('pol_x', 'root', 'stop', '', %s, now(), now())",
                [f'forbid(principal, action == Action::"{action}", resource);'],
            )
        before = await everything(runtime)
        for name in [name for name, right in RIGHTS.items() if right == action]:
            status, told = await ask_with(http, headers, name, theirs)
            if name == "create_reservations":
                status, told = 403, told["items"][0]["error"]
            if (status, told.get("code")) != (403, "FORBIDDEN") or "pol_x" not in told[
                "details"
            ].get("policies", ()):
                allowed.append((name, status, told))
        assert await everything(runtime) == before
    assert allowed == []


def test_every_operation_needs_a_right_that_a_policy_can_name():
    assert {*RIGHTS.values()} <= {*ACTIONS}


async def test_what_is_not_routed_is_not_found_and_needs_no_token(http):
    answer = await http.get("/v1/nothing", headers={"Authorization": ""})
    assert answer.status_code == httpx2.codes.NOT_FOUND


async def test_a_method_that_a_path_lacks_is_refused_with_those_that_it_has(http):
    for path, methods in DOCUMENT["paths"].items():
        for name, value in NOBODYS.items():
            path = path.replace(f"{{{name}}}", value)  # noqa: PLW2901 - filled in bit by bit
        answer = await http.request("TRACE", path)
        assert answer.status_code == httpx2.codes.METHOD_NOT_ALLOWED
        assert {each.lower() for each in answer.headers["Allow"].split(", ")} == {*methods}
