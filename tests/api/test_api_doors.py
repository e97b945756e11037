"""The way in: tokens and rights first, then parameters, and every failure a problem document."""

import json

import httpx2
import pytest

from apportion.doors.rights import PUBLIC, RIGHTS, right_of
from apportion.errors import ApportionError, UnavailableError
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY

pytestmark = pytest.mark.anyio
DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
PROTECTED = [each for each in OPERATIONS if each[2]["operationId"] not in PUBLIC]


def names(cases):
    return [case[2]["operationId"] for case in cases]


def problem(response, status, code):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert (told["status"], told["code"]) == (status, code)
    assert told["request_id"] == response.headers["x-request-id"]
    return told


def test_every_operation_states_its_right_and_none_states_one_in_vain():
    assert {*names(OPERATIONS)} == {*RIGHTS, *PUBLIC}
    for _, _, operation in PROTECTED:
        assert operation["x-right"] == RIGHTS[operation["operationId"]]
        assert operation["security"] == [{"token": []}]


def test_a_route_without_a_stated_right_cannot_be_made():
    with pytest.raises(LookupError, match="steal_gpu"):
        right_of("steal_gpu")


def test_each_operation_has_a_summary_and_declares_its_problems():
    for _, _, operation in OPERATIONS:
        assert operation["summary"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert [*answer["content"]] == ["application/problem+json"]
        assert "422" not in operation["responses"]


async def test_without_a_token_every_operation_is_401_whatever_is_sent(http):
    del http.headers["Authorization"]
    for method, path, _ in PROTECTED:
        response = await http.request(method, f"{path}?no_such=1", content=b"{")
        told = problem(response, 401, "UNAUTHENTICATED")
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert "Authorization: Bearer" in told["hint"]


async def test_what_is_no_known_bearer_token_is_401(http):
    del http.headers["Authorization"]
    for given in ("", "Bearer", "Bearer ", "Basic YTpi", "apt_x", "Bearer apt_é"):
        headers = [(b"authorization", given.encode("latin-1"))]
        problem(await http.get("/v1/pools", headers=headers), 401, "UNAUTHENTICATED")


async def test_the_scheme_of_a_token_is_read_in_any_case(http, token):
    response = await http.get("/v1/pools", headers={"Authorization": f"bEARER {token}"})
    assert response.status_code == 200


async def test_an_expired_and_a_revoked_token_are_401_in_the_same_words(http, runtime, clock):
    told = []
    for change in (
        "UPDATE tokens SET expires_at = %s",
        "UPDATE tokens SET revoked_at = %s, expires_at = NULL",
    ):
        async with transaction(runtime.db) as connection:
            await connection.execute(change, [clock()])
        told.append(problem(await http.get("/v1/pools"), 401, "UNAUTHENTICATED")["detail"])
    assert told == ["the token is unknown, revoked or expired"] * 2


async def test_health_readiness_and_the_document_need_no_token(http):
    del http.headers["Authorization"]
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    assert (await http.get("/openapi.json")).json()["openapi"].startswith("3.1")


async def test_no_page_loads_scripts_from_elsewhere(http):
    for path in ("/docs", "/redoc"):
        problem(await http.get(path), 404, "NOT_FOUND")


async def test_a_server_that_starts_or_stops_is_alive_and_not_ready(runtime, reservations):
    app = create_app(runtime, reservations, ready=lambda: False)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as http:
        assert (await http.get("/healthz")).status_code == 200
        response = await http.get("/readyz")
        problem(response, 503, "UNAVAILABLE")
        assert response.headers["retry-after"] == "1"


async def test_a_server_whose_database_is_gone_is_alive_and_not_ready(http, db):
    await db.close()
    assert (await http.get("/healthz")).status_code == 200
    problem(await http.get("/readyz"), 503, "UNAVAILABLE")
    problem(await http.get("/v1/pools"), 503, "UNAVAILABLE")


async def test_an_unknown_path_and_a_trailing_slash_are_404(http):
    for path in ("/v1/pool", "/v1/pools/", "/", "/v1/reservations/x/release/now"):
        told = problem(await http.get(path), 404, "NOT_FOUND")
        assert told["given"] == path


async def test_a_wrong_method_is_405_and_told_all_that_would_do(http):
    response = await http.delete("/v1/pools")
    told = problem(response, 405, "INVALID_INPUT")
    assert (told["field"], told["given"]) == ("method", "DELETE")
    assert told["allowed"] == response.headers["allow"] == "GET, POST"


async def test_a_parameter_that_an_operation_does_not_know_is_refused_everywhere(http):
    for method, path, operation in OPERATIONS:
        response = await http.request(method, path, params={"pool-id": "x"}, json={})
        told = problem(response, 400, "INVALID_INPUT")
        assert (told["field"], told["given"]) == ("pool-id", "x")
        known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        assert told["allowed"] == (", ".join(known) or "none: this operation has no parameters")


async def test_a_parameter_given_twice_is_refused_unless_it_is_a_list(http):
    told = problem(await http.get("/v1/pools?limit=1&limit=2"), 400, "INVALID_INPUT")
    assert (told["field"], told["given"]) == ("limit", ["1", "2"])
    response = await http.get("/v1/reservations?state=placed&state=active")
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/v1/pools?name=a%00b", "/v1/pools/a%00b"])
async def test_a_nul_character_in_an_address_is_refused_by_name(http, path):
    told = problem(await http.get(path), 400, "INVALID_INPUT")
    assert told["field"] in {"name", "pool_id"}
    assert "U+0000" in told["allowed"]


async def test_a_plain_request_id_is_kept_and_comes_back(http):
    response = await http.get("/v1/pools/x", headers={"X-Request-ID": "job-7:attempt_2"})
    assert response.json()["request_id"] == "job-7:attempt_2"


async def test_a_request_id_that_could_break_a_log_is_replaced(http):
    for given in ("", "a b", "x" * 101, 'a"b', "é"):
        headers = [(b"x-request-id", given.encode("latin-1"))]
        response = await http.get("/v1/pools", headers=headers)
        assert response.headers["x-request-id"].startswith("req_")


async def test_the_request_id_is_in_the_events_that_the_request_caused(http, runtime):
    body = {"name": "p", "gpu_model": "H100"}
    await http.post("/v1/pools", json=body, headers={"X-Request-ID": "mine"})
    async with runtime.db.connection() as connection:
        cursor = await connection.execute("SELECT request_id, actor FROM events")
        [event] = await cursor.fetchall()
    assert event["request_id"] == "mine"
    assert event["actor"].startswith("tok_")


async def test_a_fault_of_ours_tells_nothing_but_the_request_id(http, reservations, monkeypatch):
    async def broken(*args):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(reservations, "get", broken)
    response = await http.get("/v1/reservations/res_x")
    told = problem(response, 500, "INTERNAL")
    assert "hunter2" not in response.text
    assert "request_id" in told["hint"]


async def test_what_the_database_refused_unexpectedly_is_a_fault_of_ours(
    http, reservations, monkeypatch
):
    async def broken(*args):
        raise ApportionError("row 7 of bookings")

    monkeypatch.setattr(reservations, "get", broken)
    response = await http.get("/v1/reservations/res_x")
    problem(response, 500, "INTERNAL")
    assert "row 7" not in response.text


async def test_what_cannot_be_reached_says_when_to_try_again(http, reservations, monkeypatch):
    async def broken(*args):
        raise UnavailableError("the database took too long; try again")

    monkeypatch.setattr(reservations, "get", broken)
    response = await http.get("/v1/reservations/res_x")
    assert (
        problem(response, 503, "UNAVAILABLE")["detail"] == "the database took too long; try again"
    )
    assert response.headers["retry-after"] == "1"


async def test_answers_are_not_kept_by_anyone_on_the_way(http):
    response = await http.get("/v1/pools")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert json.loads(response.text) == {"items": [], "next_cursor": None}
