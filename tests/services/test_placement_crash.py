"""Whatever statement dies, what a reservation does in several steps is done in whole or not at all.

Beside what `test_services_crash` and `test_reservations_crash` kill: batches, retries that place,
ends that change, windows that end, and two servers of which one dies.
"""

from datetime import timedelta

import pytest
from test_services_crash import Killer, slots

from apportion.errors import ApportionError, UnavailableError
from apportion.reservations.schemas import ReservationUpdate
from apportion.reservations.service import Reservations
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
TABLES = """
    SELECT tablename FROM pg_tables
    WHERE schemaname = 'public' AND tablename NOT IN ('schema_migrations', 'mig_placements')
    ORDER BY 1"""


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


async def everything(world):
    """Give all rows of all tables."""
    names = [row["tablename"] for row in await world.rows(TABLES)]
    return {name: await world.rows(f"SELECT * FROM {name} ORDER BY {name}::text") for name in names}  # noqa: S608


async def nothing_is_half(world):
    assert await world.findings() == []
    assert await world.drift() == {}


async def nothing_has_changed(world, before):
    assert await everything(world) == before
    await nothing_is_half(world)


async def test_each_ask_of_a_batch_that_dies_is_there_in_whole_or_not_at_all(world, killer):
    pool = await slots(world)
    batch = [
        ask(pool.id, device("gpu.slot"), duration="1h", vcpu=3, key="now"),
        ask(pool.id, device("gpu.slot"), start=MONDAY + HOUR, duration="3h", key="across"),
        ask(pool.id, device("gpu.slot", units=2), start=MONDAY + 4 * HOUR, duration="1h", key="2"),
        ask(pool.id, device("gpu.slot"), start=MONDAY + 2 * HOUR, duration="1h", key="none"),
    ]
    steps = set()

    async def check():
        await nothing_is_half(world)
        [row] = await world.rows(
            "SELECT count(*) FROM reservations WHERE caller = %s AND duration <> '2h'",
            world.caller.actor,
        )
        steps.add(row["count"])

    died, made = await killer.at_each_statement(
        lambda: world.reservations.create_many(world.caller, batch), check
    )
    assert died > 15
    # One whose neighbours make way is placed in a transaction of its own, so there are steps.
    assert len(steps) > 2
    views = await world.reservations.get_many(world.caller, made)
    states = [views[each].state for each in made]
    assert states == ["active", "placed", "placed", "pending"]
    # Had a try that died left anything, a second one with the same keys would find it taken.
    again = await world.reservations.create_many(world.caller, batch)
    assert again == made


async def test_a_retry_that_dies_places_what_waits_later_and_once(world, killer):
    pool = await slots(world)
    holder = await world.create(ask(pool.id, device("gpu.slot", units=2), duration="1h", vcpu=8))
    asks = [
        ask(pool.id, device("gpu.slot"), duration="50m", vcpu=4),
        ask(pool.id, device("gpu.slot", units=2), duration="50m"),
        ask(pool.id, device("gpu.slot"), duration="50m", vcpu=4),
    ]
    waiting = []
    for each in asks:
        world.clock.advance(seconds=1)  # who came first is tried first
        waiting.append(await world.create(each))
    await world.reservations.release(world.caller, holder.id)
    seen = set()

    async def check():
        await nothing_is_half(world)
        seen.add(tuple([(await world.get(each)).state for each in waiting]))

    died, _ = await killer.at_each_statement(world.reservations.lifecycle.retry_pending, check)
    assert died > 8
    assert ("pending", "pending", "pending") in seen
    assert [(await world.get(each)).state for each in waiting] == ["active", "pending", "active"]
    told = await world.rows(
        "SELECT subject, count(*) FROM events WHERE type = 'reservation.placed'"
        " AND subject = ANY (%s) GROUP BY 1",
        [each.id for each in waiting],
    )
    assert [row["count"] for row in told] == [1, 1]


async def test_an_extension_that_dies_moves_nobody_and_takes_nothing(world, killer):
    """It needs CPU of the node, and that another one makes way on its GPU."""
    pool = await slots(world)
    view = await world.create(ask(pool.id, device("gpu.slot"), duration="1h", vcpu=2))
    longer = ReservationUpdate(duration="4h")
    before = await everything(world)
    died, changed = await killer.at_each_statement(
        lambda: world.reservations.update(world.caller, view.id, longer),
        lambda: nothing_has_changed(world, before),
    )
    assert died > 10
    assert changed.end == MONDAY + 4 * HOUR
    moved = {row["id"]: row["units"] for row in before["bookings"]}
    now = {row["id"]: row["units"] for row in (await everything(world))["bookings"]}
    assert any(now[each] != units for each, units in moved.items())
    await nothing_is_half(world)


async def test_a_shortening_that_dies_gives_nothing_away(world, killer):
    pool = await slots(world)
    view = await world.create(ask(pool.id, device("gpu.slot"), duration="1h", vcpu=8))
    waiting = await world.create(ask(pool.id, device("gpu.slot"), duration="20m", vcpu=8))
    shorter = ReservationUpdate(duration="30m")
    before = await everything(world)
    died, changed = await killer.at_each_statement(
        lambda: world.reservations.update(world.caller, view.id, shorter),
        lambda: nothing_has_changed(world, before),
    )
    assert died > 6
    assert changed.end == MONDAY + HOUR / 2
    await world.tick(minutes=29)
    assert (await world.get(waiting)).state == "pending"
    await world.tick(minutes=1)
    assert (await world.get(waiting)).state == "active"


async def test_windows_that_end_while_their_server_dies_are_ended_once_by_another(world, killer):
    pool = await slots(world)
    views = [
        await world.create(ask(pool.id, device("gpu.slot"), duration="1h", vcpu=1)),
        await world.create(ask(pool.id, device("gpu.slot"), duration="30m", vcpu=1)),
    ]
    used = await world.used(pool)
    assert used == {"gpu.slot": 4, "vcpu": 2}
    world.clock.advance(minutes=59)
    before = await everything(world)
    for statement in range(1, 4):
        killer.left = statement
        with pytest.raises(UnavailableError):
            await world.reservations.lifecycle.end_due()
        killer.left = None
        await nothing_has_changed(world, before)
    # The one that takes over has never seen anything of them.
    another = Reservations(world.runtime)
    assert await another.lifecycle.end_due() == 1
    assert await world.reservations.lifecycle.end_due() == 0
    assert [(await world.get(each)).state for each in views] == ["active", "ended"]
    assert await world.used(pool) == {"gpu.slot": 3, "vcpu": 1}
    await nothing_is_half(world)


async def test_what_a_dead_server_was_placing_another_places_with_the_same_key(world, killer):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@0", "3g.40gb@4"))
    )
    request = ask(pool.id, device("gpu.mig", 2, profile="3g.40gb"), key="mine")
    before = await everything(world)
    another = Reservations(world.runtime)
    for statement in range(1, 100):
        killer.left = statement
        try:
            view = await world.reservations.create(world.caller, request)
        except ApportionError as error:
            killer.left = None
            assert isinstance(error, UnavailableError)  # noqa: PT017
            assert await everything(world) == before
            # Nothing of it is in the way of whoever else asks for all that there is.
            other = await another.create(world.caller, ask(pool.id, device("gpu.mig", 2)))
            assert other.state == "active"
            await another.release(world.caller, other.id)
            before = await everything(world)
        else:
            break
    killer.left = None
    assert statement > 8
    assert (await another.create(world.caller, request)).id == view.id
    await nothing_is_half(world)


async def gang_world(world):
    """Give a pool of two nodes, on which a gang of two takes a GPU and CPU each."""
    nodes = [inventory(n, *(gpu("H100", i, node=n) for i in range(2)), cpus=8) for n in ("a", "b")]
    pool = await world.pool(pool_of("H100", name="gangs"), *nodes)
    return pool, {"gang": {"members": 2, "apart": True}, "vcpu": 3}


async def test_a_gang_that_dies_while_it_is_placed_has_no_member_anywhere(world, killer):
    pool, together = await gang_world(world)
    request = ask(pool.id, device(), duration="1h", key="gang", **together)
    before = await everything(world)
    died, made = await killer.at_each_statement(
        lambda: world.reservations.create_many(world.caller, [request]),
        lambda: nothing_has_changed(world, before),
    )
    assert died > 10
    view = await world.reservations.get(world.caller, made[0])
    assert sorted(each.node for each in view.bookings) == ["a", "b"]
    assert await world.used(pool) == {"gpu": 2, "vcpu": 6}


async def test_a_gang_that_dies_while_it_is_kept_longer_or_let_go_is_so_in_whole(world, killer):
    pool, together = await gang_world(world)
    view = await world.create(ask(pool.id, device(), duration="1h", **together))
    world.clock.advance(minutes=10)
    service = world.reservations
    before = await everything(world)
    died, longer = await killer.at_each_statement(
        lambda: service.update(world.caller, view.id, ReservationUpdate(duration="2h")),
        lambda: nothing_has_changed(world, before),
    )
    assert died > 8
    assert {each.end for each in longer.bookings} == {MONDAY + 2 * HOUR}
    before = await everything(world)
    died, _ = await killer.at_each_statement(
        lambda: service.release(world.caller, view.id),
        lambda: nothing_has_changed(world, before),
    )
    assert died > 6
    assert await world.used(pool) == {}
    await nothing_is_half(world)
