"""Delivering to a real receiver: signed, in order, what was asked for, and never elsewhere."""

import asyncio

import pytest
from events_outbox import CALLER, event, write, written
from webhooks_receiver import LOCAL

from apportion.authority.service import Caller
from apportion.store.connections import open_pool
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY
from apportion.webhooks import service
from apportion.webhooks.dispatcher import Dispatcher
from apportion.webhooks.schemas import WebhookCreate, WebhookUpdate

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


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
