"""Thirty-two who reserve while the pool is taken away: nothing is there after the archive."""

import asyncio
from dataclasses import dataclass, field

import pytest
from pools_acting import archive, limits, offer, unoffer, update
from services_world import world_on

from apportion.authority.service import Caller
from apportion.errors import ApportionError, NotFoundError
from apportion.pools.service import close_gates_of, hold_records
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool, transaction
from apportion.tenants.service import delete_tenant
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
RACERS = 32
MACHINES = 40


@pytest.fixture
async def world(dsn: str):
    async with open_pool(dsn, size=RACERS + 6) as pool, world_on(pool) as world:
        yield world


async def crowded(world, sharing="exclusive"):
    """Give a pool with more room than all of them take, offered to acme."""
    machines = [
        inventory(name, *(gpu("H100", index, node=name) for index in range(8)))
        for name in (f"n{number}" for number in range(MACHINES))
    ]
    pool = await world.pool(pool_of("H100", sharing), *machines)
    acme = await world.tenant("acme")
    await offer(world, pool, acme, {"gpu": 1000})
    return pool, acme


@dataclass
class Race:
    """What thirty-two were told, each on a server of its own, until the pool was not there."""

    told: list[str] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    under_way: asyncio.Event = field(default_factory=asyncio.Event)
    there: set[str] = field(default_factory=set)

    async def reserve(self, world, caller, pool):
        service = Reservations(world.runtime)
        while True:
            try:
                [made] = await service.create_many(caller, [ask(pool.id, device())])
            except ApportionError as error:
                made = error
            if isinstance(made, Exception):
                self.refusals.append(made)
                return
            self.told.append(made)
            if len(self.told) > RACERS:
                self.under_way.set()


async def race(world, callers, pool, take_away):
    """Let all reserve, take the pool away in the middle, and note what is placed just then."""
    race = Race()
    racers = [
        asyncio.create_task(race.reserve(world, callers[n % len(callers)], pool))
        for n in range(RACERS)
    ]
    await race.under_way.wait()
    await take_away()
    race.there = await live(world)
    await asyncio.gather(*racers)
    assert len(race.refusals) == RACERS
    return race


async def live(world):
    rows = await world.rows("SELECT id FROM reservations WHERE state IN ('placed', 'active')")
    return {row["id"] for row in rows}


async def check_quotas(world, pool, *callers):
    for caller in callers:
        rows = await world.rows(
            "SELECT count(*)::int AS count FROM reservations"
            " WHERE charged_tenant_id = %s AND state IN ('placed', 'active')",
            caller.tenant_id,
        )
        used = (await limits(world, caller, pool))["gpu"][1]
        assert int(used) == rows[0]["count"]


async def test_nothing_is_placed_after_an_archive_has_committed_nor_for_the_owner(world):
    pool, acme = await crowded(world)
    seen = await race(world, [world.caller, acme], pool, lambda: archive(world, pool))
    there = seen.there
    assert await live(world) == there
    assert len(there) > RACERS
    assert {type(each) for each in seen.refusals} == {NotFoundError}
    # What was admitted before and placed after waits, and was told so; the next try fails it.
    waiting = await world.rows("SELECT id, reason FROM reservations WHERE state = 'pending'")
    assert {row["reason"]["code"] for row in waiting} <= {"pool_archived"}
    assert set(seen.told) == there | {row["id"] for row in waiting}
    await world.tick(seconds=1)
    assert await world.rows("SELECT FROM reservations WHERE state = 'pending'") == []
    assert await live(world) == there
    await check_quotas(world, pool, world.caller, acme)
    assert (await limits(world, acme, pool))["gpu"][0] == (await limits(world, acme, pool))["gpu"][
        1
    ]


async def test_nothing_is_placed_for_the_tenant_after_its_offer_has_gone(world):
    pool, acme = await crowded(world)
    seen = await race(world, [acme], pool, lambda: unoffer(world, pool, acme))
    assert await live(world) == seen.there
    assert len(seen.there) > RACERS
    assert {type(each) for each in seen.refusals} == {NotFoundError}
    most, used = (await limits(world, acme, pool))["gpu"]
    assert most == used == str(len(seen.there))
    await check_quotas(world, pool, acme)
    assert (await world.create(ask(pool.id, device()))).state == "active"


async def test_a_deleted_tenant_has_nothing_that_runs_whoever_was_faster(world):
    pool, acme = await crowded(world)
    lab = await world.tenant("acme-lab", above="acme")
    await offer(world, pool, acme, {"gpu": 1000}, include_descendants=True)

    async def take_away():
        done = await delete_tenant(world.runtime, world.caller, lab.tenant_id)
        assert done.ended_reservations > RACERS

    await race(world, [lab], pool, take_away)
    assert await live(world) == set()
    await world.tick(seconds=1)
    assert await world.rows("SELECT FROM reservations WHERE state = 'pending'") == []
    assert (await limits(world, acme, pool))["gpu"] == ("1000", "0")


@pytest.mark.parametrize("change", ["archive", "unoffer", "offer", "update", "delete"])
async def test_whatever_changes_who_may_use_a_pool_waits_for_who_is_being_placed(
    world, monkeypatch, change
):
    """Stopped between looking who may and writing, which is where it would go wrong."""
    pool, acme = await crowded(world)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*pools):
        inside.set()
        await go_on.wait()
        return await sync(*pools)

    async def change_it():
        match change:
            case "archive":
                await archive(world, pool)
            case "unoffer":
                await unoffer(world, pool, acme)
            case "offer":
                await offer(world, pool, acme, {"gpu": 1})
            case "update":
                await update(world, pool, 1, policy={"maxPending": "1h"})
            case _:
                await delete_tenant(world.runtime, world.caller, acme.tenant_id)

    sync = world.reservations.fleet.sync
    monkeypatch.setattr(world.reservations.fleet, "sync", slowly)
    placing = asyncio.create_task(world.reservations.create(acme, ask(pool.id, device())))
    await inside.wait()
    changing = asyncio.create_task(change_it())
    done, _ = await asyncio.wait([changing, placing], timeout=0.4)
    assert not done
    go_on.set()
    await changing
    made = await placing
    view = await world.reservations.get(acme, made.id)
    assert view.state == ("ended" if change == "delete" else "active")


async def test_an_archive_of_a_busy_pool_is_not_put_off_for_ever(world):
    """Who comes after it waits for it, however many are inside and however fast they come."""
    pool, acme = await crowded(world)
    inside, crowd, closed, entered = 0, asyncio.Event(), asyncio.Event(), []

    async def come_and_go(number):
        nonlocal inside
        while not closed.is_set():
            async with transaction(world.db) as connection:
                await hold_records(connection, acme, [pool.id])
                inside += 1
                entered.append(number)
                if inside >= 8:
                    crowd.set()
                await asyncio.sleep(0.02 + number % 5 / 500)  # never all of them at once
                inside -= 1

    people = [asyncio.create_task(come_and_go(number)) for number in range(16)]
    await crowd.wait()
    before = len(entered)
    await asyncio.wait_for(archive(world, pool), 5)
    closed.set()
    await asyncio.gather(*people)
    # Those inside, and nobody twice, between the asking and the closing and the hint to stop.
    assert len(entered) - before < 16 * 3


async def test_gates_of_other_pools_and_tenants_stay_open(world):
    _, acme = await crowded(world)
    other = await world.pool(pool_of("H100", name="other"))
    async with transaction(world.db) as closing, transaction(world.db) as placing:
        await close_gates_of(closing, acme.tenant_id)
        found = await asyncio.wait_for(hold_records(placing, world.caller, [other.id]), 5)
        assert set(found) == {other.id}
        waits = asyncio.create_task(
            hold_records(placing, Caller("acme", "tok", ancestors=("root", "acme")), [other.id])
        )
        done, _ = await asyncio.wait([waits], timeout=0.3)
        assert not done
        waits.cancel()
        await asyncio.wait([waits])
        await placing.cancel_safe()
