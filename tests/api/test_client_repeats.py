"""What is sent again, what is not, and what is said where nobody can know what was done."""

import json

import httpx2
import pytest

from apportion.client import Client
from apportion.doors.problems import problem_of
from apportion.errors import ConflictError, InvalidStateError, NotFoundError, UnavailableError
from apportion.pools.schemas import PoolUpdate

POOL = {
    "id": "pool_1",
    "name": "p",
    "owner_tenant_id": "root",
    "site_id": "site_1",
    "region": "fra1",
    "class": "metal-host",
    "gpu_model": "H100",
    "sharing": "exclusive",
    "agent": "none",
    "provider_account_id": None,
    "policy": {"maxPending": "6h"},
    "version": 2,
    "owned": True,
    "archived": False,
    "created_at": "2026-01-01T00:00:00Z",
    "quotas": [],
}
TOKEN = {
    "id": "tok_1",
    "tenant_id": "root",
    "name": "ci",
    "role": "viewer",
    "actions": ["*"],
    "created_by": "tok_0",
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
    "state": "active",
}
WANTED = {"version": 1, "policy": {"maxPending": "6h"}}


def refused(error):
    problem = problem_of(error, "req_1")
    headers = {"Content-Type": "application/problem+json", "Retry-After": "0"}
    return httpx2.Response(problem.status, text=problem.model_dump_json(), headers=headers)


def conflict():
    there = {"there": 2, "asked": 1}
    return refused(ConflictError("version 2 is there", field="version", given=1, details=there))


BROKEN = httpx2.ReadError("reset")
UNSENT = httpx2.ConnectError("Connection refused")
LATE = httpx2.ReadTimeout("timed out")
AWAY = UnavailableError("the database took too long")


class Server:
    """Answers in turn; what it was asked is kept."""

    def __init__(self, *answers):
        self.asked = []
        self._answers = [*answers]

    def __call__(self, request):
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def methods(self):
        return [each.method for each in self.asked]


@pytest.fixture
def client_of(monkeypatch):
    def make(server):
        client = Client("http://test", "apt_x", transport=httpx2.MockTransport(server))
        monkeypatch.setattr(client._connection, "sleep", lambda _: None)
        return client

    return make


@pytest.mark.parametrize("swallowed", [BROKEN, "away"], ids=["broken", "503"])
def test_an_update_whose_answer_was_swallowed_is_read_back_where_it_was_done(client_of, swallowed):
    first = refused(AWAY) if swallowed == "away" else swallowed
    server = Server(first, conflict(), httpx2.Response(200, json=POOL))
    with client_of(server) as client:
        pool = client.update_pool("pool_1", WANTED)
    assert (pool.version, pool.policy) == (2, {"maxPending": "6h"})
    assert server.methods == ["PATCH", "PATCH", "GET"]


def test_what_an_update_leaves_out_may_be_anything(client_of):
    server = Server(BROKEN, conflict(), httpx2.Response(200, json=POOL))
    with client_of(server) as client:
        assert client.update_pool("pool_1", PoolUpdate.model_validate(WANTED)).version == 2


@pytest.mark.parametrize(
    "there",
    [
        {"policy": {"maxPending": "1h"}},
        {"policy": {"maxPending": "6h", "acceptance": []}},
        {"version": 3},
    ],
    ids=["another policy", "a policy with more", "a later version"],
)
def test_an_update_that_somebody_else_may_have_overtaken_is_a_conflict(client_of, there):
    server = Server(BROKEN, conflict(), httpx2.Response(200, json={**POOL, **there}))
    with client_of(server) as client, pytest.raises(ConflictError) as caught:
        client.update_pool("pool_1", WANTED)
    assert caught.value.details["uncertain"] is True
    assert caught.value.details["there"] == 2
    assert "may have done it" in caught.value.hint


@pytest.mark.parametrize("before", [[], [UNSENT]], ids=["at once", "after none was reached"])
def test_a_conflict_that_no_try_of_ours_can_have_made_stands(client_of, before):
    server = Server(*before, conflict())
    with client_of(server) as client, pytest.raises(ConflictError) as caught:
        client.update_pool("pool_1", WANTED)
    assert "uncertain" not in caught.value.details
    assert caught.value.hint is None
    assert "GET" not in server.methods


def test_a_swallowed_secret_is_a_conflict_that_says_what_to_do(client_of):
    server = Server(BROKEN, refused(ConflictError("was issued", hint="Rotate it")))
    with client_of(server) as client, pytest.raises(ConflictError) as caught:
        client.create_token({"name": "ci", "role": "viewer"})
    keys = {json.loads(each.content)["idempotency_key"] for each in server.asked}
    assert len(server.asked) == 2
    assert len(keys) == 1
    assert caught.value.hint.startswith("Rotate it. ")
    assert caught.value.details["uncertain"] is True


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.rotate_token("tok_1"),
        lambda client: client.rotate_webhook_secret("hook_1"),
        lambda client: client.resend_delivery("hook_1", "7"),
    ],
    ids=["rotate_token", "rotate_webhook_secret", "resend_delivery"],
)
def test_what_does_more_when_done_twice_is_repeated_only_where_nothing_was_sent(client_of, ask):
    for swallowed in (BROKEN, refused(AWAY)):
        server = Server(UNSENT, swallowed)
        with client_of(server) as client, pytest.raises(UnavailableError) as caught:
            ask(client)
        assert len(server.asked) == 2
        assert caught.value.details["uncertain"] is True
        assert "look before you ask again" in caught.value.hint


def test_a_rotation_that_never_reached_a_server_is_sent_again(client_of):
    issued = {"token": "apt_new", "record": TOKEN}
    server = Server(UNSENT, UNSENT, httpx2.Response(200, json=issued))
    with client_of(server) as client:
        assert client.rotate_token("tok_1", {"overlap": "1h"}).token == "apt_new"
    assert {each.content for each in server.asked} == {b'{"overlap":"1h"}'}


def test_what_may_have_been_done_is_told_from_what_cannot_have_been(client_of):
    for answers, uncertain in (
        ([LATE], True),
        ([BROKEN, UNSENT, UNSENT], True),
        ([UNSENT] * 3, False),
    ):
        server = Server(*answers)
        with client_of(server) as client, pytest.raises(UnavailableError) as caught:
            client.create_site({"name": "fra1", "region": "fra1"})
        assert len(server.asked) == len(answers)
        assert ("uncertain" in caught.value.details) is uncertain


def test_reading_leaves_nothing_uncertain(client_of):
    with client_of(Server(LATE)) as client, pytest.raises(UnavailableError) as caught:
        client.get_pool("pool_1")
    assert "uncertain" not in caught.value.details


@pytest.mark.parametrize("error", [NotFoundError("no such site"), InvalidStateError("has ended")])
def test_a_refusal_that_a_swallowed_try_may_have_caused_says_so(client_of, error):
    for before, uncertain in (([BROKEN], True), ([UNSENT], False), ([], False)):
        server = Server(*before, refused(error))
        with client_of(server) as client, pytest.raises(type(error)) as caught:
            client.delete_site("site_1")
        assert ("uncertain" in caught.value.details) is uncertain


def test_only_what_was_swallowed_is_sent_again(client_of):
    server = Server(refused(NotFoundError("no such pool")))
    with client_of(server) as client, pytest.raises(NotFoundError):
        client.archive_pool("pool_1")
    assert len(server.asked) == 1
