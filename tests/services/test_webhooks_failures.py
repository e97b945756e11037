"""What fails is sent again, later and later, then given up, and holds up nothing else."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest
from events_outbox import CALLER, event, write
from webhooks_receiver import LOCAL, receiving

from apportion.errors import InvalidStateError
from apportion.webhooks import dispatcher as dispatching
from apportion.webhooks import service
from apportion.webhooks.dispatcher import LEASE, PAUSES, Dispatcher
from apportion.webhooks.schemas import WebhookCreate

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


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
