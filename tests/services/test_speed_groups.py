"""What is asked at the same time is placed together, and each ask is as if it had come alone."""

import asyncio
import random
from collections import Counter

import pytest
from pools_acting import limit, limits, offer
from psycopg import OperationalError
from services_world import World, world_on

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.errors import ApportionError, NotFoundError, QuotaExceededError, UnavailableError
from apportion.events.service import list_events
from apportion.pools.service import close_gates_of
from apportion.reservations import placer
from apportion.reservations.placer import GROUP_MAX
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool, transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
CALLERS = 64


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn, size=12) as pool, world_on(pool) as world:
        yield world


async def shared(world, name="shared", nodes=4):
    """Give a pool with more room than anybody here asks for."""
    machines = [
        inventory(
            f"{name}-{node}", *(gpu("T4", index, node=f"{name}-{node}") for index in range(8))
        )
        for node in range(nodes)
    ]
    return await world.pool(pool_of("T4", "mps", shares=100, name=name), *machines)


async def whole(world, name="whole", nodes=12):
    """Give a pool of whole GPUs, which can be offered to others; eight a node."""
    machines = [
        inventory(
            f"{name}-{node}", *(gpu("H100", index, node=f"{name}-{node}") for index in range(8))
        )
        for node in range(nodes)
    ]
    return await world.pool(pool_of("H100", name=name), *machines)


async def at_once(world, asks, callers=None):
    """Ask all at the same time, each caller its own; return what became of each, in order."""
    callers = callers or [world.caller] * len(asks)
    return await asyncio.gather(
        *(
            world.reservations.create(caller, request)
            for caller, request in zip(callers, asks, strict=True)
        ),
        return_exceptions=True,
    )


async def transactions(world, kind="reservation.placed"):
    rows = await world.rows("SELECT count(DISTINCT xid) FROM events WHERE type = %s", kind)
    return rows[0]["count"]


def drawn(draw, count):
    """Draw asks of all kinds that a pool of shares takes; none of them needs another's room."""
    return [
        {
            "devices": [
                device("gpu.share", count=draw.choice((1, 1, 2)), units=draw.randint(1, 9))
                for _ in range(draw.choice((1, 1, 2)))
            ],
            "vcpu": draw.choice((0, 0, 1)),
            "duration": draw.choice(("30m", "1h", "2h")),
            "name": f"r{number}",
        }
        for number in range(count)
    ]


def told_of(view):
    """Return what an ask is told that does not depend on which of equal places it got."""
    return (
        *(view.name, view.state, view.reason["code"], view.start, view.end, view.resources),
        *(view.charges, view.devices, view.charged_tenant_id),
        [(each.device, each.class_, each.share, each.start, each.end) for each in view.bookings],
    )


async def test_asks_that_do_not_compete_get_together_what_they_get_one_by_one(world: World):
    alone, together = await shared(world, "alone"), await shared(world, "together")
    wanted = drawn(random, 48)  # pytest-randomly has seeded it, and says how

    def asks(pool):
        return [ask(pool.id, *each["devices"], **rest(each)) for each in wanted]

    def rest(each):
        return {key: value for key, value in each.items() if key != "devices"}

    one_by_one = [await world.create(request) for request in asks(alone)]
    before = await transactions(world)
    assert before == len(wanted)
    grouped = await at_once(world, asks(together))
    assert [told_of(view) for view in grouped] == [told_of(view) for view in one_by_one]
    assert await world.all_used(alone) == await world.all_used(together)
    assert await transactions(world) - before < len(wanted) / 4


async def test_what_is_told_of_a_group_is_what_is_read_back(world: World):
    pool = await shared(world)
    mig = await world.pool(
        pool_of("H100", "mig"), inventory("m", gpu("H100", 0, "3g.40gb@4", "2g.20gb@0"))
    )
    asks = [ask(pool.id, device("gpu.share", units=3), vcpu=1, memory_gib="0.5")] * 8
    asks += [ask(mig.id, device("gpu.mig", profile="3g.40gb"))] * 3
    views = await at_once(world, asks)
    assert Counter(view.state for view in views) == {"active": 9, "pending": 2}
    assert [await world.get(view) for view in views] == views


async def test_each_of_many_callers_of_several_tenants_gets_its_own_answer(world: World):
    pool = await whole(world)
    tenants = [await world.tenant(f"t{number}") for number in range(4)]
    for tenant in tenants:
        await offer(world, pool, tenant, {"gpu": 100})
    callers = [
        Caller(tenant.tenant_id, f"tok_{at}", f"req_{at}", ancestors=tenant.ancestors)
        for at, tenant in enumerate(tenants * (CALLERS // len(tenants)))
    ]
    asks = [ask(pool.id, device(), name=f"r{at}", key="same") for at in range(CALLERS)]
    views = await at_once(world, asks, callers)
    assert [(view.tenant_id, view.name) for view in views] == [
        (caller.tenant_id, f"r{at}") for at, caller in enumerate(callers)
    ]
    assert len({view.bookings[0].gpu_id for view in views}) == CALLERS
    assert await transactions(world) < CALLERS / 4
    own = {view.id: at for at, view in enumerate(views)}
    for tenant in tenants:
        events = await list_events(world.runtime, tenant, type_prefix="reservation.")
        assert len(events) == CALLERS / len(tenants)
        for event in events:
            caller = callers[own[event.subject]]
            assert (event.actor, event.request_id) == (caller.actor, caller.request_id)
            assert event.tenant_id == caller.tenant_id == tenant.tenant_id
        assert (await limits(world, tenant, pool))["gpu"][1] == str(CALLERS // len(tenants))


async def test_who_may_not_or_has_no_quota_is_refused_alone(world: World):
    pool, other = await whole(world), await whole(world, "other", nodes=1)
    acme, poor = await world.tenant("acme"), await world.tenant("poor")
    for tenant in (acme, poor):
        await offer(world, pool, tenant, {"gpu": 50})
    await limit(world, pool, poor, "gpu", 3)
    pair = device(count=2)
    asks = [ask(pool.id, pair)] * 12 + [ask(other.id, pair)] * 4
    callers = [acme, poor] * 6 + [acme] * 4
    outcomes = await at_once(world, asks, callers)
    assert [type(each) for each in outcomes[12:]] == [NotFoundError] * 4
    assert {each.state for each in outcomes[:12:2]} == {"active"}
    refused = outcomes[1:12:2]
    # In the order in which they came: the first one has it.
    assert refused[0].state == "active"
    assert {type(each) for each in refused[1:]} == {QuotaExceededError}
    assert (await limits(world, poor, pool))["gpu"] == ("3", "2")


async def test_who_comes_first_gets_what_there_is(world: World):
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(5))))
    views = await at_once(world, [ask(pool.id, device()) for _ in range(12)])
    assert [view.state for view in views] == ["active"] * 5 + ["pending"] * 7


async def test_a_group_is_bounded_and_a_larger_batch_goes_whole(world: World):
    pool = await shared(world, nodes=16)
    share = device("gpu.share")
    batches = [[ask(pool.id, share)] * (GROUP_MAX * 3 // 4) for _ in range(2)]
    batches.append([ask(pool.id, share)] * (GROUP_MAX + 10))
    outcomes = await asyncio.gather(
        *(world.reservations.create_many(world.caller, batch) for batch in batches)
    )
    assert [len(set(each)) for each in outcomes] == [len(batch) for batch in batches]
    rows = await world.rows(
        "SELECT count(*) FROM events WHERE type = 'reservation.placed' GROUP BY xid ORDER BY 1"
    )
    assert [row["count"] for row in rows] == [len(batch) for batch in batches]


async def test_a_pool_that_is_kept_closed_holds_up_nobody_elsewhere(world: World):
    busy, free = await whole(world, "busy", nodes=1), await whole(world, "free", nodes=1)
    acme = await world.tenant("acme")
    await offer(world, busy, acme, {"gpu": 4})
    async with transaction(world.db) as closing:
        await close_gates_of(closing, acme.tenant_id)
        held = [asyncio.create_task(world.create(ask(busy.id, device()))) for _ in range(3)]
        view = await asyncio.wait_for(world.create(ask(free.id, device())), 5)
        assert view.state == "active"
        assert not any(task.done() for task in held)
    assert {view.state for view in await asyncio.gather(*held)} == {"active"}


@pytest.mark.parametrize("committed", [True, False])
async def test_a_group_whose_commit_is_not_heard_of_is_there_once_or_placed_again(
    world: World, monkeypatch, *, committed
):
    pool = await shared(world)
    retrying, lost = placer.retrying, []

    async def losing(db, work):
        if lost:
            return await retrying(db, work)

        async def then_lose(connection):
            await work(connection)
            if not committed:
                raise OperationalError("the server closed the connection unexpectedly")

        lost.append(await retrying(db, then_lose) if committed else None)
        if not committed:
            await retrying(db, then_lose)
        raise UnavailableError("the database cannot be reached")

    monkeypatch.setattr(placer, "retrying", losing)
    asks = [ask(pool.id, device("gpu.share"), name=f"r{n}", key=f"k{n}") for n in range(9)]
    views = await at_once(world, asks)
    assert [view.name for view in views] == [f"r{n}" for n in range(9)]
    assert lost
    assert await world.rows("SELECT count(*) FROM reservations") == [{"count": 9}]
    assert [await world.create(request) for request in asks] == views
    assert await world.used(pool) == {"gpu.share": 9}


async def test_connections_that_are_killed_in_a_group_leave_an_honest_answer_for_each(
    world: World, dsn: str
):
    """Whoever is told of a reservation has it; a retry with the key gets one, and only one."""
    pool = await shared(world)
    killed = 0

    async def kill():
        """Kill whoever is at work, so often that all are told at last on a slow machine too."""
        nonlocal killed
        async with open_pool(dsn, size=1) as own:
            for _ in range(60):
                async with own.connection() as connection:
                    rows = await (
                        await connection.execute(
                            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                            " AND datname = current_database() AND state <> 'idle'"
                        )
                    ).fetchall()
                    for row in rows:
                        await connection.execute("SELECT pg_terminate_backend(%s)", [row["pid"]])
                    killed += len(rows)
                await asyncio.sleep(random.uniform(0.002, 0.05))

    async def person(number):
        """Ask until told."""
        request = ask(pool.id, device("gpu.share"), name=f"r{number}", key=f"k{number}")
        while True:
            try:
                return await world.reservations.create(world.caller, request)
            except ApportionError as error:
                assert isinstance(error, UnavailableError)  # noqa: PT017 - others are faults
                await asyncio.sleep(0.01)

    killing = asyncio.create_task(kill())
    views = []
    for wave in range(3):
        views += await asyncio.gather(*(person(wave * 20 + n) for n in range(20)))
    killing.cancel()
    await asyncio.wait([killing])
    assert killed > 0
    assert [view.name for view in views] == [f"r{n}" for n in range(60)]
    assert len({view.id for view in views}) == 60
    assert await world.rows("SELECT count(*) FROM reservations") == [{"count": 60}]
    assert await world.used(pool) == {"gpu.share": 60}
    assert await world.rows("SELECT count(*) FROM events WHERE type = 'reservation.placed'") == [
        {"count": 60}
    ]


async def test_servers_that_place_on_one_pool_clash_once_and_then_take_turns(
    world: World, monkeypatch
):
    pool = await shared(world)
    services = [Reservations(world.runtime) for _ in range(3)]
    hold, lost = bookings.ask_to_hold, []

    async def counted(*given, again, book):
        lost.append(again)
        return await hold(*given, again=again, book=book)

    monkeypatch.setattr(bookings, "ask_to_hold", counted)
    share = device("gpu.share", units=7)
    for _ in range(20):
        views = await asyncio.gather(
            *(service.create(world.caller, ask(pool.id, share)) for service in services)
        )
        assert {view.state for view in views} == {"active"}
    # Each of them lost at most a few times before it knew; else two of three lose every time.
    assert sum(lost) <= 8
    world.reservations = services[0]


def held(world, pool):
    """Count what the picture of a pool has as held."""
    index = world.reservations.fleet.indexes.get(pool.id)
    nodes = () if index is None else index.nodes.values()
    return sum(len(gpu.held) for node in nodes for gpu in node.gpus)


async def until(what):
    for _ in range(500):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def test_the_next_group_decides_while_the_database_writes_one_and_the_third_waits(
    world: World,
):
    pool = await shared(world)
    whole_share = device("gpu.share", units=100)
    async with transaction(world.db) as keeping:
        await keeping.execute("SELECT 1 FROM quotas FOR UPDATE")
        coming = []
        for number in range(1, 3):
            request = ask(pool.id, whole_share)
            coming.append(asyncio.create_task(world.create(request)))
            await until(lambda number=number: held(world, pool) == number)
        coming.append(asyncio.create_task(world.create(ask(pool.id, whole_share))))
        await asyncio.sleep(0.2)
        assert held(world, pool) == 2
        assert not any(task.done() for task in coming)
        assert await world.rows("SELECT 1 FROM reservations") == []
    views = await asyncio.gather(*coming)
    assert len({view.bookings[0].gpu_id for view in views}) == 3
    assert await transactions(world) == 3


async def test_groups_at_work_together_never_take_more_than_a_quota_and_refuse_only_the_rest(
    world: World,
):
    pool = await shared(world)
    size, most = GROUP_MAX * 3 // 4, GROUP_MAX
    await limit(world, pool, world.caller, "gpu.share", most)
    batches = [[ask(pool.id, device("gpu.share"))] * size for _ in range(3)]
    outcomes = await asyncio.gather(
        *(world.reservations.create_many(world.caller, batch) for batch in batches)
    )
    every = [each for batch in outcomes for each in batch]
    assert Counter(type(each) for each in every) == {
        str: most,
        QuotaExceededError: 3 * size - most,
    }
    assert await world.used(pool) == {"gpu.share": most}


async def test_who_loses_to_a_server_that_never_stops_is_placed_at_the_next_try(
    world: World, monkeypatch
):
    pool = await shared(world, nodes=8)
    quick, slow = world.reservations, Reservations(world.runtime)
    hold, lost = bookings.ask_to_hold, []

    async def counted(*given, again, book):
        lost.append(again)
        return await hold(*given, again=again, book=book)

    monkeypatch.setattr(bookings, "ask_to_hold", counted)
    going = True

    async def keep_on():
        while going:
            view = await quick.create(world.caller, ask(pool.id, device("gpu.share")))
            assert view.state == "active"

    placing = [asyncio.create_task(keep_on()) for _ in range(3)]
    try:
        for _ in range(10):
            view = await slow.create(world.caller, ask(pool.id, device("gpu.share")))
            assert view.state == "active"
    finally:
        going = False
        await asyncio.gather(*placing)
    assert sum(lost) <= 8
