"""Many servers want the same at once: somebody gets it, whole, and nobody an error for it."""

import asyncio
from datetime import timedelta
from fractions import Fraction

import pytest
from services_world import World, world_on
from test_services_races import RACERS, race, racers, states

from apportion.bookings import service as bookings
from apportion.bookings.service import NewBooking
from apportion.errors import ApportionError, ConflictError, InvalidStateError
from apportion.reservations.schemas import ReservationUpdate
from apportion.store.connections import open_pool, retrying
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
HOUR = timedelta(hours=1)


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn, size=RACERS + 4) as pool, world_on(pool) as world:
        yield world


async def at_once(*work):
    return await asyncio.gather(*work, return_exceptions=True)


async def test_bookings_written_in_opposite_orders_end_in_one_winner_and_no_error(world: World):
    """Below the service, which would hold both GPUs first: here each holds one and wants the other.

    The database ends one of the two, which starts over and finds both taken.
    """
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    rows = await world.rows("SELECT id, layout_generation FROM gpus ORDER BY id")
    owners = [await world.create(ask(pool.id, vcpu=1)) for _ in range(2)]
    for number in range(4):
        both_hold_one = asyncio.Barrier(2)
        start = MONDAY + number * 2 * HOUR

        async def book(owner, gpus, start=start, both_hold_one=both_hold_one):
            tries = []

            async def work(connection):
                tries.append(owner)
                got = set()
                for piece, row in enumerate(gpus):
                    new = booking(pool, row, owner, start, piece)
                    if await bookings.hold_gpus(connection, [new]):
                        got |= await bookings.insert(connection, [new])
                    if piece == 0 and len(tries) == 1:
                        await both_hold_one.wait()
                if len(got) < len(gpus):
                    await bookings.withdraw(connection, [owner])
                    return 0
                return len(got)

            return await retrying(world.db, work)

        got = await asyncio.gather(book(owners[0].id, rows), book(owners[1].id, rows[::-1]))
        assert sorted(got) == [0, 2]
        await world.rows("DELETE FROM bookings")


def booking(pool, row, owner, start, piece):
    return NewBooking(
        tenant_id="root",
        pool_id=pool.id,
        gpu_id=row["id"],
        reservation_id=owner,
        piece=piece,
        device=0,
        cls="gpu",
        atom_id=None,
        generation=row["layout_generation"],
        units=-1,
        start=start,
        end=start + HOUR,
        held_until=start + HOUR,
        share=Fraction(1),
    )


async def test_pieces_asked_for_in_opposite_orders_on_hosts_too_are_all_or_none(world: World):
    """GPUs, CPU of their node and quotas: whatever is locked, it is locked in one order."""
    pool = await world.pool(
        pool_of("H100", quota={"gpu": 100, "vcpu": 100, "gpuEquivalents": "unlimited"}),
        *(inventory(n, *(gpu("H100", i, node=n) for i in range(2)), cpus=8) for n in ("n1", "n2")),
    )
    services = await racers(world, pool)
    for _ in range(3):
        requests = []
        for number in range(RACERS):
            node = ("n1", "n2")[number // 2 % 2]
            pair = (f"GPU-{node}-0", f"GPU-{node}-1")[:: 1 if number % 2 else -1]
            pieces = [device(where=[("gpuUuid", "In", [uuid])]) for uuid in pair]
            requests.append(ask(pool.id, *pieces, vcpu=5))
        outcomes = await race(world, services, requests)
        assert states(outcomes) == {"active": 2, "pending": RACERS - 2}
        ids = [view.id for view in outcomes]
        # And they are given back in any order, by many, each more than once.
        ended = await at_once(
            *(
                services[at % RACERS].release(world.caller, each)
                for at, each in enumerate(ids + ids[::-1])
            )
        )
        assert {view.state for view in ended} == {"ended"}
        assert await world.used(pool) == {}
        assert await world.findings() == []


async def test_who_keeps_longer_and_who_comes_new_race_for_the_same_hour_and_one_gets_it(
    world: World,
):
    gpus = [gpu("H100", index) for index in range(4)]
    pool = await world.pool(pool_of("H100"), inventory("n1", *gpus))
    services = await racers(world, pool)
    for number in range(4):
        start = MONDAY + 10 * number * HOUR
        kept = [
            await world.create(ask(pool.id, device(), start=start, duration="1h")) for _ in gpus
        ]
        outcomes = await at_once(
            *(
                service.update(world.caller, view.id, ReservationUpdate(duration="2h"))
                for service, view in zip(services, kept, strict=False)
            ),
            *(
                service.create(world.caller, ask(pool.id, device(), start=start + HOUR))
                for service in services[4:]
            ),
        )
        longer = [each for each in outcomes[:4] if not isinstance(each, Exception)]
        refused = [each for each in outcomes[:4] if isinstance(each, Exception)]
        assert all(isinstance(each, ConflictError) for each in refused)
        placed = [view for view in outcomes[4:] if view.state == "placed"]
        assert len(longer) + len(placed) == len(gpus)
        assert states(outcomes[4:])["pending"] == RACERS - 4 - len(placed)
        assert await world.findings() == []


async def test_neighbours_that_swap_their_ends_at_once_never_wait_for_each_other(world: World):
    """Each lies on two GPUs and gets longer or shorter, over and over; some collide, none hangs."""
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(4))))
    services = await racers(world, pool)
    views = [
        await world.create(ask(pool.id, device(count=2), start=MONDAY + at * HOUR, duration="1h"))
        for at in (1, 1, 3, 3, 5, 5)
    ]
    lengths = ("1h", "2h", "90m", "3h")

    async def change(number):
        outcomes = []
        for step in range(6):
            view = views[(number * 5 + step) % len(views)]
            change = ReservationUpdate(duration=lengths[(number + step) % len(lengths)])
            try:
                await services[number].update(world.caller, view.id, change)
                outcomes.append("changed")
            except ConflictError as error:
                outcomes.append(error.message)
        return outcomes

    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*(change(number) for number in range(RACERS)))
    told = {each for own in outcomes for each in own}
    assert told <= {"changed", "others have booked units of its GPU by then"}
    assert len(told) == 2
    assert await world.findings() == []


async def test_what_waits_is_placed_once_whoever_tries_it(world: World):
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(3))))
    holder = await world.create(ask(pool.id, device(count=3)))
    waiting = []
    for _ in range(5):
        world.clock.advance(seconds=1)
        waiting.append(await world.create(ask(pool.id, device())))
    services = await racers(world, pool)
    await services[0].release(world.caller, holder.id)
    await asyncio.gather(*(service.lifecycle.retry_pending() for service in services))
    found = [(await world.get(view)).state for view in waiting]
    assert found == ["active"] * 3 + ["pending"] * 2  # the oldest first
    told = await world.rows(
        "SELECT subject FROM events WHERE type = 'reservation.placed' AND subject = ANY (%s)",
        [view.id for view in waiting],
    )
    assert sorted(row["subject"] for row in told) == sorted(view.id for view in waiting[:3])
    assert await world.used(pool) == {"gpu": 3}


async def test_an_end_that_everybody_sees_is_one_end(world: World):
    """The clock of all servers, and callers who release at that very instant."""
    pool = await world.pool(pool_of("H100"), inventory("n1", *(gpu("H100", i) for i in range(8))))
    services = await racers(world, pool)
    views = [await world.create(ask(pool.id, device(), duration="1h")) for _ in range(8)]
    world.clock.advance(hours=1)
    outcomes = await at_once(
        *(service.lifecycle.end_due() for service in services[:8]),
        *(s.release(world.caller, v.id) for s, v in zip(services[8:], views, strict=True)),
        *(
            s.update(world.caller, v.id, ReservationUpdate(duration="2h"))
            for s, v in zip(services[8:], views[::-1], strict=True)
        ),
    )
    assert all(isinstance(each, InvalidStateError) for each in outcomes[16:])
    assert not any(isinstance(each, ApportionError) for each in outcomes[:16])
    told = await world.rows("SELECT subject FROM events WHERE type = 'reservation.ended'")
    assert sorted(row["subject"] for row in told) == sorted(view.id for view in views)
    assert {(await world.get(view)).reason["code"] for view in views} == {"expired"}
    assert await world.used(pool) == {}


async def test_gangs_over_the_same_nodes_are_placed_kept_longer_and_let_go_all_or_none(
    world: World,
):
    """Every member needs GPU and CPU of its node; whoever locks the nodes locks them in order."""
    nodes = [inventory(n, *(gpu("H100", i, node=n) for i in range(2)), cpus=8) for n in "abc"]
    pool = await world.pool(pool_of("H100"), *nodes)
    services = await racers(world, pool)
    gang = ask(pool.id, device(), duration="1h", vcpu=4, gang={"members": 3, "apart": True})
    for _ in range(3):
        outcomes = await race(world, services, [gang] * RACERS)
        assert states(outcomes) == {"active": 2, "pending": RACERS - 2}
        placed = [view for view in outcomes if view.bookings]
        assert [sorted(each.node for each in view.bookings) for view in placed] == [[*"abc"]] * 2
        longer = await at_once(
            *(
                service.update(world.caller, view.id, ReservationUpdate(duration="3h"))
                for service, view in zip(services, placed * 8, strict=True)
            )
        )
        assert {(view.state, view.end) for view in longer} == {("active", MONDAY + 3 * HOUR)}
        assert await world.findings() == []
        for service, view in zip(services, outcomes, strict=True):
            await service.release(world.caller, view.id)
        assert await world.used(pool) == {}
