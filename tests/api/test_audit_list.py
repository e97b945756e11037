"""The audit: who did what to which object, before and after, with the request's id."""

import pytest

from apportion.authority.service import Caller, issue_token
from apportion.events.service import Event, append
from apportion.store.connections import transaction

pytestmark = pytest.mark.anyio

ANNA = Caller("root", "tok_anna", "req_1")
BERT = Caller("root", "tok_bert", "req_2")


@pytest.fixture
def write(runtime, clock):
    async def write(caller, *events):
        async with transaction(runtime.db) as connection:
            await append(connection, caller, runtime.now(), events)
        clock.advance(minutes=1)

    return write


@pytest.fixture
async def written(write):
    """Give five audit records, and two events that are none."""
    await write(ANNA, Event("pool.created", "root", "pool_1", {"name": "a"}, after={"max": 1}))
    await write(
        BERT,
        Event("pool.updated", "root", "pool_1", {}, before={"max": 1}, after={"max": 2}),
        Event("pool.offered", "root", "pool_1", {"tenant_id": "acme"}, actor="acme"),
    )
    await write(BERT, Event("site.deleted", "root", "site_1", {}, before={"name": "s"}))
    await write(ANNA, Event("reservation.placed", "root", "res_1", {}, after={"state": "placed"}))
    await write(ANNA, Event("quota.updated", "acme", "pool_1", {}, after={"max": 3}))


async def audit(http, **filters):
    answer = await http.get("/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def actions(http, **filters):
    return [each["action"] for each in await audit(http, **filters)]


async def test_it_says_who_did_what_before_and_after_newest_first(http, written):
    placed, deleted, updated, created = await audit(http)
    assert updated == {
        "id": updated["id"],
        "time": "2026-03-02T09:01:00Z",
        "tenant_id": "root",
        "actor": "tok_bert",
        "request_id": "req_2",
        "action": "pool.updated",
        "subject": "pool_1",
        "before": {"max": 1},
        "after": {"max": 2},
    }
    assert (created["before"], created["after"]) == (None, {"max": 1})
    assert (deleted["before"], deleted["after"]) == ({"name": "s"}, None)
    assert (placed["action"], placed["after"]) == ("reservation.placed", {"state": "placed"})


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"subject": "pool_1"}, ["pool.updated", "pool.created"]),
        ({"actor": "tok_anna"}, ["reservation.placed", "pool.created"]),
        ({"action": "pool."}, ["pool.updated", "pool.created"]),
        ({"action": "pool.created"}, ["pool.created"]),
        ({"request_id": "req_2"}, ["site.deleted", "pool.updated"]),
        ({"since": "2026-03-02T09:02:00Z"}, ["reservation.placed", "site.deleted"]),
        ({"until": "2026-03-02T09:02:00Z"}, ["pool.updated", "pool.created"]),
        (
            {"since": "2026-03-02T09:01:00Z", "until": "2026-03-02T09:03:00Z"},
            ["site.deleted", "pool.updated"],
        ),
        ({"subject": "pool_1", "actor": "tok_anna", "action": "site."}, []),
    ],
)
async def test_filters_narrow_it(http, written, filters, expected):
    assert await actions(http, **filters) == expected


async def test_pages_give_each_record_once_while_more_are_written(http, written, write):
    found, cursor = [], None
    while True:
        page = (
            await http.get(
                "/v1/audit", params={"limit": 1} | ({"cursor": cursor} if cursor else {})
            )
        ).json()
        found += [each["action"] for each in page["items"]]
        await write(ANNA, Event("pool.updated", "root", "pool_2", {}, after={}))
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["reservation.placed", "site.deleted", "pool.updated", "pool.created"]


async def test_records_of_one_transaction_come_newest_first_too(http, write):
    made = [Event("site.created", "root", f"site_{n}", {}, after={}) for n in range(120)]
    await write(ANNA, *made)
    told = [each["subject"] for each in await audit(http, limit=1000)]
    assert told == [f"site_{n}" for n in reversed(range(120))]


async def test_a_record_shows_once_nothing_can_come_before_it(http, runtime, write):
    """One who walks it while others write would never see what is written behind his back."""
    async with runtime.db.connection() as connection, connection.transaction():
        await append(connection, ANNA, runtime.now(), [Event("a.a", "root", "slow", {}, after={})])
        await write(BERT, Event("a.b", "root", "quick", {}, after={}))
        assert await actions(http) == []
    assert await actions(http) == ["a.b", "a.a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("cursor", "x"), ("since", "yesterday"), ("until", "2026-03-02"), ("limit", "0")],
)
async def test_what_cannot_be_read_is_refused_by_its_name(http, name, value):
    answer = await http.get("/v1/audit", params={name: value})
    assert (answer.status_code, answer.json()["field"]) == (400, name)


async def test_a_real_request_is_found_by_its_id(http):
    made = await http.post(
        "/v1/webhooks",
        json={"name": "hook", "url": "https://example.com/"},
        headers={"X-Request-ID": "mine-1"},
    )
    [record] = await audit(http, request_id="mine-1")
    assert record["subject"] == made.json()["webhook"]["id"]
    assert record["actor"].startswith("tok_")
    assert record["after"]["url"] == "https://example.com/"


async def test_a_tenant_audits_only_itself_and_only_its_operators_do(http, runtime, written):
    async with transaction(runtime.db) as connection:
        await connection.execute(
            "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
            " VALUES ('acme', 'root', '{root,acme}', 'Acme', now())"
        )
        tokens = {
            role: await issue_token(runtime, connection, tenant_id="acme", name=role, role=role)
            for role in ("operator", "viewer")
        }

    async def ask(role):
        return await http.get(
            "/v1/audit", headers={"Authorization": f"Bearer {tokens[role].token}"}
        )

    own = (await ask("operator")).json()["items"]
    assert [(each["tenant_id"], each["action"]) for each in own] == [("acme", "quota.updated")]
    assert (await ask("viewer")).status_code == 403
    as_acme = await http.get("/v1/audit", headers={"Apportion-Tenant": "acme"})
    assert as_acme.json()["items"] == own
