"""Tokens: shown once, kept as a keyed hash, never more than the one that made them."""

import hashlib
import hmac
import logging

import pytest
from tenants_asking import As

from apportion.authority.service import Identities, foreign_tokens
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
def root(http, token):
    return As(http, token)


async def rows(runtime, query, *values):
    async with transaction(runtime.db) as connection:
        return await (await connection.execute(query, values or None)).fetchall()


async def works(door):
    return (await door.ask("GET", "/caller")).status_code == 200


async def test_a_token_is_256_random_bits_and_kept_as_a_keyed_hash(root, runtime):
    door = await root.token_of("member")
    assert door.token.startswith("apt_")
    assert len(door.token) == len("apt_") + 43  # 32 bytes in base64url
    [row] = await rows(runtime, "SELECT * FROM tokens WHERE id = %s", door.token_id)
    assert bytes(row["hash"]) == hmac.digest(KEY, f"token:{door.token}".encode(), "sha256")
    assert bytes(row["hash"]) != hashlib.sha256(door.token.encode()).digest()
    other = await root.token_of("member")
    assert other.token != door.token


async def test_a_secret_is_in_no_row_no_log_no_list_and_no_error(
    root, runtime, capfd, caplog, clock
):
    caplog.set_level(logging.DEBUG)
    issued = await root.post("/tokens", {"name": "t", "role": "owner", "idempotency_key": "k"})
    rotated = await root.post(f"/tokens/{issued['record']['id']}/rotate", {"overlap": "1h"}, 200)
    again = {"name": "t", "role": "owner", "idempotency_key": "k"}
    door = root.with_secret(rotated["token"])
    told = [
        await root.refused("POST", "/tokens", 409, "CONFLICT", again),
        await root.get("/tokens"),
        await root.get(f"/tokens/{issued['record']['id']}"),
        await door.get("/caller"),
        await door.get("/events"),
        await door.get("/audit"),
        await door.refused("GET", "/pools/none", 404, "NOT_FOUND"),
        await root.ask("DELETE", f"/tokens/{issued['record']['id']}"),
        await door.refused("GET", "/caller", 401, "UNAUTHENTICATED"),
    ]
    written = "".join(capfd.readouterr()) + caplog.text + repr([*told, issued["record"]])
    assert "request" in written
    tables = await rows(
        runtime,
        "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'",
    )
    for table in tables:
        written += repr(await rows(runtime, f'SELECT t::text FROM "{table["name"]}" AS t'))  # noqa: S608
    assert issued["record"]["id"] in written
    for secret in (issued["token"], rotated["token"], root.token):
        assert secret.removeprefix("apt_") not in written
        assert secret.encode().hex() not in written


async def test_a_token_is_shown_with_its_state_and_its_last_use(root, clock):
    door = await root.token_of("viewer", expires_in="2h")
    record = await root.get(f"/tokens/{door.token_id}")
    assert (record["state"], record["last_used_at"], record["revoked_at"]) == ("active", None, None)
    assert (record["tenant_id"], record["role"], record["actions"]) == ("root", "viewer", ["*"])
    await door.get("/caller")
    used = (await root.get(f"/tokens/{door.token_id}"))["last_used_at"]
    assert used == record["created_at"]
    clock.advance(seconds=59)
    await door.get("/caller")
    assert (await root.get(f"/tokens/{door.token_id}"))["last_used_at"] == used
    clock.advance(seconds=1)
    await door.get("/caller")
    assert (await root.get(f"/tokens/{door.token_id}"))["last_used_at"] > used
    clock.advance(hours=2)
    await door.refused("GET", "/caller", 401, "UNAUTHENTICATED")
    assert (await root.get(f"/tokens/{door.token_id}"))["state"] == "expired"


async def test_tokens_are_listed_by_state_and_role_in_pages(root, clock):
    made = {role: await root.token_of(role, expires_in="2h") for role in ("viewer", "node")}
    revoked = await root.token_of("viewer")
    await root.delete(f"/tokens/{revoked.token_id}")
    clock.advance(hours=3)

    async def ids(**query):
        return {each["id"] for each in (await root.get("/tokens", **query))["items"]}

    assert await ids(state="expired") == {each.token_id for each in made.values()}
    assert await ids(state="revoked") == {revoked.token_id}
    assert await ids(role="node") == {made["node"].token_id}
    assert await ids(role="viewer", state="expired") == {made["viewer"].token_id}
    assert len(await ids(state="active")) == 1  # the one that asks
    page = await root.get("/tokens", limit=3)
    rest = await root.get("/tokens", limit=3, cursor=page["next_cursor"])
    assert (len(page["items"]), len(rest["items"]), rest["next_cursor"]) == (3, 1, None)
    await root.refused("GET", "/tokens", 400, "INVALID_INPUT", state="dead")


async def test_a_token_does_what_its_scope_covers_and_no_more(root):
    door = await root.token_of("owner", actions=["compute:caller:read", "compute:tenants:*"])
    await door.get("/tenants")
    await door.get("/caller")
    told = await door.refused("GET", "/pools", 403, "FORBIDDEN")
    assert told["details"]["right"] == "compute:pools:read"
    assert told["details"]["scope"] == ["compute:caller:read", "compute:tenants:*"]
    # A scope gives nothing that the role has not.
    viewer = await root.token_of("viewer", actions=["compute:tenants:*"])
    await viewer.refused("POST", "/tenants", 403, "FORBIDDEN", {"id": "x", "name": "X"})


@pytest.mark.parametrize(
    ("creator", "given"),
    [
        ("operator", "operator member viewer node"),
        ("member", "member viewer"),
        ("viewer", "viewer"),
        ("node", "node"),
    ],
)
async def test_nobody_gives_a_role_above_their_own(root, creator, given):
    text = 'permit(principal, action == Action::"compute:tokens:create", resource);'
    await root.post("/policies", {"name": "anyone", "text": text})
    door = await root.token_of(creator)
    for role in ("owner", "operator", "member", "viewer", "node"):
        body = {"name": "t", "role": role}
        if role in given.split():
            await door.post("/tokens", body)
        else:
            told = await door.refused("POST", "/tokens", 403, "FORBIDDEN", body)
            assert (told["field"], told["given"]) == ("role", role)
            assert set(told["allowed"].split(", ")) == set(given.split())


async def test_nobody_gives_an_action_outside_their_own_scope(root):
    own = ["compute:tokens:create", "compute:pools:*"]
    door = await root.token_of("owner", actions=own)
    for good in (["compute:pools:read"], ["compute:pools:*", "compute:tokens:create"]):
        await door.post("/tokens", {"name": "t", "role": "owner", "actions": good})
    for bad, field in (
        (["*"], "actions[0]"),
        (["compute:*"], "actions[0]"),
        (["compute:pools:read", "compute:tokens:*"], "actions[1]"),
        (["compute:quotas:read"], "actions[0]"),
    ):
        body = {"name": "t", "role": "owner", "actions": bad}
        told = await door.refused("POST", "/tokens", 403, "FORBIDDEN", body)
        assert told["field"] == field
        assert told["allowed"] == ", ".join(own)
    told = await door.refused("POST", "/tokens", 403, "FORBIDDEN", {"name": "t", "role": "owner"})
    assert told["field"] == "actions[0]"


async def test_a_scope_that_covers_nothing_is_refused(root):
    for pattern in ("compute:pools:raed", "compute:gadgets:*"):
        body = {"name": "t", "role": "owner", "actions": ["*", pattern]}
        told = await root.refused("POST", "/tokens", 400, "INVALID_INPUT", body)
        assert (told["field"], told["given"]) == ("actions[1]", pattern)
        assert "compute:pools:read" in told["allowed"]
    for pattern in ("pools", "compute:pools:re*", ""):
        body = {"name": "t", "role": "owner", "actions": [pattern]}
        await root.refused("POST", "/tokens", 400, "INVALID_INPUT", body)


async def test_nobody_gives_more_time_than_they_have(root, clock):
    door = await root.token_of("owner", expires_in="2h")
    own = (await door.get("/caller"))["expires_at"]
    inherits = await door.token_of("owner")
    assert (await inherits.get("/caller"))["expires_at"] == own == "2026-03-02T11:00:00Z"
    shorter = await door.token_of("owner", expires_in="119m")
    assert (await shorter.get("/caller"))["expires_at"] == "2026-03-02T10:59:00Z"
    await door.token_of("owner", expires_at="2026-03-02T11:00:00Z")
    for more in ({"expires_in": "121m"}, {"expires_at": "2026-03-02T11:00:01Z"}):
        body = {"name": "t", "role": "owner", **more}
        told = await door.refused("POST", "/tokens", 403, "FORBIDDEN", body)
        assert told["field"] == "expires_at"
        assert told["allowed"] == "up to 2026-03-02T11:00:00Z"


async def test_an_end_that_is_no_good_is_refused(root):
    for more, field in (
        ({"expires_at": "2026-03-02T09:00:00Z"}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
        ({"expires_at": "2026-12-01T09:00:00"}, "expires_at"),
        ({"expires_at": 1900000000}, "expires_at"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"expires_in": "11000d"}, "expires_in"),
        ({"expires_in": "1h", "expires_at": "2026-12-01T09:00:00Z"}, "expires_in"),
    ):
        body = {"name": "t", "role": "viewer", **more}
        told = await root.refused("POST", "/tokens", 400, "INVALID_INPUT", body)
        assert told["field"] == field


async def test_a_retry_with_the_same_key_makes_no_second_token(root, runtime):
    body = {"name": "ci", "role": "member", "idempotency_key": "ci-1"}
    issued = await root.post("/tokens", body)
    told = await root.refused("POST", "/tokens", 409, "CONFLICT", body)
    assert told["field"] == "idempotency_key"
    assert "was shown then" in told["detail"]
    assert "rotate" in told["hint"]
    assert told["details"]["token_id"] == issued["record"]["id"]
    [count] = await rows(runtime, "SELECT count(*) AS n FROM tokens WHERE name = 'ci'")
    assert count["n"] == 1
    assert len(await root.events("token.created")) == 1
    assert await works(root.with_secret(issued["token"]))
    # Another caller's key is another key.
    other = await root.token_of("owner")
    await other.post("/tokens", body)


async def test_rotating_ends_the_old_secret_at_once(root):
    door = await root.token_of("member")
    issued = await root.post(f"/tokens/{door.token_id}/rotate", status=200)
    assert issued["record"]["id"] == door.token_id
    assert issued["token"] != door.token
    assert not await works(door)
    assert await works(door.with_secret(issued["token"]))


async def test_rotating_with_an_overlap_lets_both_work_until_it_ends(root, clock):
    door = await root.token_of("member")
    path = f"/tokens/{door.token_id}/rotate"
    fresh = door.with_secret((await root.post(path, {"overlap": "1h"}, 200))["token"])
    clock.advance(minutes=59)
    assert await works(door)
    assert await works(fresh)
    clock.advance(minutes=1)
    assert not await works(door)
    assert await works(fresh)
    # A second rotation within an overlap keeps the last secret, not the one before.
    second = fresh.with_secret((await root.post(path, {"overlap": "1h"}, 200))["token"])
    third = fresh.with_secret((await root.post(path, {"overlap": "1h"}, 200))["token"])
    assert not await works(fresh)
    assert await works(second)
    assert await works(third)
    for overlap in ("31d", "0s", "soon"):
        told = await root.refused("POST", path, 400, "INVALID_INPUT", {"overlap": overlap})
        assert told["field"] == "overlap"


async def test_a_token_that_works_no_more_is_not_rotated(root, clock):
    expired = await root.token_of("member", expires_in="1h")
    revoked = await root.token_of("member")
    await root.delete(f"/tokens/{revoked.token_id}")
    clock.advance(hours=1)
    for door, state in ((expired, "expired"), (revoked, "revoked")):
        path = f"/tokens/{door.token_id}/rotate"
        told = await root.refused("POST", path, 409, "INVALID_STATE")
        assert told["detail"].endswith(f"the token is {state}")


async def test_nobody_reads_the_secret_of_a_token_that_may_do_more(root):
    """Rotating shows a secret: it must give no more than creating would."""
    text = 'permit(principal, action == Action::"compute:tokens:manage", resource);'
    await root.post("/policies", {"name": "manage", "text": text})
    strong = await root.token_of("owner")
    weak = {
        "role": await root.token_of("viewer"),
        "actions[0]": await root.token_of("owner", actions=["compute:tokens:*"]),
        "expires_at": await root.token_of("owner", expires_in="1h"),
    }
    for field, door in weak.items():
        path = f"/tokens/{strong.token_id}/rotate"
        told = await door.refused("POST", path, 403, "FORBIDDEN")
        assert told["field"] == field
        own = await door.post(f"/tokens/{door.token_id}/rotate", status=200)
        assert await works(door.with_secret(own["token"])) or field == "actions[0]"
    assert await works(strong)


async def test_revoking_works_at_once_even_on_the_token_in_use_and_again(root):
    door = await root.token_of("owner")
    record = await door.delete(f"/tokens/{door.token_id}")
    assert record["state"] == "revoked"
    told = await door.refused("GET", "/caller", 401, "UNAUTHENTICATED")
    assert told["detail"] == "the token is unknown, revoked or expired"
    assert await root.delete(f"/tokens/{door.token_id}") == record
    assert len(await root.events("token.revoked", door.token_id)) == 1


async def test_a_rotated_secret_within_its_overlap_ends_with_the_token(root):
    door = await root.token_of("owner")
    await root.post(f"/tokens/{door.token_id}/rotate", {"overlap": "1h"}, 200)
    await root.delete(f"/tokens/{door.token_id}")
    assert not await works(door)


async def test_another_tenant_s_token_does_not_exist(root):
    acme, globex = await root.tenant_of("acme"), await root.tenant_of("globex")
    for token_id in (globex.token_id, "tok_never"):
        for method, path in (
            ("GET", f"/tokens/{token_id}"),
            ("POST", f"/tokens/{token_id}/rotate"),
            ("DELETE", f"/tokens/{token_id}"),
        ):
            told = await acme.refused(method, path, 404, "NOT_FOUND")
            assert (told["detail"], told["given"]) == ("token_id: no such token", token_id)
    assert await works(globex)
    listed = {each["id"] for each in (await acme.get("/tokens"))["items"]}
    assert listed == {acme.token_id}
    # Whoever is above acts for the tenant, and sees its tokens then.
    assert (await root.for_tenant("globex").get(f"/tokens/{globex.token_id}"))["role"] == "owner"
    await root.refused("GET", f"/tokens/{globex.token_id}", 404, "NOT_FOUND")


async def test_what_happens_to_a_token_is_told_and_audited_without_hashes(root):
    door = await root.token_of("member", expires_in="1d")
    await root.post(f"/tokens/{door.token_id}/rotate", {"overlap": "1h"}, 200)
    await root.delete(f"/tokens/{door.token_id}")
    [created] = await root.audited("token.created")
    [rotated] = await root.audited("token.rotated")
    [revoked] = await root.audited("token.revoked")
    assert created["before"] is None
    assert created["after"]["name"] == "member"
    assert rotated["before"] == rotated["after"] == {**created["after"], **rotated["after"]}
    assert (revoked["before"]["state"], revoked["after"]["state"]) == ("active", "revoked")
    assert revoked["request_id"]
    for record in (created, rotated, revoked):
        assert "hash" not in repr(record)
    [event] = await root.events("token.rotated")
    assert event["data"] == {"previous_until": "2026-03-02T10:00:00Z"}


async def test_a_token_made_for_a_tenant_below_belongs_to_it(root, runtime):
    acme = await root.tenant_of("acme")
    caller = await Identities(runtime).authenticate(acme.token)
    assert (caller.tenant_id, caller.authority.home) == ("acme", "acme")
    [event] = await acme.events("token.created")
    assert event["subject"] == acme.token_id
    assert await root.events("token.created", acme.token_id) == []


async def test_those_of_another_servers_key_are_counted(runtime, token):
    other = Runtime(runtime.db, runtime.now, key=bytes(32))
    async with transaction(runtime.db) as connection:
        assert await foreign_tokens(runtime, connection) == 0
        assert await foreign_tokens(other, connection) == 1
