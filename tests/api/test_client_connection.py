"""The client: errors as the server raised them, retries that are safe, and where the server is."""

import json

import httpx2
import pytest

from apportion.client import Client
from apportion.client.retries import Pauses
from apportion.client.sync.connection import Connection
from apportion.doors.problems import RefusedRequestError, problem_of
from apportion.errors import (
    ApportionError,
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
    QuotaExceededError,
    UnauthenticatedError,
    UnavailableError,
)

PROBLEM = {"Content-Type": "application/problem+json"}
EMPTY = {"items": [], "next_cursor": None}


def client_of(handler, **more):
    return Client("http://test", "apt_x", transport=httpx2.MockTransport(handler), **more)


def answering(*answers):
    """Give a handler that gives these answers in turn, and what it was asked."""
    asked = []
    left = [*answers]

    def handle(request):
        asked.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, asked


def unavailable(after="0"):
    problem = problem_of(UnavailableError("the database took too long"))
    return httpx2.Response(
        503, text=problem.model_dump_json(), headers={**PROBLEM, "Retry-After": after}
    )


@pytest.mark.parametrize(
    "error",
    [
        InvalidInputError("is wrong", field="devices[0].count", given=0, allowed="1 to 64"),
        InvalidInputError("devices[0]: gpu.mig atoms exist only in mig pools", field="devices[0]"),
        UnauthenticatedError("no bearer token was sent", hint="Send one"),
        ForbiddenError("needs the right compute:pools:read", details={"right": "x"}),
        NotFoundError("no such pool", field="pool_id", given="pool_x"),
        ConflictError("this key was used for another ask", field="idempotency_key"),
        InvalidStateError("has ended"),
        QuotaExceededError("does not cover this", details={"resource": "gpu", "asked": "2"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_it_was_raised(error):
    problem = problem_of(error, "req_1")
    handle, asked = answering(
        httpx2.Response(problem.status, text=problem.model_dump_json(), headers=PROBLEM)
    )
    with client_of(handle) as client, pytest.raises(type(error)) as caught:
        client.list_pools()
    got = caught.value
    assert str(got) == str(error)
    assert (got.code, got.field, got.given) == (error.code, error.field, error.given)
    assert (got.allowed, got.hint) == (error.allowed, error.hint)
    assert got.details == {**error.details, "request_id": "req_1"}
    assert len(asked) == 1


def test_what_http_refuses_is_invalid_input():
    problem = problem_of(RefusedRequestError("is too large", status=413, field="body"))
    handle, _ = answering(httpx2.Response(413, text=problem.model_dump_json(), headers=PROBLEM))
    with client_of(handle) as client, pytest.raises(InvalidInputError, match="body: is too large"):
        client.list_pools()


def test_a_fault_of_the_server_keeps_the_request_id_for_whoever_runs_it():
    problem = problem_of(ApportionError("secret"), "req_7")
    handle, _ = answering(httpx2.Response(500, text=problem.model_dump_json(), headers=PROBLEM))
    with client_of(handle) as client, pytest.raises(ApportionError) as caught:
        client.list_pools()
    assert caught.value.code == "INTERNAL"
    assert caught.value.details["request_id"] == "req_7"


def test_a_code_of_a_newer_server_is_still_an_error():
    body = {"title": "Too Many", "status": 429, "code": "RATE_LIMITED", "detail": "slow down"}
    handle, _ = answering(httpx2.Response(429, json=body, headers=PROBLEM))
    with client_of(handle) as client, pytest.raises(ApportionError, match="slow down"):
        client.list_pools()


@pytest.mark.parametrize("status", [502, 504])
def test_an_answer_of_something_on_the_way_is_told_apart(status):
    answers = [httpx2.Response(status, text="<html>bad gateway</html>")] * 3
    handle, _ = answering(*answers)
    with pytest.raises(UnavailableError, match=str(status)):
        connection_of(handle, []).ask("GET", "/v1/pools")


@pytest.mark.parametrize(
    "answer",
    [httpx2.Response(200, text="<html>"), httpx2.Response(404, text="no"), httpx2.Response(302)],
)
def test_what_is_no_apportion_server_is_said_to_be_none(answer):
    handle, _ = answering(answer)
    with client_of(handle) as client, pytest.raises(ApportionError) as caught:
        client.list_pools()
    assert "Apportion server" in caught.value.hint


def connection_of(handler, pauses, chance=1):
    return Connection(
        "http://test",
        "apt_x",
        timeout_seconds=5,
        transport=httpx2.MockTransport(handler),
        sleep=pauses.append,
        pauses=Pauses(lambda: chance),
    )


def test_what_is_unavailable_is_asked_three_times_with_growing_pauses():
    refused = httpx2.ConnectError("Connection refused")
    handle, asked = answering(refused, refused, refused)
    pauses = []
    with pytest.raises(UnavailableError) as caught:
        connection_of(handle, pauses).ask("GET", "/v1/pools")
    assert (len(asked), pauses) == (3, [0.1, 0.2])
    assert "no server answers at http://test" in str(caught.value)
    assert "apportion up" in caught.value.hint
    assert "APPORTION_URL" in caught.value.hint


def test_clients_that_lost_the_same_server_do_not_come_back_at_the_same_moment():
    for chance, expected in ((0, [0.05, 0.1]), (0.5, [0.075, 0.15])):
        refused = httpx2.ConnectError("Connection refused")
        handle, _ = answering(refused, refused, httpx2.Response(200, json=EMPTY))
        pauses = []
        connection_of(handle, pauses, chance).ask("GET", "/v1/pools")
        assert pauses == pytest.approx(expected)


def test_pauses_grow_up_to_five_seconds():
    pauses = Pauses(lambda: 1)
    assert [pauses.after(failures) for failures in (1, 3, 6, 7, 9)] == [0.1, 0.4, 3.2, 5, 5]
    assert pauses.after(40) == 5


def test_a_server_says_how_long_to_wait_up_to_five_seconds():
    handle, _ = answering(unavailable("3"), unavailable("999"), httpx2.Response(200, json=EMPTY))
    pauses = []
    assert connection_of(handle, pauses).ask("GET", "/v1/pools") == EMPTY
    assert pauses == [3, 5]


def test_what_took_too_long_is_not_asked_again():
    handle, asked = answering(httpx2.ReadTimeout("timed out"))
    with pytest.raises(UnavailableError, match="did not answer in time"):
        connection_of(handle, []).ask("GET", "/v1/pools")
    assert len(asked) == 1


def test_an_ask_that_is_sent_again_has_the_same_key(monkeypatch):
    refused = problem_of(InvalidInputError("x")).model_dump_json()
    handle, asked = answering(
        httpx2.ReadError("reset"),
        unavailable(),
        httpx2.Response(400, text=refused, headers=PROBLEM),
    )
    with client_of(handle) as client:
        monkeypatch.setattr(client._connection, "sleep", lambda _: None)
        with pytest.raises(InvalidInputError):
            client.create_reservation({"pool_id": "p", "duration": "1h"})
    keys = {json.loads(request.content)["idempotency_key"] for request in asked}
    assert len(asked) == 3
    assert len(keys) == 1
    assert len(keys.pop()) == 24


def test_two_asks_have_two_keys_and_a_given_key_is_kept():
    answers = [
        httpx2.Response(200, json={"items": [], "plans": []}),
        httpx2.Response(200, json={"items": [], "plans": []}),
    ]
    handle, asked = answering(*answers)
    with client_of(handle) as client:
        for _ in answers:
            client.create_reservations([{"idempotency_key": "mine"}, {}])
    keys = [
        [each["idempotency_key"] for each in json.loads(request.content)["reservations"]]
        for request in asked
    ]
    assert [pair[0] for pair in keys] == ["mine", "mine"]
    assert keys[0][1] != keys[1][1]


def test_ids_and_filters_are_written_so_that_nothing_in_them_changes_the_address():
    handle, asked = answering(
        httpx2.Response(200, json=EMPTY),
        httpx2.Response(
            404, text=problem_of(NotFoundError("x")).model_dump_json(), headers=PROBLEM
        ),
    )
    with client_of(handle) as client:
        client.list_atoms(bookable=False, gpu_id="a&limit=1", class_="gpu.mig")
        with pytest.raises(NotFoundError):
            client.get_reservation("../pools?x")
    assert asked[0].url.params.multi_items() == [
        ("gpu_id", "a&limit=1"),
        ("class", "gpu.mig"),
        ("bookable", "false"),
        ("limit", "100"),
    ]
    assert asked[1].url.raw_path == b"/v1/reservations/..%2Fpools%3Fx"
    assert asked[0].headers["authorization"] == "Bearer apt_x"


@pytest.mark.parametrize(
    "url", ["", "test", "ftp://test", "http://", "http://a b", "http://h:99999", "http://[::1"]
)
def test_what_is_no_address_of_a_server_is_refused(url):
    with pytest.raises(InvalidInputError) as caught:
        Client(url, "apt_x")
    assert (caught.value.field, caught.value.given) == ("url", url)


@pytest.mark.parametrize("token", ["", "a b", "apt_\n", "apt_é"])
def test_what_cannot_be_a_token_is_refused_and_not_repeated(token):
    with pytest.raises(UnauthenticatedError) as caught:
        Client("http://test", token)
    assert caught.value.given is None


def test_the_environment_says_where_the_server_is_and_which_token_to_use(tmp_path):
    (tmp_path / "token").write_text("apt_file\n")
    kept = {"APPORTION_TOKEN_FILE": str(tmp_path / "token")}
    with Client.from_environment(kept) as client:
        assert client.url == "http://127.0.0.1:7070"
        assert client._connection._http.headers["authorization"] == "Bearer apt_file"
    given = {**kept, "APPORTION_URL": "https://gpu.example/", "APPORTION_TOKEN": "apt_env"}
    with Client.from_environment(given) as client:
        assert client.url == "https://gpu.example"
        assert client._connection._http.headers["authorization"] == "Bearer apt_env"


def test_a_tenant_is_named_only_where_one_is_acted_for():
    handle, asked = answering(*[httpx2.Response(200, json=EMPTY) for _ in range(2)])
    for tenant in (None, "acme"):
        with client_of(handle, tenant=tenant) as client:
            client.list_pools()
    assert [each.headers.get("apportion-tenant") for each in asked] == [None, "acme"]


def test_the_environment_says_which_tenant_is_acted_for():
    kept = {"APPORTION_TOKEN": "apt_x"}
    for given, named in (
        ({}, None),
        ({"APPORTION_TENANT": ""}, None),
        ({"APPORTION_TENANT": "a"}, "a"),
    ):
        with Client.from_environment({**kept, **given}) as client:
            assert client._connection._http.headers.get("apportion-tenant") == named


@pytest.mark.parametrize("tenant", ["", "a b", "a\r\nX: y", "é"])
def test_what_cannot_be_a_tenant_is_refused(tenant):
    with pytest.raises(InvalidInputError) as caught:
        Client("http://test", "apt_x", tenant=tenant)
    assert (caught.value.field, caught.value.given) == ("tenant", tenant)


def test_without_a_token_the_error_says_what_to_set():
    with pytest.raises(UnauthenticatedError) as caught:
        Client.from_environment({})
    assert "APPORTION_TOKEN" in caught.value.hint
    assert "APPORTION_TOKEN_FILE" in caught.value.hint


def test_a_token_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UnauthenticatedError) as caught:
            Client.from_environment({"APPORTION_TOKEN_FILE": str(path)})
        assert (caught.value.field, caught.value.given) == ("APPORTION_TOKEN_FILE", str(path))


def test_a_proxy_is_not_asked_for_what_runs_on_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Client("http://localhost:7070", "apt_x") as near, Client("http://h:1", "apt_x") as far:
        assert not near._connection._http.trust_env
        assert far._connection._http.trust_env
