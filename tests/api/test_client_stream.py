"""The stream of events outlives its connections: nothing is lost, nothing comes twice."""

import asyncio
import threading
import time
from contextlib import ExitStack, aclosing

import httpx2
import pytest

from api_server import served
from apportion.client import AsyncClient, Client
from apportion.client.retries import STREAM_ATTEMPTS
from apportion.doors.problems import problem_of
from apportion.errors import ApportionError, ForbiddenError, UnavailableError
from apportion.events.schemas import EventView
from apportion.testing.builders import pool_of

pytestmark = pytest.mark.anyio

BEGIN = "100.0"
IDS = [f"{xid}.{number}" for xid, number in ((101, 1), (101, 2), (103, 4), (104, 3))]
BROKEN = httpx2.ReadError("reset")


def event(id_):
    return EventView(
        id=id_,
        source="/apportion",
        type="pool.updated",
        subject="pool_1",
        time="2026-01-01T00:00:00Z",
        tenantid="root",
        actor="tok_1",
        data={"text": "two\nlines, ü"},
    )


def frames(after):
    """Write what a server tells who has read up to ``after``."""
    later = [each for each in IDS if IDS.index(each) > (IDS.index(after) if after in IDS else -1)]
    told = f": following\nid: {after or BEGIN}\nretry: 1000\n\n"
    for each in later:
        told += f"id: {each}\nevent: pool.updated\ndata: {event(each).model_dump_json()}\n\n"
    return (told + f": up to here\nid: {IDS[-1]}\n\n").encode()


def streaming(content):
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=content)


def refused(error):
    problem = problem_of(error)
    headers = {"Content-Type": "application/problem+json"}
    return httpx2.Response(problem.status, text=problem.model_dump_json(), headers=headers)


class Breaking:
    """Serves the events; each answer breaks as the next of ``breaks`` says, and then it refuses."""

    def __init__(self, *breaks, chunk=None):
        self.asked = []
        self._breaks = [*breaks]
        self._chunk = chunk

    def __call__(self, request):
        after = request.headers.get("Last-Event-ID")
        self.asked.append(after)
        if not self._breaks:
            return refused(ForbiddenError("no longer"))
        then = self._breaks.pop(0)
        if isinstance(then, httpx2.Response):
            return then
        if isinstance(then, Exception):
            raise then
        return streaming(self._broken(frames(after), then))

    def _broken(self, told, length):
        size = self._chunk or len(told)
        for start in range(0, min(length, len(told)), size):
            yield told[start : min(start + size, length)]
        if length < len(told):
            raise BROKEN


def read(server, pauses=None, **wanted):
    """Return the ids that come, and the error that ends it."""
    found = []
    with Client("http://test", "apt_x", transport=httpx2.MockTransport(server)) as client:
        client._connection.sleep = (pauses if pauses is not None else []).append
        with pytest.raises(ApportionError) as caught:
            found.extend(each.id for each in client.stream_events(**wanted))
    return found, caught.value


def test_wherever_the_connection_breaks_each_event_comes_once():
    for length in range(len(frames(None))):
        found, error = read(Breaking(length, 10_000))
        # What broke before the server told where it stands begins again, as it was asked to.
        assert (length, found) == (length, IDS)
        assert isinstance(error, ForbiddenError)


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_however_the_bytes_are_cut_the_events_are_whole(chunk):
    found, _ = read(Breaking(10_000, chunk=chunk))
    assert found == IDS


def test_an_event_is_all_that_the_server_told():
    with Client("http://test", "apt_x", transport=httpx2.MockTransport(Breaking(10_000))) as client:
        news = client.stream_events()
        assert next(news) == event(IDS[0])
        news.close()


def test_a_break_before_the_first_event_leaves_no_gap():
    server = Breaking(frames(None).index(b"\n\n") + 2, 10_000)
    found, _ = read(server)
    assert server.asked[:2] == [None, BEGIN]
    assert found == IDS


def test_it_goes_on_after_the_last_event_that_was_whole():
    server = Breaking(frames(None).index(b"103.4") + 30, 10_000)
    found, _ = read(server)
    assert server.asked == [None, IDS[1], IDS[-1]]
    assert found == IDS


def test_a_stream_that_ends_is_opened_again_after_as_long_as_the_server_says():
    pauses = []
    server = Breaking(10_000, 10_000, 10_000)
    found, _ = read(server, pauses)
    assert found == IDS
    assert server.asked == [None, IDS[-1], IDS[-1], IDS[-1]]
    assert pauses == [1, 1, 1]


def test_filters_and_where_to_begin_are_asked_for():
    asked = []

    def handle(request):
        asked.append(request)
        return refused(ForbiddenError("no"))

    read(handle, subject="s", type_prefix="pool.", from_="start")
    read(handle, cursor="c", last_event_id="7.1")
    assert asked[0].url.params.multi_items() == [
        ("subject", "s"),
        ("type", "pool."),
        ("from", "start"),
    ]
    assert "last-event-id" not in asked[0].headers
    assert asked[1].url.params.multi_items() == [("cursor", "c")]
    assert asked[1].headers["last-event-id"] == "7.1"
    assert asked[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("opened", [False, True], ids=["never reached", "lost"])
def test_a_server_that_stays_away_ends_it(opened):
    pauses = []
    away = [httpx2.ConnectError("Connection refused")] * 20
    server = Breaking(*([10_000] if opened else []), *away)
    _, error = read(server, pauses)
    assert isinstance(error, UnavailableError)
    # The end of the open stream counts as the first failure: it is no sign that one is there.
    assert len(server.asked) == (STREAM_ATTEMPTS if opened else 3)
    assert all(pause <= 5 for pause in pauses)


def test_a_connection_that_breaks_again_and_again_but_comes_back_never_ends_it():
    stands = frames(None).index(b"\n\n") + 2
    server = Breaking(*[stands] * (STREAM_ATTEMPTS + 5), 10_000)
    found, error = read(server)
    assert found == IDS
    assert isinstance(error, ForbiddenError)


def test_a_stream_may_be_silent_for_longer_than_the_server_says_that_it_lives():
    timeouts = []

    def handle(request):
        timeouts.append(request.extensions["timeout"])
        return refused(ForbiddenError("no"))

    read(handle)
    assert timeouts == [{"connect": 30, "read": 60, "write": 30, "pool": 30}]


def test_a_stream_that_goes_silent_is_opened_again():
    def silent(told):
        yield told
        raise httpx2.ReadTimeout("timed out")

    server = Breaking(streaming(silent(frames(None)[:-4])), 10_000)
    found, _ = read(server)
    assert found == IDS


def test_what_is_no_stream_is_said_to_be_none():
    found, error = read(Breaking(httpx2.Response(200, text="<html>")))
    assert found == []
    assert "event stream" in str(error)
    assert "Apportion server" in error.hint


def test_leaving_the_loop_closes_the_connection():
    closed = []

    def endless():
        try:
            while True:
                yield frames(None)
        finally:
            closed.append(True)

    server = Breaking(streaming(endless()))
    with Client("http://test", "apt_x", transport=httpx2.MockTransport(server)) as client:
        for _ in client.stream_events():
            break
        assert closed == [True]


class Moving(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Reaches the server that runs now, wherever it listens."""

    def __init__(self):
        self.url = None
        self._sync = httpx2.HTTPTransport()
        self._async = httpx2.AsyncHTTPTransport()

    def _aim(self, request):
        if self.url is None:
            raise httpx2.ConnectError("Connection refused")
        there = httpx2.URL(self.url)
        request.url = request.url.copy_with(host=there.host, port=there.port)

    def handle_request(self, request):
        self._aim(request)
        return self._sync.handle_request(request)

    async def handle_async_request(self, request):
        self._aim(request)
        return await self._async.handle_async_request(request)

    def close(self):
        self._sync.close()

    async def aclose(self):
        await self._async.aclose()


def read_until(client, last, found):
    for told in client.stream_events(from_="start"):
        found.append(told.id)
        if told.subject == last:
            return


async def read_until_async(client, last, found):
    async with aclosing(client.stream_events(from_="start")) as news:
        async for told in news:
            found.append(told.id)
            if told.subject == last:
                return


def wait_for_more(*lists, more=4):
    seen = [len(each) + more - 1 for each in lists]
    deadline = time.monotonic() + 30
    while not all(len(each) > before for each, before in zip(lists, seen, strict=True)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


def write(client, stop, made):
    while not stop.is_set():
        made.append(client.create_pool(pool_of("H100", name=f"p{len(made)}")))


async def test_both_clients_read_on_while_the_server_is_stopped_and_started(dsn):
    moving, written = Moving(), threading.Event()
    with ExitStack() as stack:
        writer = stack.enter_context(served(dsn))
        writing = stack.enter_context(Client(writer.url, writer.token))
        reading = stack.enter_context(Client("http://moving", writer.token, transport=moving))
        found, found_async, made = [], [], []
        # The last event's object exists only at the end: its id is told to the readers then.
        last = Last()
        async with AsyncClient("http://moving", writer.token, transport=moving) as client:
            moving.url = writer.url
            work = [
                asyncio.create_task(asyncio.to_thread(write, writing, written, made)),
                asyncio.create_task(asyncio.to_thread(read_until, reading, last, found)),
                asyncio.create_task(read_until_async(client, last, found_async)),
            ]
            for _ in range(3):
                reader = served(dsn)
                moving.url = (await asyncio.to_thread(reader.__enter__)).url
                await asyncio.to_thread(wait_for_more, found, found_async)
                moving.url = None
                await asyncio.to_thread(reader.__exit__, None, None, None)
                await asyncio.to_thread(wait_for_more, made)
            moving.url = writer.url
            written.set()
            await work[0]
            last.id = (
                await asyncio.to_thread(writing.create_pool, pool_of("H100", name="last"))
            ).id
            async with asyncio.timeout(30):
                await asyncio.gather(*work[1:])
        listed = [each.id for each in writing.list_events(limit=1000).all()]
    assert len(listed) > 3 * (4 + 4)
    assert found == listed[: len(found)]
    assert found_async == found
    assert len(listed) - len(found) < 5


class Last:
    id = None

    def __eq__(self, other):
        return other == self.id

    __hash__ = None
