"""Webhooks over HTTP: who may, what is shown once, and what is refused in which words."""

from ipaddress import ip_network

import pytest

from apportion.authority.service import SYSTEM, Caller, issue_token
from apportion.errors import NotFoundError
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.tenants import service as tenants
from apportion.webhooks.schemas import WebhookCreate
from apportion.webhooks.service import create_webhook

pytestmark = pytest.mark.anyio

HOOK = {"name": "hook", "url": "https://example.com/hook?key=hidden", "types": ["pool."]}


async def make(http, status=201, **fields):
    answer = await http.post("/v1/webhooks", json={**HOOK, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


async def told(runtime, prefix):
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            "SELECT type, subject, data, before, after FROM events"
            " WHERE starts_with(type, %s) ORDER BY id",
            [prefix],
        )
        return await cursor.fetchall()


@pytest.fixture
async def token_of(runtime):
    """Give a token of a tenant below root, by its role."""
    async with transaction(runtime.db) as connection:
        await connection.execute(
            "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
            " VALUES ('acme', 'root', '{root,acme}', 'Acme', now())"
        )

    async def make_token(role="owner", tenant_id="acme"):
        async with transaction(runtime.db) as connection:
            issued = await issue_token(
                runtime, connection, tenant_id=tenant_id, name=role, role=role
            )
        return {"Authorization": f"Bearer {issued.token}"}

    return make_token


async def test_a_webhook_is_shown_with_its_secret_once(http):
    made = await make(http)
    webhook = made["webhook"]
    assert made["secret"].startswith("whsec_")
    assert webhook["id"].startswith("whk_")
    assert {key: webhook[key] for key in HOOK} == HOOK
    assert (webhook["enabled"], webhook["version"]) == (True, 1)
    assert (webhook["pending"], webhook["dead"]) == (0, 0)
    shown = await http.get(f"/v1/webhooks/{webhook['id']}")
    listed = await http.get("/v1/webhooks")
    assert shown.json() == webhook
    assert listed.json()["items"] == [webhook]
    assert "whsec_" not in shown.text + listed.text


async def test_a_retry_returns_the_same_webhook_and_the_same_secret(http):
    made = await make(http, idempotency_key="k")
    again = await http.post("/v1/webhooks", json=HOOK, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (201, made)
    refused = await make(http, 409, idempotency_key="k", url="https://example.org/")
    assert (refused["code"], refused["field"]) == ("CONFLICT", "idempotency_key")
    assert len((await http.get("/v1/webhooks")).json()["items"]) == 1
    await http.post(f"/v1/webhooks/{made['webhook']['id']}/rotate")
    late = await make(http, 409, idempotency_key="k")
    assert "whsec_" not in str(late)


async def test_a_name_is_taken_once_for_each_tenant(http, token_of):
    await make(http)
    refused = await make(http, 409)
    assert (refused["code"], refused["field"]) == ("CONFLICT", "name")
    other = await http.post("/v1/webhooks", json=HOOK, headers=await token_of())
    assert other.status_code == 201


async def test_a_tenant_has_twenty_at_most(http):
    for number in range(20):
        await make(http, name=f"hook{number}", idempotency_key=f"k{number}")
    refused = await make(http, 409, name="more")
    assert refused["code"] == "INVALID_STATE"
    await make(http, name="hook19", idempotency_key="k19")  # a retry is not one more


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://10.0.0.1/", "must not reach"),
        ("https://[::ffff:127.0.0.1]/", "must not reach"),
        ("https://example.com/#x", "never sent"),
        ("ftp://example.com/", None),
        ("https://user@example.com/", None),
    ],
)
async def test_a_url_that_can_never_be_sent_to_is_refused(http, url, words):
    refused = await make(http, 400, url=url)
    assert (refused["code"], refused["field"]) == ("INVALID_INPUT", "url")
    assert words is None or words in refused["detail"]
    made = await make(http)
    patched = await http.patch(
        f"/v1/webhooks/{made['webhook']['id']}", json={"version": 1, "url": url}
    )
    assert (patched.status_code, patched.json()["field"]) == (400, "url")


async def test_a_setting_lets_webhooks_into_a_network(runtime, reservations, http, app):
    allowing = create_app(
        runtime, reservations, ready=lambda: True, webhook_networks=[ip_network("10.0.0.0/8")]
    )
    app.state.webhook_networks = allowing.state.webhook_networks
    await make(http, url="https://10.0.0.1/")


async def test_an_update_needs_the_version_that_was_read(http):
    made = await make(http)
    path = f"/v1/webhooks/{made['webhook']['id']}"
    changed = await http.patch(path, json={"version": 1, "types": [], "enabled": False})
    assert changed.status_code == 200
    assert (changed.json()["types"], changed.json()["enabled"]) == ([], False)
    assert changed.json()["version"] == 2
    refused = (await http.patch(path, json={"version": 1, "enabled": True})).json()
    assert (refused["code"], refused["field"]) == ("CONFLICT", "version")
    assert refused["details"] == {"there": 2, "asked": 1}
    same = await http.patch(path, json={"version": 2, "enabled": False})
    assert same.json()["version"] == 2  # nothing changed, so it is no other version


async def test_every_change_is_told_and_audited_without_url_or_secret_in_the_event(http, runtime):
    made = await make(http)
    path = f"/v1/webhooks/{made['webhook']['id']}"
    await http.patch(path, json={"version": 1, "enabled": False})
    rotated = (await http.post(f"{path}/rotate")).json()
    assert (rotated["webhook"]["version"], rotated["webhook"]["id"]) == (3, made["webhook"]["id"])
    assert rotated["secret"] != made["secret"]
    assert (await http.delete(path)).json() == {"removed": True}
    events = await told(runtime, "webhook.")
    assert [each["type"] for each in events] == [
        "webhook.created",
        "webhook.updated",
        "webhook.updated",
        "webhook.deleted",
    ]
    created, disabled, renewed, deleted = events
    assert (created["before"], created["after"]["url"]) == (None, HOOK["url"])
    assert disabled["data"] == {"name": "hook", "changed": ["enabled"]}
    assert (disabled["before"]["enabled"], disabled["after"]["enabled"]) == (True, False)
    assert renewed["data"] == {"name": "hook", "changed": ["secret_version"]}
    assert (deleted["before"]["enabled"], deleted["after"]) == (False, None)
    assert "hidden" not in str([each["data"] for each in events])
    assert "whsec_" not in str(events)


async def test_what_is_deleted_is_gone(http):
    made = await make(http)
    path = f"/v1/webhooks/{made['webhook']['id']}"
    await http.delete(path)
    for answer in (
        await http.get(path),
        await http.delete(path),
        await http.post(f"{path}/rotate"),
        await http.get(f"{path}/deliveries"),
        await http.post(f"{path}/deliveries/1/resend"),
        await http.patch(path, json={"version": 1}),
    ):
        assert answer.status_code == 404
        assert (answer.json()["code"], answer.json()["field"]) == ("NOT_FOUND", "webhook_id")


async def test_another_tenants_webhook_is_one_that_never_existed(http, token_of):
    made = await make(http)
    beta = await token_of()
    answers = []
    for webhook_id in (made["webhook"]["id"], "whk_01kzzzzzzzzzzzzzzzzzzzzzzz"):
        answer = await http.get(f"/v1/webhooks/{webhook_id}", headers=beta)
        told = answer.json()
        told.pop("request_id")
        answers.append((answer.status_code, str(told).replace(webhook_id, "ID")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.parametrize(
    ("role", "status"), [("owner", 201), ("operator", 201), ("member", 403), ("viewer", 403)]
)
async def test_operators_manage_webhooks(http, token_of, role, status):
    answer = await http.post("/v1/webhooks", json=HOOK, headers=await token_of(role))
    assert answer.status_code == status


@pytest.mark.parametrize("number", ["0", "1", "x", "-1", "1.0", "٣", "9" * 18, "9" * 30])
async def test_a_delivery_that_does_not_exist_is_not_found(http, number):
    made = await make(http)
    path = f"/v1/webhooks/{made['webhook']['id']}/deliveries/{number}/resend"
    answer = await http.post(path)
    assert (answer.status_code, answer.json()["field"]) == (404, "delivery_id")


async def test_deliveries_are_listed_in_pages_and_a_dead_one_is_sent_again(http, runtime, clock):
    made = await make(http)
    webhook_id = made["webhook"]["id"]
    async with transaction(runtime.db) as connection:
        for number in range(5):
            await connection.execute(
                "WITH told AS (INSERT INTO events (tenant_id, type, subject, actor, data,"
                " occurred_at) VALUES ('root', 'pool.updated', 'p', 'tok', '{}', now())"
                " RETURNING id) INSERT INTO deliveries (tenant_id, webhook_id, event_id, state,"
                " attempts, next_at, last_status, last_error, created_at, updated_at)"
                " SELECT 'root', %s, id, %s, 11, %s, 500, 'answered 500', now(), now() FROM told",
                [webhook_id, "dead" if number % 2 else "pending", clock()],
            )
    path = f"/v1/webhooks/{webhook_id}"
    shown = (await http.get(path)).json()
    assert (shown["pending"], shown["dead"]) == (3, 2)
    found, cursor = [], None
    while cursor is not None or not found:
        page = (
            await http.get(
                f"{path}/deliveries", params={"limit": 2} | ({"cursor": cursor} if cursor else {})
            )
        ).json()
        found += page["items"]
        cursor = page["next_cursor"]
    assert [each["state"] for each in found] == ["pending", "dead"] * 2 + ["pending"]
    dead = (await http.get(f"{path}/deliveries", params={"state": "dead"})).json()["items"]
    assert [each["id"] for each in dead] == [found[1]["id"], found[3]["id"]]
    assert dead[0]["event"]["type"] == "pool.updated"
    assert dead[0]["event"]["specversion"] == "1.0"
    again = await http.post(f"{path}/deliveries/{dead[0]['id']}/resend")
    assert (again.json()["state"], again.json()["attempts"]) == ("pending", 0)
    refused = await http.post(f"{path}/deliveries/{dead[0]['id']}/resend")
    assert (refused.status_code, refused.json()["code"]) == (409, "INVALID_STATE")
    [resent] = await told(runtime, "webhook.resent")
    assert (resent["before"]["state"], resent["after"]["state"]) == ("dead", "pending")


async def test_a_deleted_tenants_webhooks_are_silent(http, runtime, token_of, clock):
    made = (await http.post("/v1/webhooks", json=HOOK, headers=await token_of())).json()
    roots = await make(http)
    async with transaction(runtime.db) as connection:
        for webhook, tenant in ((made["webhook"], "acme"), (roots["webhook"], "root")):
            for state in ("pending", "dead"):
                await connection.execute(
                    "WITH told AS (INSERT INTO events (tenant_id, type, subject, actor, data,"
                    " occurred_at) VALUES ('root', 'pool.updated', 'p', 'tok', '{}', now())"
                    " RETURNING id) INSERT INTO deliveries (tenant_id, webhook_id, event_id,"
                    " state, next_at, last_error, created_at, updated_at)"
                    " SELECT %s, %s, id, %s, now(), 'x', now(), now() FROM told",
                    [tenant, webhook["id"], state],
                )
        for _, teardown in tenants._teardowns:
            if teardown.__module__ == "apportion.webhooks.service":
                await teardown(connection, SYSTEM, "acme", clock())
        cursor = await connection.execute(
            "SELECT webhooks.tenant_id, enabled, array_agg(state ORDER BY state) AS states"
            " FROM webhooks JOIN deliveries ON webhook_id = webhooks.id"
            " GROUP BY webhooks.id ORDER BY webhooks.tenant_id"
        )
        left = [tuple(row.values()) for row in await cursor.fetchall()]
    assert left == [("acme", False, ["dead"]), ("root", True, ["dead", "pending"])]
    assert [each["after"]["enabled"] for each in await told(runtime, "webhook.updated")] == [False]


async def test_a_webhook_is_not_made_for_a_tenant_that_is_deleted(http, runtime, token_of):
    headers = await token_of()
    async with runtime.db.connection() as connection, connection.transaction():
        await connection.execute("UPDATE tenants SET deleted_at = now() WHERE id = 'acme'")
    answer = await http.post("/v1/webhooks", json=HOOK, headers=headers)
    assert answer.status_code == 401
    acme = Caller("acme", "tok_late", ancestors=("root", "acme"))
    with pytest.raises(NotFoundError, match="no such tenant"):  # asked before it was deleted
        await create_webhook(runtime, acme, WebhookCreate(name="h", url=HOOK["url"]))
    assert await told(runtime, "webhook.") == []
