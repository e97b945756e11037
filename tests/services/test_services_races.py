"""Sixteen processes, each with a picture of its own, book the same units at once."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from services_world import World, world_on

from apportion.errors import ApportionError, ConflictError
from apportion.nodes.service import import_inventories
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
RACERS = 16
HOUR = timedelta(hours=1)


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn, size=RACERS + 4) as pool, world_on(pool) as world:
        yield world


async def racers(world: World, *pools):
    """Give sixteen services whose pictures all show the pools as they are now."""
    services = [Reservations(world.runtime) for _ in range(RACERS)]
    for service in services:
        async with world.db.connection() as connection:
            await service.fleet.sync(connection, [pool.id for pool in pools], world.clock())
    return services


async def race(world: World, services, requests):
    """Let each service make its request at once; return what became of each."""
    return await asyncio.gather(
        *(
            service.create(world.caller, request)
            for service, request in zip(services, requests, strict=True)
        ),
        return_exceptions=True,
    )


def states(outcomes):
    return Counter(
        each.state if not isinstance(each, Exception) else type(each) for each in outcomes
    )


async def test_whole_gpus_go_to_as_many_as_there_are(world: World):
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(8))))
    services = await racers(world, pool)
    outcomes = await race(world, services, [ask(pool.id, device())] * RACERS)
    assert states(outcomes) == {"active": 8, "pending": 8}
    assert len({view.bookings[0].gpu_id for view in outcomes if view.bookings}) == 8
    assert {view.reason["code"] for view in outcomes if not view.bookings} == {"units_booked"}


async def test_what_does_not_overlap_is_all_placed(world: World):
    pool = await world.pool(pool_of("T4", "mps", replicas=16), inventory("n1", gpu("T4", 0)))
    services = await racers(world, pool)
    outcomes = await race(world, services, [ask(pool.id, device("gpu.slot"))] * RACERS)
    assert states(outcomes) == {"active": RACERS}


async def test_instances_and_unsplit_gpus_go_to_as_many_as_there_are(world: World):
    halves = [gpu("H100", index, "3g.40gb@0", "3g.40gb@4") for index in range(3)]
    whole = [gpu("H100", index) for index in range(3, 5)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *halves, *whole))
    services = await racers(world, pool)
    half = ask(pool.id, device("gpu.mig", profile="3g.40gb"))
    outcomes = await race(world, services, [half, ask(pool.id, device())] * (RACERS // 2))
    assert states(outcomes[::2]) == {"active": 6, "pending": 2}
    assert states(outcomes[1::2]) == {"active": 2, "pending": 6}


async def test_windows_that_meet_do_not_clash_and_those_that_overlap_do(world: World):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    services = await racers(world, pool)
    requests = [
        ask(pool.id, device(), start=MONDAY + (n % 8) * HOUR, duration="1h") for n in range(RACERS)
    ]
    outcomes = await race(world, services, requests)
    placed = [view for view in outcomes if view.bookings]
    assert sorted(view.start for view in placed) == [MONDAY + n * HOUR for n in range(8)]
    assert len(outcomes) - len(placed) == 8


async def test_the_host_is_never_promised_twice(world: World):
    pool = await world.pool(
        pool_of("H100"),
        *(inventory(n, gpu("H100", 0, node=n), cpus=10) for n in ("n1", "n2", "n3")),
    )
    services = await racers(world, pool)
    outcomes = await race(world, services, [ask(pool.id, vcpu=3)] * RACERS)
    assert states(outcomes) == {"active": 9, "pending": 7}


async def test_several_gpus_in_opposite_orders_are_all_or_none(world: World):
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(4))))
    services = await racers(world, pool)

    def both(first: str, second: str):
        one, other = (device(where=[("gpuUuid", "In", [uuid])]) for uuid in (first, second))
        return ask(pool.id, one, other, duration="1h")

    pairs = [("GPU-n1-0", "GPU-n1-3"), ("GPU-n1-3", "GPU-n1-0")]
    for _ in range(4):
        requests = [both(*pairs[n % 2]) for n in range(RACERS)]
        outcomes = await race(world, services, requests)
        assert states(outcomes) == {"active": 1, "pending": RACERS - 1}
        assert [len(view.bookings) for view in outcomes if view.bookings] == [2]
        for view in outcomes:
            if not view.bookings:
                await services[0].release(world.caller, view.id)
        world.clock.advance(hours=1)
        await services[0].lifecycle.advance()


async def test_redeals_race_with_inserts_and_every_slot_is_used(world: World):
    """Half of the racers run across two windows whose holders lie in each other's way."""
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=8), inventory("n1", gpu("T4", 0), gpu("T4", 1))
    )
    slot = device("gpu.slot")
    first, second, end = MONDAY + HOUR, MONDAY + 2 * HOUR, MONDAY + 3 * HOUR
    early = [await world.create(ask(pool.id, slot, start=first, end=second)) for _ in range(16)]
    for view in early[::2]:
        await world.release(view)
    late = [await world.create(ask(pool.id, slot, start=second, end=end)) for _ in range(8)]
    taken = Counter(
        (view.bookings[0].gpu_id, view.start) for view in [*early[1::2], *late] if view.bookings
    )
    room = sum(
        8 - max(taken[uuid, first], taken[uuid, second]) for uuid in ("GPU-n1-0", "GPU-n1-1")
    )
    services = await racers(world, pool)
    across = [ask(pool.id, slot, start=first, end=end)] * 8
    short = [ask(pool.id, slot, start=end, duration="1h")] * 8
    outcomes = await race(world, services, across + short)
    assert states(outcomes[8:]) == {"placed": 8}
    assert states(outcomes[:8])["placed"] == min(room, 8) > 0
    assert (await world.create(across[0])).state == ("placed" if room > 8 else "pending")


async def test_a_new_cut_races_with_bookings_and_none_lies_on_what_is_gone(world: World):
    cuts = [("3g.40gb@4", "3g.40gb@0"), ("3g.40gb@4", "2g.20gb@0", "2g.20gb@2")]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *cuts[0])))
    services = await racers(world, pool)
    for number in range(12):
        cut = cuts[(number + 1) % 2]
        requests = [ask(pool.id, device("gpu.mig"), duration="1h")] * 4
        outcomes = await asyncio.gather(
            race(world, services[:4], requests),
            import_inventories(
                world.runtime, world.caller, pool.id, [inventory("n1", gpu("H100", 0, *cut))]
            ),
        )
        refused = [each for each in outcomes[0] if isinstance(each, Exception)]
        assert all(isinstance(each, ConflictError) for each in refused)
        assert await world.findings() == []
        for view in outcomes[0]:
            if not isinstance(view, Exception):
                await services[4].release(world.caller, view.id)


async def test_a_mixed_crowd_leaves_nothing_half_done(world: World):
    """Everything at once, for a while: the auditor finds nothing, and each answer is in words."""
    shared = await world.pool(
        pool_of("T4", "mps", shares=100, quota={"gpu.share": 500, "vcpu": 40}),
        *(inventory(n, *(gpu("T4", i, node=n) for i in range(2)), cpus=12) for n in ("n1", "n2")),
    )
    services = await racers(world, shared)

    async def person(number: int) -> list[Exception]:
        service, bad = services[number], []
        for step in range(6):
            units = 10 + 13 * ((number * 7 + step * 5) % 7)
            start = MONDAY + ((number + step) % 3) * HOUR
            request = ask(
                shared.id,
                device("gpu.share", count=1 + step % 2, units=units),
                vcpu=step % 3,
                start=start,
                duration=f"{1 + number % 3}h",
                key=f"{number // 2}/{step}",
            )
            try:
                view = await service.create(world.caller, request)
                if step % 2:
                    await service.release(world.caller, view.id)
            except ApportionError as error:
                bad.append(error)
        return bad

    refused = await asyncio.gather(*(person(number) for number in range(RACERS)))
    codes = Counter(error.code for errors in refused for error in errors)
    # Twins ask with different windows under one key, which is a conflict in itself.
    assert set(codes) <= {"CONFLICT", "QUOTA_EXCEEDED"}
    assert await world.findings() == []
    for hour in range(1, 7):
        world.clock.now = MONDAY + hour * HOUR
        await asyncio.gather(*(service.lifecycle.advance() for service in services[:4]))
        assert await world.findings() == []
    assert await world.used(shared) == {}
