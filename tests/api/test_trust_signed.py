"""What a node signs counts, once, in its order, by a clock that is right; no other's word does."""

from datetime import timedelta

import pytest
from trust_machine import Line, Machine, refusal_of

from apportion.doors.rights import RIGHTS
from apportion.doors.signed import NODE_OPERATIONS, REPORT_AGE
from apportion.errors import InvalidStateError, NotFoundError, UnauthenticatedError
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, pool_of

pytestmark = pytest.mark.anyio

DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()
FORBIDDEN = [
    (operation["operationId"], method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["operationId"] in RIGHTS and operation["operationId"] not in NODE_OPERATIONS
]


@pytest.fixture
def line(http):
    return Line(http)


@pytest.fixture
async def pool(with_client):
    return await with_client(lambda client: client.create_pool(pool_of("H100", name="p")))


@pytest.fixture
async def joined(line, with_client, pool, clock):
    """Let machines join."""

    async def join(name="m1"):
        machine = Machine(name, clock=clock)
        issued = await with_client(lambda client: client.create_join_token(pool.id, {"name": "m"}))
        await line.join(machine, issued.token)
        return machine

    return join


async def reported(runtime):
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute("SELECT uid, report_sequence FROM nodes")
        return {row["uid"]: row["report_sequence"] for row in await cursor.fetchall()}


async def test_a_repeated_report_changes_nothing(line, joined, runtime):
    machine = await joined()
    path = f"/v1/nodes/{machine.node_id}/report"
    first = machine.request("POST", path, machine.report())
    assert (await line.send(first)).json()["accepted"]
    assert (await line.report(machine)).sequence == 2
    again = (await line.send(first)).json()
    assert (again["accepted"], again["reason"]) == (False, "report_out_of_order")
    assert again["sequence"] == 2
    assert await reported(runtime) == {machine.node_id: 2}


async def test_what_was_changed_on_the_way_is_refused(line, joined, runtime):
    machine = await joined()
    path = f"/v1/nodes/{machine.node_id}/report"
    good = machine.request("POST", path, machine.report())
    headers = good["headers"]
    bodiless = machine.request("POST", path)
    changed = [
        {**good, "content": good["content"].replace(b'"sequence": 1', b'"sequence": 9')},
        {**good, "content": good["content"] + b" "},
        {
            **good,
            "headers": {**headers, "Content-Digest": bodiless["headers"].get("x", "sha-256=")},
        },
        {**good, "headers": {k: v for k, v in headers.items() if k != "Signature"}},
        {**good, "headers": {**headers, "Signature-Input": headers["Signature-Input"] + "x"}},
        {**good, "headers": {**headers, "Signature-Input": "garbage"}},
        # The signature of a request without a body, under a body.
        {**bodiless, "content": good["content"], "headers": {**headers, **bodiless["headers"]}},
        # One of another operation.
        {**good, "headers": {**machine.request("GET", path)["headers"], "Content-Type": "x"}},
    ]
    for each in changed:
        assert refusal_of(await line.send(each)) == (401, "UNAUTHENTICATED"), each
    assert await reported(runtime) == {machine.node_id: None}
    assert (await line.send(good)).json()["accepted"]


async def test_what_it_says_of_an_allocation_lies_under_its_signature(
    line, joined, with_client, pool, reservations
):
    machine = await joined()
    await line.report(machine)
    held = await with_client(
        lambda client: client.create_reservation(ask(pool.id, device(), duration="1h"))
    )
    spec = await line.spec(machine)
    word = {
        "allocation_id": f"{held.id}.0",
        "state": "bound",
        "at": "2026-03-02T09:00:00Z",
        "device": {"uuid": "MIG-7", "gi_id": 3, "ci_id": 1},
    }
    path = f"/v1/nodes/{machine.node_id}/report"

    async def says(word):
        """Send it changed in each of its facts, then as it was signed; how the piece stands."""
        report = machine.report(observed_generation=spec.generation, allocations=[word])
        good = machine.request("POST", path, report)
        for fact in (f"{held.id}.0", word["state"], word["at"][:16], "MIG-7", '"gi_id": 3'):
            forged = good["content"].replace(fact.encode(), fact[:-1].encode() + b"9")
            if forged != good["content"]:
                sent = await line.send({**good, "content": forged})
                assert refusal_of(sent) == (401, "UNAUTHENTICATED"), fact
        view = await with_client(lambda client: client.get_reservation(held.id))
        before = view.bookings[0].allocation
        assert (await line.send(good)).json()["accepted"]
        view = await with_client(lambda client: client.get_reservation(held.id))
        return before, view.bookings[0].allocation, report["sequence"]

    before, bound, number = await says(word)
    assert (before.bound, bound.bound.report) == (None, number)
    assert bound.bound.device.model_dump() == word["device"]
    await with_client(lambda client: client.release_reservation(held.id))
    spec = await line.spec(machine)
    before, released, number = await says({**word, "state": "released"})
    assert (before.released, released.released.report) == (None, number)
    await reservations.lifecycle.advance()
    view = await with_client(lambda client: client.get_reservation(held.id))
    assert view.state == "ended"


async def test_a_node_speaks_for_itself_alone(line, joined, runtime):
    one, two = await joined("m1"), await joined("m2")
    path = f"/v1/nodes/{two.node_id}/report"
    theirs = await line.send(one.request("POST", path, two.report()))
    nowhere = f"/v1/nodes/{two.node_id[:-1]}z/report"
    nobodys = await line.send(one.request("POST", nowhere, two.report()))
    assert refusal_of(theirs) == refusal_of(nobodys) == (404, "NOT_FOUND")
    left_out = {"request_id", "given"}
    told = [
        {k: v for k, v in each.json().items() if k not in left_out} for each in (theirs, nobodys)
    ]
    assert told[0] == told[1]
    with pytest.raises(NotFoundError):
        one.believe(await line.send(one.request("GET", f"/v1/nodes/{two.node_id}/spec")), None)
    as_two = one.request("POST", path, two.report(), signer=two.node_id)
    assert refusal_of(await line.send(as_two)) == (401, "UNAUTHENTICATED")
    mine_named_otherwise = {**one.report(), "inventory": two.inventory()}
    own = f"/v1/nodes/{one.node_id}/report"
    answer = await line.send(one.request("POST", own, mine_named_otherwise))
    assert refusal_of(answer) == (400, "INVALID_INPUT")
    assert await reported(runtime) == {one.node_id: None, two.node_id: None}


async def test_a_node_may_do_nothing_else(line, joined):
    machine = await joined()
    allowed = []
    for name, method, path in FORBIDDEN:
        for part in ("node_id", "pool_id", "tenant_id", "reservation_id"):
            path = path.replace(f"{{{part}}}", machine.node_id)  # noqa: PLW2901 - bit by bit
        path = path.replace("{", "").replace("}", "")  # noqa: PLW2901 - the same
        document = {} if method in {"POST", "PUT", "PATCH"} else None
        answer = await line.send(machine.request(method, path, document))
        if refusal_of(answer) != (403, "FORBIDDEN"):
            allowed.append((name, answer.status_code))
    assert allowed == []
    assert len(FORBIDDEN) > 50


async def test_what_others_say_about_a_node_with_a_key_is_refused(
    joined, with_client, pool, runtime
):
    machine = await joined()
    document = machine.inventory()

    def attempt(client):
        for say in (
            lambda: client.report_node(machine.node_id, machine.report()),
            lambda: client.report_inventory(machine.node_id, document),
            lambda: client.join_node(pool.id, document),
        ):
            with pytest.raises(InvalidStateError, match="key of its own"):
                say()

    await with_client(attempt)
    assert await reported(runtime) == {machine.node_id: None}


@pytest.mark.parametrize("minutes", [-6, 6, 60 * 24 * 365])
async def test_a_clock_that_is_wrong_is_told_the_right_time(line, joined, clock, minutes):
    machine = await joined()
    wrong = clock() + timedelta(minutes=minutes)
    asked = machine.request("GET", f"/v1/nodes/{machine.node_id}/spec", created=wrong)
    told = (await line.send(asked)).json()
    assert told["code"] == "UNAUTHENTICATED"
    assert told["details"] == {"reason": "clock_skew", "server_time": "2026-03-02T09:00:00Z"}
    assert "2026-03-02T09:00:00Z by the server's" in told["detail"]


@pytest.mark.parametrize("minutes", [-4, 4])
async def test_clocks_may_differ_a_little(line, joined, clock, minutes):
    machine = await joined()
    assert await line.spec(machine, created=clock() + timedelta(minutes=minutes))


async def test_a_report_may_have_lain_with_its_node_a_read_may_not(line, joined, clock, runtime):
    machine = await joined()
    path = f"/v1/nodes/{machine.node_id}/report"
    spooled = [machine.request("POST", path, machine.report()) for _ in range(3)]
    read = machine.request("GET", f"/v1/nodes/{machine.node_id}/spec")
    clock.advance(days=REPORT_AGE.days - 1)
    assert refusal_of(await line.send(read)) == (401, "UNAUTHENTICATED")
    assert [(await line.send(each)).json()["accepted"] for each in spooled] == [True] * 3
    clock.advance(days=2)
    too_old = await line.send(spooled[0])
    assert too_old.json()["details"]["reason"] == "clock_skew"
    ahead = machine.request("POST", path, machine.report(), created=clock() + timedelta(minutes=6))
    assert refusal_of(await line.send(ahead)) == (401, "UNAUTHENTICATED")
    assert await reported(runtime) == {machine.node_id: 3}


async def test_the_setting_says_how_far_clocks_may_differ(runtime, reservations, joined, clock):
    import httpx2

    machine = await joined()
    app = create_app(runtime, reservations, ready=lambda: True, clock_skew=timedelta(seconds=10))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        line = Line(http)
        assert await line.spec(machine, created=clock() - timedelta(seconds=10))
        with pytest.raises(UnauthenticatedError, match="by the server's"):
            await line.spec(machine, created=clock() - timedelta(seconds=11))


async def test_a_revoked_node_is_refused_and_its_bookings_stay(
    line, joined, with_client, pool, runtime
):
    machine = await joined()
    await line.report(machine)
    held = await with_client(
        lambda client: client.create_reservation(ask(pool.id, device(), duration="1h"))
    )
    node = await with_client(lambda client: client.revoke_node(machine.node_id))
    assert node.revoked_at is not None
    for asked in (
        machine.request("GET", f"/v1/nodes/{machine.node_id}/spec"),
        machine.request("POST", f"/v1/nodes/{machine.node_id}/report", machine.report()),
    ):
        answer = await line.send(asked)
        assert refusal_of(answer) == (401, "UNAUTHENTICATED")
    unknown = Machine("m9")
    unknown.node_id = machine.node_id[:-1] + "z"
    nobody = await line.send(unknown.request("GET", f"/v1/nodes/{unknown.node_id}/spec"))
    assert nobody.json()["detail"] == answer.json()["detail"]
    assert await reported(runtime) == {machine.node_id: 1}
    state = await with_client(lambda client: client.get_reservation(held.id).state)
    assert state == "placed"
    again = await with_client(lambda client: client.revoke_node(machine.node_id))
    assert again.revoked_at == node.revoked_at


async def test_a_revoked_node_joins_anew_with_another_key(line, joined, with_client, pool, clock):
    machine = await joined()
    for _ in range(3):
        await line.report(machine)
    await with_client(lambda client: client.revoke_node(machine.node_id))
    issued = await with_client(lambda client: client.create_join_token(pool.id, {"name": "m"}))
    anew = Machine("m1", seed="new", clock=clock)
    told = await line.join(anew, issued.token)
    assert told.node_id == machine.node_id
    assert (await line.report(anew)).sequence == 1  # it counts from the beginning
    old = await line.send(machine.request("GET", f"/v1/nodes/{machine.node_id}/spec"))
    assert refusal_of(old) == (401, "UNAUTHENTICATED")


async def test_a_node_without_a_key_has_none_to_revoke(with_client, pool):
    def attempt(client):
        node = client.join_node(pool.id, Machine("m1").inventory())
        with pytest.raises(InvalidStateError, match="no key"):
            client.revoke_node(node.id)

    await with_client(attempt)


async def test_an_answer_to_another_request_is_not_believed(line, joined):
    machine = await joined()
    asked = machine.request("GET", f"/v1/nodes/{machine.node_id}/spec")
    answer = await line.send(asked)
    machine.request("GET", "/")  # another one is under way by now
    with pytest.raises(UnauthenticatedError, match="another request"):
        machine.believe(answer, None)
