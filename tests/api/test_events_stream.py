"""The stream of events over HTTP: what is on the wire, where it goes on, and when it ends."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import httpx2
import pytest
import uvicorn

from apportion.authority.service import Caller, issue_token
from apportion.events.feed import Feed
from apportion.events.service import Event, append
from apportion.server.launch import _listen, _serving
from apportion.server.system import System
from apportion.store.connections import transaction

pytestmark = pytest.mark.anyio

CALLER = Caller("root", "tok_anna", "req_1")
MOMENT = timedelta(milliseconds=20)


@pytest.fixture
def write(runtime):
    async def write(*subjects, type_="pool.updated", tenant_id="root", **data):
        async with transaction(runtime.db) as connection:
            events = [Event(type_, tenant_id, subject, data) for subject in subjects]
            await append(connection, CALLER, runtime.now(), events)

    return write


def parsed(text):
    """Parse server-sent events as the HTML standard says; comments are left out."""
    messages = []
    for block in text.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
        if fields:
            messages.append(fields)
    return messages


async def read(http, headers=None, **query):
    answer = await http.get(
        "/v1/events/stream", params={"until": "now", **query}, headers=headers or {}
    )
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def subjects(messages):
    return [json.loads(each["data"])["subject"] for each in messages if "data" in each]


async def test_an_event_is_a_cloudevent_under_its_position_and_type(http, write):
    await write("pool_1", name="h100")
    answer = await http.get("/v1/events/stream?from=start&until=now")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    begun, told, end = parsed(answer.text)
    assert (begun["id"], "data" in begun) == ("0.0", False)
    [listed] = (await http.get("/v1/events")).json()["items"]
    assert told["event"] == "pool.updated"
    assert told["id"] == listed["id"]
    assert json.loads(told["data"]) == listed
    assert listed == {
        "specversion": "1.0",
        "id": told["id"],
        "source": "/apportion",
        "type": "pool.updated",
        "subject": "pool_1",
        "time": "2026-03-02T09:00:00Z",
        "datacontenttype": "application/json",
        "tenantid": "root",
        "actor": "tok_anna",
        "requestid": "req_1",
        "data": {"name": "h100"},
    }
    assert "data" not in end
    assert await read(http, {"Last-Event-ID": end["id"]}) != []
    assert subjects(await read(http, {"Last-Event-ID": end["id"]})) == []


async def test_it_goes_on_after_the_last_event_id(http, write):
    await write("a", "b", "c")
    told = [each for each in await read(http, **{"from": "start"}) if "data" in each]
    again = await read(http, {"Last-Event-ID": told[0]["id"]})
    assert subjects(again) == ["b", "c"]
    # A browser sends the first URL again: where it was then is not where it is now.
    again = await read(http, {"Last-Event-ID": told[1]["id"]}, **{"from": "start"})
    assert subjects(again) == ["c"]


async def test_it_goes_on_where_the_list_ended(http, write):
    await write("a", "b", "c")
    page = (await http.get("/v1/events?limit=2")).json()
    assert subjects(await read(http, cursor=page["next_cursor"])) == ["c"]


async def test_without_a_position_it_begins_now(http, write):
    await write("before")
    assert subjects(await read(http)) == []


async def test_its_filters_are_those_of_the_list(http, write):
    await write("a", "b")
    await write("a", type_="node.joined")
    start = {"from": "start"}
    assert subjects(await read(http, subject="a", **start)) == ["a", "a"]
    assert subjects(await read(http, type="node.", **start)) == ["a"]


async def test_a_tenant_is_told_only_what_it_is_told(http, write, runtime):
    async with transaction(runtime.db) as connection:
        await connection.execute(
            "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
            " VALUES ('acme', 'root', '{root,acme}', 'Acme', now())"
        )
    await write("roots")
    await write("acmes", tenant_id="acme")
    start = {"from": "start"}
    assert subjects(await read(http, {"Apportion-Tenant": "acme"}, **start)) == ["acmes"]
    assert subjects(await read(http, **start)) == ["roots"]


@pytest.mark.parametrize(
    ("headers", "query", "field"),
    [
        ({"Last-Event-ID": "x"}, {}, "Last-Event-ID"),
        ({"Last-Event-ID": "1"}, {}, "Last-Event-ID"),
        ({"Last-Event-ID": f"{2**63}.0"}, {}, "Last-Event-ID"),
        ({"Last-Event-ID": f"{2**62}.0"}, {}, "Last-Event-ID"),
        ({}, {"cursor": "x"}, "cursor"),
        ({}, {"cursor": "WyJsaXN0X2V2ZW50cyIsIngiXQ"}, "cursor"),
        ({}, {"from": "yesterday"}, "from"),
        ({}, {"until": "noon"}, "until"),
        ({}, {"typ": "pool."}, "typ"),
    ],
)
async def test_what_cannot_be_followed_is_refused_before_it_begins(http, headers, query, field):
    answer = await http.get("/v1/events/stream", params=query, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["field"]) == ("INVALID_INPUT", field)


async def test_a_cursor_and_a_beginning_are_one_too_many(http):
    cursor = (await http.get("/v1/events")).json()["next_cursor"]
    answer = await http.get("/v1/events/stream", params={"cursor": cursor, "from": "now"})
    assert (answer.status_code, answer.json()["field"]) == (400, "from")


async def test_the_document_says_that_it_is_a_stream(http):
    document = (await http.get("/openapi.json")).json()
    answers = document["paths"]["/v1/events/stream"]["get"]["responses"]
    assert list(answers["200"]["content"]) == ["text/event-stream"]
    assert "CloudEvent" in answers["200"]["description"]
    assert list(answers["400"]["content"]) == ["application/problem+json"]


class Listener:
    """Reads a stream from a real socket, a message at a time."""

    def __init__(self, lines):
        self._lines = lines

    async def message(self, seconds=10):
        """Return the next message, a comment as ``:``; None at the end of the stream."""
        fields = {}
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                if not line:
                    return fields
                name, _, value = line.partition(":")
                fields[name or ":"] = value.strip()
        return None

    async def event(self):
        """Return the next message with data; None at the end of the stream."""
        async with asyncio.timeout(10):
            while True:
                message = await self.message()
                if message is None or "data" in message:
                    return message


@asynccontextmanager
async def following(url, token, headers=None, **query):
    async with (
        httpx2.AsyncClient(timeout=None) as client,
        client.stream(
            "GET",
            f"{url}/v1/events/stream",
            params=query,
            headers={"Authorization": f"Bearer {token}", **(headers or {})},
        ) as answer,
    ):
        assert answer.status_code == 200
        async with aclosing(answer.aiter_lines()) as lines:
            listener = Listener(lines)
            begun = await listener.message()
            assert begun is not None
            assert "data" not in begun
            yield listener


@pytest.fixture
async def url(app, runtime):
    """Serve the application on a real socket, its beats quick."""
    app.state.feed = Feed(runtime, look_every=MOMENT, beat_every=5 * MOMENT)
    with _listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        serving = asyncio.create_task(server._serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        app.state.feed.stop()
        server.should_exit = True
        await serving


async def test_what_happens_is_told_while_one_listens_and_beats_between(url, token, write):
    async with following(url, token) as listener:
        await write("news")
        told = await listener.event()
        assert subjects([told]) == ["news"]
        beats = [await listener.message() for _ in range(3)]
        assert all(each[":"] and each["id"] and "data" not in each for each in beats)


async def test_one_that_breaks_off_goes_on_without_a_gap_or_a_repeat(url, token, write):
    seen, last = [], None
    async with following(url, token, **{"from": "start"}) as listener:
        await write("a", "b", "c")
        for _ in range(2):
            told = await listener.event()
            seen.append(told)
            last = told["id"]
    await write("d")
    async with following(url, token, {"Last-Event-ID": last}) as listener:
        seen += [await listener.event() for _ in range(2)]
    assert subjects(seen) == ["a", "b", "c", "d"]


async def test_a_revoked_token_hears_nothing_more(url, runtime, write):
    async with transaction(runtime.db) as connection:
        issued = await issue_token(runtime, connection, tenant_id="root", name="short")
    async with following(url, issued.token) as listener:
        await write("a")
        assert subjects([await listener.event()]) == ["a"]
        async with transaction(runtime.db) as connection:
            await connection.execute(
                "UPDATE tokens SET revoked_at = now() WHERE id = %s", [issued.id]
            )
        assert await listener.event() is None


async def test_a_policy_that_forbids_it_ends_it(url, runtime, token):
    async with following(url, token) as listener:
        async with transaction(runtime.db) as connection:
            await connection.execute(
                "INSERT INTO access_policies (id, tenant_id, name, description, text, created_at,"
                " updated_at) VALUES ('pol_x', 'root', 'stop', '', %s, now(), now())",
                ['forbid(principal, action == Action::"compute:events:read", resource);'],
            )
        assert await listener.event() is None


async def test_who_hangs_up_is_forgotten(url, app, token):
    async with following(url, token):
        assert app.state.feed._followers == 1
    async with asyncio.timeout(5):
        while app.state.feed._followers:  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.01)


async def test_a_server_that_stops_ends_its_streams_at_once(runtime, reservations, token, tmp_path):
    system = System(runtime, reservations, tmp_path / "none", ())
    loop = asyncio.get_running_loop()
    with _listen("127.0.0.1", 0) as socket:
        url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        async with _serving(system, socket, asyncio.Event(), timedelta(minutes=1)):
            listening = asyncio.create_task(hear_out(url, token))
            await asyncio.sleep(0.3)
            assert not listening.done()
            stopped = loop.time()
        assert loop.time() - stopped < 3  # uvicorn alone waits for 5 s, and cuts them off
        assert await listening is None


async def hear_out(url, token):
    async with following(url, token) as listener:
        return await listener.event()
