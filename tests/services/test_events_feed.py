"""Following the events: from where on, how far, until when, and what it costs."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from time import monotonic

import pytest
from events_outbox import CALLER, event, write, written

from apportion.authority.service import Caller
from apportion.errors import ForbiddenError, InvalidInputError
from apportion.events.feed import Feed, Follow
from apportion.events.service import START, list_events
from apportion.store.connections import open_pool
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, Clock

pytestmark = pytest.mark.anyio

MOMENT = timedelta(milliseconds=10)
LONG = timedelta(hours=1)


async def allowed():
    return None


def feed_on(runtime, beat_every=LONG):
    return Feed(runtime, look_every=MOMENT, beat_every=beat_every)


async def take(following, count):
    """Return so many events."""
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += (await anext(following)).events
    return [each.subject for each in found]


async def test_without_a_position_it_begins_now_with_what_has_not_ended_yet(world):
    await write(world.runtime, event("ended"))
    async with written(world.runtime, event("goes on")):
        following = feed_on(world.runtime).follow(CALLER, Follow(), allowed)
        begun = await anext(following)
        assert begun.events == []
    async with aclosing(following):
        await write(world.runtime, event("comes"))
        assert await take(following, 2) == ["goes on", "comes"]
    again = feed_on(world.runtime).follow(CALLER, Follow(position=begun.position), allowed)
    async with aclosing(again):
        assert await take(again, 2) == ["goes on", "comes"]


async def test_it_goes_on_after_a_position_and_ends_when_it_has_caught_up(world):
    await write(world.runtime, *(event(f"e{number}") for number in range(450)))
    there = await list_events(world.runtime, CALLER, limit=1000)
    wanted = Follow(position=there[99].position, until_now=True)
    found = []
    sizes = []
    async for news in feed_on(world.runtime).follow(CALLER, wanted, allowed):
        found += [each.subject for each in news.events]
        sizes.append(len(news.events))
    assert found == [f"e{number}" for number in range(100, 450)]
    assert max(sizes) == 200  # what is not asked for yet is not read yet


async def test_filters_are_those_of_the_list(world):
    await write(
        world.runtime,
        event("a", "pool.created"),
        event("b", "pool.updated"),
        event("a", "node.joined"),
        event("a", "pool.updated", tenant_id="acme"),
    )

    async def told(**filters):
        wanted = Follow(position=START, until_now=True, **filters)
        following = feed_on(world.runtime).follow(CALLER, wanted, allowed)
        return [(each.subject, each.type) async for news in following for each in news.events]

    assert await told(subject="a") == [("a", "pool.created"), ("a", "node.joined")]
    assert await told(type_prefix="pool.") == [("a", "pool.created"), ("b", "pool.updated")]
    assert await told(subject="b", type_prefix="node.") == []


async def test_a_beat_tells_how_far_was_read_so_that_nothing_is_read_twice(world):
    await write(world.runtime, event("others"))
    last = (await list_events(world.runtime, CALLER))[-1].position
    wanted = Follow(position=START, subject="mine")
    async with aclosing(
        feed_on(world.runtime, MOMENT).follow(CALLER, wanted, allowed)
    ) as following:
        assert (await anext(following)).position == START
        beat = await anext(following)
    assert beat.events == []
    assert int(beat.position.partition(".")[0]) > int(last.partition(".")[0])


@pytest.mark.parametrize("position", ["", "7", "a.b", "7.7.7"])
async def test_what_is_no_position_is_refused_before_it_begins(world, position):
    following = feed_on(world.runtime).follow(CALLER, Follow(position=position), allowed)
    with pytest.raises(InvalidInputError) as caught:
        await anext(following)
    assert caught.value.field == "Last-Event-ID"


async def test_a_position_of_another_database_is_refused_instead_of_waiting_for_it(world):
    following = feed_on(world.runtime).follow(CALLER, Follow(position=f"{2**62}.1"), allowed)
    with pytest.raises(InvalidInputError, match="ahead of everything"):
        await anext(following)


async def test_who_may_no_longer_read_is_told_nothing_after_the_next_beat(world):
    may = True

    async def check():
        if not may:
            raise ForbiddenError("no longer")

    following = feed_on(world.runtime, MOMENT).follow(CALLER, Follow(), check)
    async with aclosing(following):
        await anext(following)
        assert (await anext(following)).events == []
        may = False
        with pytest.raises(ForbiddenError):
            await anext(following)


async def test_news_in_quick_succession_do_not_put_the_check_off(world):
    checks = 0

    async def check():
        nonlocal checks
        checks += 1

    following = feed_on(world.runtime, MOMENT).follow(CALLER, Follow(), check)
    async with aclosing(following), asyncio.timeout(10):
        while checks < 3:
            await write(world.runtime, event())
            await anext(following)


async def test_stopping_ends_all_who_wait(world):
    feed = feed_on(world.runtime)

    async def follow_to_the_end():
        return [news async for news in feed.follow(CALLER, Follow(), allowed)]

    waiting = [asyncio.create_task(follow_to_the_end()) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in waiting)
    feed.stop()
    async with asyncio.timeout(1):
        assert [len(each) for each in await asyncio.gather(*waiting)] == [1, 1, 1]


async def test_many_who_wait_hold_no_connection_and_ask_no_more_than_one(world, dsn):
    async with open_pool(dsn, size=1) as db:
        runtime = Runtime(db, Clock(), key=KEY)
        feed = feed_on(runtime)
        followers = [feed.follow(CALLER, Follow(), allowed) for _ in range(30)]
        for each in followers:
            await anext(each)
        waiting = [asyncio.create_task(take(each, 1)) for each in followers]
        await asyncio.sleep(0.2)
        asked, began = db.get_stats()["requests_num"], monotonic()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            looks = db.get_stats()["requests_num"] - asked
            if looks >= 2:
                break
        assert 2 <= looks <= (monotonic() - began) / MOMENT.total_seconds() + 1
        await write(runtime, event("news"))
        assert await asyncio.gather(*waiting) == [["news"]] * 30
        for each in followers:
            await each.aclose()
        await asyncio.sleep(0.1)
        asked = db.get_stats()["requests_num"]
        await asyncio.sleep(0.1)
        assert db.get_stats()["requests_num"] == asked  # nobody waits, nobody looks


async def test_nobody_is_told_what_another_tenant_is_told(world):
    await write(world.runtime, event("roots"), event("acmes", tenant_id="acme"))
    wanted = Follow(position=START, until_now=True)
    following = feed_on(world.runtime).follow(Caller("acme", "tok_acme"), wanted, allowed)
    assert [e.subject async for news in following for e in news.events] == ["acmes"]
