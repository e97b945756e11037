"""Whatever statement it dies at, and whoever else is at work: way is made whole, and once."""

import asyncio
from contextlib import suppress
from random import Random

import pytest
from services_world import world_on
from test_holder_overrun import key, place
from test_overrun_late import BLOCKED
from test_overrun_makes_way import (
    BOUND,
    FREE,
    HOUR,
    MINUTE,
    asked,
    nodes_of,
    one_after_the_other,
)
from test_services_crash import Killer

from apportion.errors import ApportionError
from apportion.nodes.service import KEPT
from apportion.reservations.schemas import ReservationUpdate
from apportion.reservations.service import Reservations
from apportion.store.connections import open_pool
from apportion.testing.builders import MONDAY, ask, device, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
STAYS = 0.8
ROUNDS = 8
TABLES = ("reservations", "bookings", "host_bookings", "assignments", "quotas", "events")


async def rows_of(world):
    return [await world.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in TABLES]  # noqa: S608


async def whole_or_not(world, killer, act):
    """Kill a step at each of its statements; return at how many, and how often something changed.

    Whatever is there then is right by itself.
    """
    stands = [await rows_of(world)]

    async def check():
        found = await rows_of(world)
        if found != stands[-1]:
            stands.append(found)
        assert await world.findings() == []
        assert await world.drift() == {}

    died, _ = await killer.at_each_statement(act, check)
    await check()
    return died, len(stands) - 1


async def test_way_is_made_whole_or_not_at_all_wherever_it_dies(db, monkeypatch):
    async with world_on(db) as world:
        nodes = await nodes_of(world, "n1", "n2")
        held = await place(nodes, duration="1h")
        gang = {"members": 2, "apart": True}
        request = ask(
            nodes.pool.id, device(), vcpu=4, gang=gang, start=MONDAY + HOUR, duration="1h"
        )
        after = await world.create(request)
        on = held.bookings[0].node
        await nodes.say(on, **{key(held): BOUND})
        world.clock.advance(hours=1)
        killer, lifecycle = Killer(monkeypatch), world.reservations.lifecycle
        died, changed = await whole_or_not(world, killer, lifecycle.end_due)
        # The end, and that way is made for it: two transactions, and nothing between them.
        assert (died > 12, changed) == (True, 2)
        view = await world.get(after)
        assert (view.start, view.reason["code"]) == (MONDAY + HOUR + KEPT, "blocked_by_overrun")
        assert await asked(nodes, "n1") == await asked(nodes, "n2") == set()
        await nodes.say(on, **{key(held): FREE})
        died, _ = await whole_or_not(world, killer, lifecycle.retry_pending)
        assert died > 12
        assert (await world.get(after)).start == world.clock()
        told = await world.rows("SELECT type FROM events WHERE subject = %s", after.id)
        kinds = [row["type"].partition(".")[2] for row in told]
        assert (kinds.count("delayed"), kinds.count("moved")) == (1, 1)


async def test_what_failed_is_given_back_once_wherever_it_dies(db, monkeypatch):
    async with world_on(db) as world:
        nodes = await nodes_of(world, "n1")
        _, after = await one_after_the_other(nodes, duration="1m")
        await world.tick(hours=1)
        world.clock.advance(minutes=1)
        lifecycle = world.reservations.lifecycle
        died, changed = await whole_or_not(world, Killer(monkeypatch), lifecycle.end_due)
        # It fails, and its units are kept on for who is there.
        assert (died > 6, changed) == (True, 2)
        assert (await world.get(after)).state == "failed"
        assert await world.used(nodes.pool) == {"gpu": 1}


async def test_many_servers_that_see_who_stays_put_off_the_next_one_once(dsn):
    async with open_pool(dsn, size=12) as db, world_on(db) as world:
        nodes = await nodes_of(world, "n1", gpus=4)
        held = [await place(nodes, duration="1h") for _ in range(4)]
        after = [await place(nodes, start=MONDAY + HOUR, duration="1h") for _ in range(4)]
        await nodes.say(**{key(each): BOUND for each in held})
        world.clock.advance(hours=1)
        servers = [Reservations(world.runtime) for _ in range(6)]
        await asyncio.gather(*(each.lifecycle.advance() for each in servers))
        for each in after:
            assert (await world.get(each)).start == MONDAY + HOUR + KEPT
        told = await world.rows("SELECT subject FROM events WHERE type = 'reservation.delayed'")
        assert sorted(row["subject"] for row in told) == sorted(each.id for each in after)
        await nodes.say(**{key(each): FREE for each in held})
        await asyncio.gather(*(each.lifecycle.advance() for each in servers))
        assert {(await world.get(each)).start for each in after} == {world.clock()}
        assert await asked(nodes) == {each.id for each in after}


async def nobody_else_has_it(world):
    """See that who is still on something has it for themselves, by what is written."""
    return await world.rows(
        "SELECT next.reservation_id FROM assignments"
        " JOIN bookings AS kept ON kept.id = booking_id"
        " JOIN bookings AS next ON next.gpu_id = kept.gpu_id AND next.id <> kept.id"
        " AND next.units && kept.units AND next.voided_at IS NULL"
        " WHERE in_hands AND state = 'withdrawn' AND next.planned @> %s",
        world.clock(),
    )


class Machine:
    """A node on which nobody is on units of another, and most do not leave at once."""

    def __init__(self, nodes, name, random):
        self.nodes, self.name, self.random = nodes, name, random
        self.on = {}

    async def live(self):
        for _ in range(3):
            spec = await self.nodes.spec(self.name)
            rows = {
                f"{each['reservation_id']}__0": each
                for each in spec.units["devices"]["assignments"]
            }
            await self.nodes.say(self.name, **self.words(rows))

    def words(self, wanted):
        words = {}
        for one in [one for one in self.on if one not in wanted]:
            if self.random.random() < STAYS:
                words[one] = {"state": "ending", "reason": "holder_still_there"}
            else:
                words[one] = FREE
                del self.on[one]
        for one, row in wanted.items():
            taken = {unit for other, units in self.on.items() if other != one for unit in units}
            units = {(row["gpu"], slot) for slot in row.get("slots", [0])}
            if units & taken:
                words[one] = BLOCKED
            else:
                self.on[one] = units
                words[one] = BOUND
        return words


async def deadlocks(world):
    """Count those that the database has broken up: locks are taken in one order."""
    await world.rows("SELECT pg_stat_force_next_flush()")
    [row] = await world.rows(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return row["deadlocks"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
async def test_making_way_beside_whoever_asks_releases_and_moves_ends(dsn, seed):
    """Callers, nodes and three servers at once; the clock goes on between the rounds."""
    print(f"seed {seed}")  # noqa: T201
    random = Random(seed)
    async with open_pool(dsn, size=16) as db, world_on(db) as world:
        pool = pool_of("H100", "timeslice", replicas=4) if seed == 1 else pool_of("H100")
        nodes = await nodes_of(world, "n1", "n2", gpus=2, pool=pool)
        wanted = device("gpu.slot", units=2) if seed == 1 else device()
        servers = [Reservations(world.runtime) for _ in range(3)]
        made = []

        async def caller(server):
            for _ in range(4):
                length, later = random.choice([1, 2, 5]), random.choice([0, 0, 1, 2])
                start = world.clock() + later * MINUTE if later else None
                request = ask(nodes.pool.id, wanted, start=start, duration=f"{length}m")
                made.append((await server.create(world.caller, request)).id)
                with suppress(ApportionError):
                    one = random.choice(made)
                    later = ReservationUpdate(duration=f"{random.choice([1, 3, 6])}m")
                    await server.update(world.caller, one, later)
                one = await server.get(world.caller, random.choice(made))
                # The clock stands still here: what ends where it begins was never there.
                if random.random() < 0.3 and one.start != world.clock():
                    await server.release(world.caller, one.id)

        machines = {name: Machine(nodes, name, random) for name in nodes.nodes}

        told = []
        for number in range(40):
            if number >= ROUNDS and told:
                break
            world.clock.advance(seconds=random.choice([5, 30, 60]))
            await asyncio.gather(
                *(each.lifecycle.advance() for each in servers),
                *(caller(each) for each in servers),
                *(each.live() for each in machines.values()),
            )
            await servers[0].lifecycle.advance()
            assert await nobody_else_has_it(world) == []
            assert await world.findings() == []
            told = await world.rows("SELECT FROM events WHERE type = 'reservation.delayed'")
        assert told, "nobody was in anybody's way"
        assert await deadlocks(world) == 0
