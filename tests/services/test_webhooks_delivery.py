"""Delivering to a real receiver: signed, at least once, tried again, given up, never elsewhere."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest
from events_outbox import event, write, written
from webhooks_receiver import LOCAL, receiving

from apportion.authority.service import ROOT, Caller
from apportion.errors import InvalidStateError
from apportion.store.connections import open_pool
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY
from apportion.webhooks import dispatcher as dispatching
from apportion.webhooks import service
from apportion.webhooks.dispatcher import LEASE, PAUSES, Dispatcher
from apportion.webhooks.schemas import WebhookCreate, WebhookUpdate

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

CALLER = Caller(ROOT, "tok_test", "req_test")


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


class Hooks:
    """A webhook of root, made after its own creation was told, and a dispatcher."""

    def __init__(self, world, receiver):
        self.world = world
        self.runtime = world.runtime
        self.receiver = receiver
        self.dispatcher = Dispatcher(world.runtime, LOCAL)

    async def make(self, name="hook", url=None, caller=CALLER, **fields):
        request = WebhookCreate(name=name, url=url or self.receiver.url, **fields)
        issued = await service.create_webhook(self.runtime, caller, request, LOCAL)
        await self.dispatcher.advance()
        self.receiver.received.clear()
        return issued

    async def deliveries(self, issued, **filters):
        return await service.list_deliveries(
            self.runtime, CALLER, issued.webhook.id, limit=1000, **filters
        )

    async def get(self, issued):
        return await service.get_webhook(self.runtime, CALLER, issued.webhook.id)

    async def rows(self):
        return await self.world.rows("SELECT * FROM deliveries ORDER BY id")


async def until(happened):
    """Wait for what another thread does."""
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110 - no event of this loop tells it
            await asyncio.sleep(0.01)


def tell_when_settled(dispatcher, webhook_id):
    """Return an event that is set once an attempt to send to a webhook is written down."""
    settle, settled = dispatcher._settle, asyncio.Event()

    async def settle_and_tell(each, *arguments):
        await settle(each, *arguments)
        if each == webhook_id:
            settled.set()

    dispatcher._settle = settle_and_tell
    return settled


@pytest.fixture
def hooks(world, receiver):
    return Hooks(world, receiver)


async def test_what_happens_is_posted_signed_as_a_cloudevent(hooks, world, receiver):
    issued = await hooks.make()
    await write(world.runtime, event("pool_1", "pool.updated", name="h100"))
    assert await hooks.dispatcher.advance() == 1
    [received] = receiver.received
    assert received.path == "/hook?for=test"
    assert received.headers["content-type"] == "application/cloudevents+json"
    assert received.headers["host"] == receiver.url.split("/")[2]
    assert received.headers["user-agent"].startswith("apportion/")
    assert received.headers["webhook-timestamp"] == str(int(world.clock().timestamp()))
    assert received.is_signed_with(issued.secret)
    told = received.event
    assert told["specversion"] == "1.0"
    assert (told["type"], told["subject"], told["tenantid"]) == ("pool.updated", "pool_1", "root")
    assert told["data"] == {"name": "h100"}
    assert await hooks.rows() == []
    assert await hooks.dispatcher.advance() == 0


async def test_the_first_message_is_that_the_webhook_was_made(hooks, receiver):
    request = WebhookCreate(name="hook", url=receiver.url)
    issued = await service.create_webhook(hooks.runtime, CALLER, request, LOCAL)
    await hooks.dispatcher.advance()
    [received] = receiver.received
    assert (received.event["type"], received.event["subject"]) == (
        "webhook.created",
        issued.webhook.id,
    )
    assert received.is_signed_with(issued.secret)
    assert issued.secret.encode() not in received.body


async def test_only_the_types_that_were_asked_for_are_sent(hooks, world, receiver):
    await hooks.make(types=["pool.", "node.joined"])
    await write(
        world.runtime,
        *(event(name, name) for name in ("pool.created", "node.joined", "node.reported", "poo.x")),
    )
    await hooks.dispatcher.advance()
    assert receiver.subjects == ["pool.created", "node.joined"]


async def test_a_webhook_is_told_only_what_its_own_tenant_is_told(hooks, world, receiver):
    await world.rows(
        "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
        " VALUES ('acme', 'root', '{root,acme}', 'Acme', now())"
    )
    await hooks.make(caller=Caller("acme", "tok_acme"))
    await write(world.runtime, event("roots"), event("acmes", tenant_id="acme"))
    await hooks.dispatcher.advance()
    assert receiver.subjects == ["acmes"]


async def test_events_come_in_the_order_of_the_outbox(hooks, world, receiver):
    await hooks.make()
    async with written(world.runtime, event("first")):
        await write(world.runtime, event("second"))
        assert await hooks.dispatcher.advance() == 0
    await write(world.runtime, *(event(f"e{number}") for number in range(520)))
    assert await hooks.dispatcher.advance() == 522
    assert receiver.subjects == ["first", "second", *(f"e{number}" for number in range(520))]
    assert receiver.connections < 100  # they are kept open from one to the next


async def test_what_had_not_ended_when_the_webhook_was_made_is_sent_too(hooks, world, receiver):
    request = WebhookCreate(name="hook", url=receiver.url, types=["pool."])
    await write(world.runtime, event("ended before"))
    async with written(world.runtime, event("ends after")):
        await service.create_webhook(world.runtime, CALLER, request, LOCAL)
        await hooks.dispatcher.advance()
    await hooks.dispatcher.advance()
    assert receiver.subjects == ["ends after"]


async def test_a_failed_delivery_is_tried_again_later_and_later_for_a_day(hooks, world, receiver):
    issued = await hooks.make()
    receiver.answers = [500] * 50
    await write(world.runtime, event())
    waited = timedelta()
    for number, pause in enumerate(PAUSES, 1):
        assert await hooks.dispatcher.advance() == 1
        [told] = await hooks.deliveries(issued)
        assert (told.state, told.attempts) == ("pending", number)
        assert (told.last_status, told.last_error) == (500, "answered 500 Internal Server Error")
        assert told.next_at == world.clock() + pause
        world.clock.now += pause - timedelta(seconds=1)
        assert await hooks.dispatcher.advance() == 0
        world.clock.advance(seconds=1)
        waited += pause
    assert timedelta(hours=23) < waited < timedelta(hours=25)
    assert await hooks.dispatcher.advance() == 1
    [dead] = await hooks.deliveries(issued, state="dead")
    assert (dead.attempts, dead.event.subject) == (11, "pool_1")
    world.clock.advance(days=30)
    assert await hooks.dispatcher.advance() == 0
    assert len(receiver.received) == 11
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
    assert len({each.headers["webhook-timestamp"] for each in receiver.received}) == 11
    assert all(each.is_signed_with(issued.secret) for each in receiver.received)
    assert (await hooks.get(issued)).dead == 1


async def test_a_dead_one_that_is_sent_again_starts_anew(hooks, world, receiver):
    issued = await hooks.make()
    receiver.answers = [500] * 12
    await write(world.runtime, event())
    for _ in range(11):
        await hooks.dispatcher.advance()
        world.clock.advance(hours=8)
    [dead] = await hooks.deliveries(issued, state="dead")
    again = await service.resend_delivery(world.runtime, CALLER, issued.webhook.id, dead.id)
    assert (again.state, again.attempts, again.next_at) == ("pending", 0, world.clock())
    assert await hooks.dispatcher.advance() == 2  # it fails; that it was sent again arrives
    [told] = await hooks.deliveries(issued)
    assert (told.state, told.attempts) == ("pending", 1)
    with pytest.raises(InvalidStateError, match="on its way"):
        await service.resend_delivery(world.runtime, CALLER, issued.webhook.id, dead.id)
    world.clock.advance(seconds=10)
    assert await hooks.dispatcher.advance() == 1
    assert await hooks.rows() == []


async def test_a_failed_one_does_not_hold_up_those_after_it(hooks, world, receiver):
    await hooks.make()
    receiver.answers = [503]
    await write(world.runtime, event("a"), event("b"), event("c"))
    await hooks.dispatcher.advance()
    world.clock.advance(seconds=10)
    await hooks.dispatcher.advance()
    assert receiver.subjects == ["a", "b", "c", "a"]


async def test_one_that_dies_between_sending_and_noting_it_is_sent_again(
    hooks, world, receiver, monkeypatch
):
    await hooks.make()
    await write(world.runtime, event("a"), event("b"))

    async def die(*_):
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(hooks.dispatcher, "_settle", die)
        with pytest.raises(RuntimeError):
            await hooks.dispatcher.advance()
    another = Dispatcher(world.runtime, LOCAL)
    assert await another.advance() == 0  # the claim holds as long as it could still be sending
    world.clock.now += LEASE
    assert await another.advance() == 2
    assert receiver.subjects == ["a", "a", "b"]
    first, again, _ = receiver.received
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert first.body == again.body
    assert await hooks.rows() == []


async def test_one_that_took_longer_than_its_claim_does_not_undo_anothers_work(
    hooks, world, receiver
):
    issued = await hooks.make()
    loop = asyncio.get_running_loop()

    def outlast(handler):
        world.clock.now += LEASE
        another = Dispatcher(world.runtime, LOCAL).advance()
        assert asyncio.run_coroutine_threadsafe(another, loop).result(5) == 1
        handler.answer(500)

    receiver.answers = [outlast, 503]
    await write(world.runtime, event("a"))
    assert await hooks.dispatcher.advance() == 1
    [told] = await hooks.deliveries(issued)
    assert (told.attempts, told.last_status) == (1, 503)
    assert told.next_at == world.clock() + PAUSES[0]


async def test_what_was_read_but_not_sent_survives_a_restart(hooks, world, receiver):
    await hooks.make()
    await write(world.runtime, event("a"))
    assert await hooks.dispatcher.queue() == 1
    await write(world.runtime, event("b"))
    assert await Dispatcher(world.runtime, LOCAL).advance() == 2
    assert receiver.subjects == ["a", "b"]


async def test_several_servers_share_the_work_and_send_nothing_twice(hooks, world, receiver, dsn):
    await hooks.make()
    await hooks.make("other", types=["node."])
    await write(world.runtime, *(event(f"e{number}") for number in range(150)))
    async with open_pool(dsn) as db:
        runtime = Runtime(db, world.clock, key=KEY)
        servers = [Dispatcher(each, LOCAL) for each in (runtime, world.runtime, runtime)]
        attempts = await asyncio.gather(*(each.advance() for each in servers))
    assert sum(attempts) == 150
    assert sorted(receiver.subjects) == sorted(f"e{number}" for number in range(150))
    assert await hooks.rows() == []


async def test_a_webhook_without_an_answer_holds_up_no_other(hooks, world, receiver):
    with receiving() as silent:
        issued = await hooks.make("silent", url=silent.url)
        await hooks.make("other")
        release = threading.Event()
        silent.answers = [lambda handler: (release.wait(10), handler.answer(204))] * 5
        hooks.dispatcher = Dispatcher(world.runtime, LOCAL, timeout=timedelta(seconds=2))
        await write(world.runtime, event("a"))
        noted = tell_when_settled(hooks.dispatcher, issued.webhook.id)
        running = asyncio.create_task(hooks.dispatcher.run())
        await until(lambda: receiver.received and silent.received)
        assert not noted.is_set()
        await asyncio.wait_for(noted.wait(), 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        release.set()
    assert (await hooks.deliveries(issued))[0].last_error == "no answer within 2 s"


async def test_the_work_goes_on_after_the_database_was_away(hooks, world, receiver, monkeypatch):
    await hooks.make()
    monkeypatch.setattr(dispatching, "LOOK_EVERY", timedelta(milliseconds=10))
    queue = hooks.dispatcher.queue
    failures = [service.NotFoundError("away"), service.NotFoundError("away")]

    async def fail_twice():
        if failures:
            raise failures.pop()
        return await queue()

    monkeypatch.setattr(hooks.dispatcher, "queue", fail_twice)
    running = asyncio.create_task(hooks.dispatcher.run())
    await write(world.runtime, event("a"))
    await until(lambda: receiver.received)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert receiver.subjects == ["a"]


async def test_a_disabled_one_is_sent_nothing_and_enabled_again_what_comes_then(
    hooks, world, receiver
):
    issued = await hooks.make()
    receiver.answers = [500]
    await write(world.runtime, event("waits"))
    await hooks.dispatcher.advance()
    receiver.received.clear()

    async def enable(version, enabled):
        await service.update_webhook(
            world.runtime,
            CALLER,
            issued.webhook.id,
            WebhookUpdate(version=version, enabled=enabled),
        )

    await enable(1, enabled=False)
    await write(world.runtime, event("unheard"))
    world.clock.advance(hours=1)
    assert await hooks.dispatcher.advance() == 0
    await enable(2, enabled=True)
    await write(world.runtime, event("heard"))
    await hooks.dispatcher.advance()
    assert receiver.subjects == ["waits", issued.webhook.id, "heard"]


async def test_one_that_answers_gone_is_disabled(hooks, world, receiver):
    issued = await hooks.make()
    receiver.answers = [410]
    await write(world.runtime, event("a"))
    await hooks.dispatcher.advance()
    webhook = await hooks.get(issued)
    assert (webhook.enabled, webhook.version, webhook.dead) == (False, 2, 1)
    [dead] = await hooks.deliveries(issued)
    assert (dead.last_status, dead.last_error) == (410, "answered 410 Gone")
    await write(world.runtime, event("b"))
    assert await hooks.dispatcher.advance() == 0
    [told] = await world.rows(
        "SELECT actor, before, after FROM events WHERE type = 'webhook.updated'"
    )
    assert told["actor"] == "system"
    assert (told["before"]["enabled"], told["after"]["enabled"]) == (True, False)


async def test_a_redirect_is_not_followed(hooks, world, receiver):
    issued = await hooks.make()
    with receiving() as elsewhere:
        receiver.answers = [lambda handler: handler.answer(307, Location=elsewhere.url)]
        await write(world.runtime, event("a"))
        await hooks.dispatcher.advance()
        assert elsewhere.received == []
    [told] = await hooks.deliveries(issued)
    assert told.last_error == "answered 307 Temporary Redirect: redirects are not followed"


async def test_of_an_answer_nothing_is_kept_and_a_long_one_is_not_read(hooks, world, receiver):
    issued = await hooks.make()

    def flood(handler):
        handler.send_response(500)
        handler.send_header("Content-Length", str(2**40))
        handler.end_headers()
        with suppress(OSError):
            for _ in range(100_000):
                handler.wfile.write(b"inner secret " * 1000)
            pytest.fail("a gigabyte was read")

    receiver.answers = [flood]
    await write(world.runtime, event("a"))
    started = time.monotonic()
    await hooks.dispatcher.advance()
    assert time.monotonic() - started < 5
    [told] = await hooks.deliveries(issued)
    assert "secret" not in (told.last_error or "")
    assert len(told.last_error or "") < 200


async def test_who_speaks_another_protocol_is_not_quoted(hooks, world, receiver):
    issued = await hooks.make()

    def mumble(handler):
        handler.wfile.write(b"SSH-2.0-inner secret\r\n\r\n")
        handler.close_connection = True

    receiver.answers = [mumble]
    await write(world.runtime, event("a"))
    await hooks.dispatcher.advance()
    [told] = await hooks.deliveries(issued)
    assert told.last_error == "the connection broke, or what answers there does not speak HTTP"


async def test_where_nobody_listens_is_told_in_a_line(hooks, world):
    with receiving() as closed:
        url = closed.url
    request = WebhookCreate(name="closed", url=url)
    issued = await service.create_webhook(world.runtime, CALLER, request, LOCAL)
    await hooks.dispatcher.advance()
    [told] = await hooks.deliveries(issued)
    assert told.last_status is None
    assert told.last_error.startswith("cannot connect: ")


async def test_an_address_that_is_not_allowed_is_never_connected_to(hooks, world, receiver):
    """The URL was allowed when it was made, or its name means something else by now."""
    issued = await hooks.make()
    named = await hooks.make("named", url=receiver.url.replace("127.0.0.1", "localhost"))
    connections = receiver.connections
    strict = Dispatcher(world.runtime)
    await write(world.runtime, event("a"))
    assert await strict.advance() == 2
    assert receiver.connections == connections
    for each, host in ((issued, "127.0.0.1"), (named, "localhost")):
        [told] = await hooks.deliveries(each)
        assert told.last_error.startswith(f"{host} has no address that webhooks may reach")


async def test_a_rotated_secret_signs_the_next_attempt(hooks, world, receiver):
    issued = await hooks.make()
    receiver.answers = [401]
    await write(world.runtime, event("a"))
    await hooks.dispatcher.advance()
    rotated = await service.rotate_secret(world.runtime, CALLER, issued.webhook.id)
    assert rotated.secret != issued.secret
    world.clock.advance(seconds=10)
    receiver.received.clear()
    await hooks.dispatcher.advance()
    assert receiver.received
    assert all(each.is_signed_with(rotated.secret) for each in receiver.received)
    assert not any(each.is_signed_with(issued.secret) for each in receiver.received)


async def test_what_waits_goes_with_the_webhook(hooks, world, receiver):
    issued = await hooks.make()
    receiver.answers = [500]
    await write(world.runtime, event("a"))
    await hooks.dispatcher.advance()
    await service.delete_webhook(world.runtime, CALLER, issued.webhook.id)
    world.clock.advance(hours=1)
    assert await hooks.dispatcher.advance() == 0
    assert await hooks.rows() == []


async def test_one_that_is_deleted_while_it_is_sent_to_is_no_trouble(hooks, world, receiver):
    issued = await hooks.make()
    loop = asyncio.get_running_loop()

    def delete_first(handler):
        deleting = service.delete_webhook(world.runtime, CALLER, issued.webhook.id)
        asyncio.run_coroutine_threadsafe(deleting, loop).result(5)
        handler.answer(410)

    receiver.answers = [delete_first]
    await write(world.runtime, event("a"))
    assert await hooks.dispatcher.advance() == 1
    assert await hooks.rows() == []


async def test_looking_for_news_where_there_is_none_writes_nothing(hooks, world):
    await hooks.make()
    await hooks.dispatcher.advance()
    counter = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS next"
    before = await world.rows(counter)
    for _ in range(5):
        await hooks.dispatcher.advance()
    # Locking a webhook's row takes one transaction id each time, and nothing more.
    after = await world.rows(counter)
    assert int(after[0]["next"]) - int(before[0]["next"]) <= 5
    assert await world.rows("SELECT 1 FROM webhooks WHERE version <> 1") == []


async def test_a_secret_stands_in_no_table_and_no_log(hooks, world, receiver, caplog, capsys):
    caplog.set_level("DEBUG")
    issued = await hooks.make()
    rotated = await service.rotate_secret(world.runtime, CALLER, issued.webhook.id)
    receiver.answers = [500, 410]
    await write(world.runtime, event("a"))
    await hooks.dispatcher.advance()
    tables = await world.rows(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    kept = [await world.rows(f"SELECT t::text FROM {each['relname']} AS t") for each in tables]  # noqa: S608
    printed = capsys.readouterr()
    everything = str(kept) + caplog.text + printed.out + printed.err
    assert issued.webhook.id in everything
    for secret in (issued.secret, rotated.secret):
        assert secret.removeprefix("whsec_") not in everything
