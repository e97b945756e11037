"""The outbox is read without a gap or a repeat, whatever the order in which transactions commit."""

import asyncio
import random
from contextlib import aclosing
from datetime import timedelta

import psycopg
import pytest
from events_outbox import CALLER, event, write, written

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.events.feed import Feed, Follow
from apportion.events.service import START, list_events

pytestmark = pytest.mark.anyio

MOMENT = timedelta(milliseconds=10)


async def subjects(world, after=START):
    return [each.subject for each in await list_events(world.runtime, CALLER, after=after)]


async def allowed():
    return None


async def test_what_could_still_be_overtaken_is_not_shown(world):
    async with written(world.runtime, event("began first")):
        await write(world.runtime, event("ended first"))
        assert await subjects(world) == []
    assert await subjects(world) == ["began first", "ended first"]


async def test_a_reader_that_keeps_its_place_misses_nothing_of_a_transaction_that_lingers(world):
    await write(world.runtime, event("before"))
    [before] = await list_events(world.runtime, CALLER)
    async with written(world.runtime, event("lingers")):
        await write(world.runtime, event("overtakes"))
        assert await subjects(world, before.position) == []
    assert await subjects(world, before.position) == ["lingers", "overtakes"]


async def test_what_was_rolled_back_never_happened(world):
    with pytest.raises(RuntimeError, match="stop"):
        async with written(world.runtime, event("undone")):
            raise RuntimeError("stop")
    await write(world.runtime, event("done"))
    assert await subjects(world) == ["done"]


async def test_events_of_one_transaction_keep_their_order(world):
    await write(world.runtime, *(event(f"e{number}") for number in range(50)))
    assert await subjects(world) == [f"e{number}" for number in range(50)]


@pytest.mark.parametrize(
    "text", ["x", "1", "1.", ".1", "-1.0", "1.1e3", "1_0.0", "٣.٣", f"{2**63}.0"]
)
async def test_what_is_no_position_is_refused(world, text):
    with pytest.raises(InvalidInputError, match="not a position"):
        await list_events(world.runtime, CALLER, after=text)


INSERT = (
    "INSERT INTO events (tenant_id, type, subject, actor, data, occurred_at)"
    " VALUES ('root', 'pool.updated', %s, 'tok', '{}', now())"
)


async def write_in_bursts(dsn, number, rng, committed):
    """Commit, abort and linger; ids are taken in one order and commits happen in another."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for turn in range(15):
            names = [f"{number}.{turn}.{at}" for at in range(rng.randint(1, 3))]
            aborts = rng.random() < 0.2
            async with connection.transaction(force_rollback=aborts):
                for name in names:
                    await connection.execute(INSERT, [name])
                    await asyncio.sleep(rng.random() / 100)
            if not aborts:
                committed.update(names)


async def list_to_the_end(runtime, rng, ended, seen):
    position = START
    while True:
        last = ended.is_set()
        page = await list_events(runtime, CALLER, after=position, limit=rng.randint(1, 9))
        seen += [each.subject for each in page]
        if page:
            position = page[-1].position
        elif last:
            return
        await asyncio.sleep(rng.random() / 50)


async def follow_to_the_end(feed, rng, ended, seen):
    """Break off again and again, in the middle of what was told, and go on after that event."""
    position = START
    while not ended.is_set():
        async with aclosing(feed.follow(CALLER, Follow(position=position), allowed)) as following:
            for _ in range(rng.randint(1, 6)):
                news = await anext(following)
                kept = news.events[: rng.randint(1, 5)]
                seen += [each.subject for each in kept]
                position = kept[-1].position if kept else news.position
                if len(kept) < len(news.events):
                    break
    wanted = Follow(position=position, until_now=True)
    async for news in feed.follow(CALLER, wanted, allowed):
        seen += [each.subject for each in news.events]


async def test_readers_see_every_event_once_while_transactions_commit_in_any_order(world, dsn):
    rng = random.Random(7)
    feed = Feed(world.runtime, look_every=MOMENT, beat_every=3 * MOMENT)
    ended = asyncio.Event()
    committed = set()
    readers = [[] for _ in range(4)]
    async with asyncio.TaskGroup() as reading:
        for seen in readers[:2]:
            reading.create_task(list_to_the_end(world.runtime, rng, ended, seen))
        for seen in readers[2:]:
            reading.create_task(follow_to_the_end(feed, rng, ended, seen))
        async with asyncio.TaskGroup() as writing:
            for number in range(12):
                writing.create_task(write_in_bursts(dsn, number, rng, committed))
        ended.set()
    assert len(committed) > 150
    for seen in readers:
        assert len(seen) == len(set(seen))
        assert set(seen) == committed


async def test_a_tenant_reads_only_what_it_is_told(world):
    await world.rows(
        "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
        " VALUES ('acme', 'root', '{root,acme}', 'Acme', now())"
    )
    await write(world.runtime, event("roots"), event("acmes", tenant_id="acme"))
    acme = Caller("acme", "tok_acme")
    assert [each.subject for each in await list_events(world.runtime, acme)] == ["acmes"]
