"""Gangs: every member gets all that was asked for, or nobody gets anything."""

from collections import Counter
from datetime import timedelta
from decimal import Decimal

import pytest
from services_world import World

from apportion.errors import ConflictError, QuotaExceededError
from apportion.reservations.schemas import ReservationUpdate
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


def nodes(count, gpus=2, **host):
    return [
        inventory(f"n{at}", *(gpu("H100", i, node=f"n{at}") for i in range(gpus)), **host)
        for at in range(count)
    ]


def by_member(view):
    """Return the nodes of each member's pieces."""
    found = {}
    for each in view.bookings:
        found.setdefault(each.member, []).append(each.node)
    return found


async def test_members_lie_on_several_nodes_and_each_on_one(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3, gpus=3))
    view = await world.create(ask(pool.id, device(count=2), vcpu=8, gang={"members": 3}))
    assert view.state == "active"
    members = by_member(view)
    assert sorted(members) == [0, 1, 2]
    assert all(len(set(on)) == 1 and len(on) == 2 for on in members.values())
    assert len({each.gpu_id for each in view.bookings}) == 6
    assert await world.used(pool) == {"gpu": 6, "vcpu": 24}
    assert view.charges["gpuEquivalents"] == 6
    assert (view.gang.members, view.gang.apart) == (3, False)


async def test_members_on_one_node_share_one_row_of_its_host(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(1, gpus=4, cpus=20))
    gang = ask(pool.id, device(), vcpu=8, memory_gib=2, gang={"members": 2})
    view = await world.create(gang)
    assert by_member(view) == {0: ["n0"], 1: ["n0"]}
    rows = await world.rows("SELECT vcpu_milli, memory_mib FROM host_bookings")
    assert [tuple(row.values()) for row in rows] == [(16000, 4096)]
    # Two GPUs are free, and the host has no room for two more members.
    assert (await world.create(gang)).state == "pending"


async def test_members_of_host_resources_alone(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3, cpus=10))
    view = await world.create(ask(pool.id, vcpu=4, gang={"members": 5}))
    assert (view.state, view.bookings) == ("active", [])
    rows = await world.rows("SELECT vcpu_milli FROM host_bookings ORDER BY 1")
    assert [row["vcpu_milli"] for row in rows] == [4000, 8000, 8000]
    assert await world.used(pool) == {"vcpu": 20}


async def test_nothing_of_a_gang_that_does_not_fit_is_held(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3))
    gang = ask(pool.id, device(count=2), gang={"members": 4})
    waiting = await world.create(gang)
    assert (waiting.state, waiting.bookings) == ("pending", [])
    assert waiting.reason["members"] == {"asked": 4, "placed": 3}
    assert "room for 3 of 4 members; the next: 0 of 3 nodes" in waiting.reason["message"]
    assert await world.used(pool) == {}
    # The whole pool is there for others, and the gang comes as soon as a fourth node does.
    for _ in range(3):
        assert (await world.create(ask(pool.id, device(count=2), duration="10m"))).bookings
    await world.report(pool, *nodes(4)[3:])
    await world.tick(minutes=11)
    assert len((await world.get(waiting)).bookings) == 8


async def test_members_apart_have_a_node_of_their_own_each(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3, gpus=4))
    near = await world.create(ask(pool.id, device(), gang={"members": 2}))
    assert len({each.node for each in near.bookings}) == 1
    apart = ask(pool.id, device(), gang={"members": 3, "apart": True})
    view = await world.create(apart)
    assert {each.node for each in view.bookings} == {"n0", "n1", "n2"}
    assert view.gang.apart
    waiting = await world.create(ask(pool.id, device(), gang={"members": 4, "apart": True}))
    assert waiting.reason["members"] == {"asked": 4, "placed": 3}
    # The others may still have what the gang leaves of its nodes.
    assert len((await world.create(ask(pool.id, device(count=3)))).bookings) == 3


async def test_members_apart_by_host_alone(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3, cpus=10))
    view = await world.create(ask(pool.id, vcpu=2, gang={"members": 3, "apart": True}))
    assert view.state == "active"
    rows = await world.rows("SELECT count(DISTINCT node_id)::int AS nodes FROM host_bookings")
    assert rows == [{"nodes": 3}]
    over = await world.create(ask(pool.id, vcpu=2, gang={"members": 4, "apart": True}))
    assert over.state == "pending"


async def test_each_member_is_held_to_the_conditions_by_itself(world: World):
    reports = [gpu("H100", at, node="n0", numa_node=at % 2) for at in range(5)]
    pool = await world.pool(pool_of("H100"), inventory("n0", *reports))
    view = await world.create(
        ask(pool.id, device(count=2), gang={"members": 2}, placement={"together": "numa"})
    )
    numa = [{each.gpu_id[-1] for each in view.bookings if each.member == m} for m in (0, 1)]
    assert sorted(len({int(at) % 2 for at in each}) for each in numa) == [1, 1]
    third = ask(pool.id, device(count=2), placement={"together": "numa"})
    assert (await world.create(third)).state == "pending"


async def test_the_quota_counts_all_members(world: World):
    limits = {"gpu": 5, "gpuEquivalents": "unlimited"}
    pool = await world.pool(pool_of("H100", quota=limits), *nodes(3))
    with pytest.raises(QuotaExceededError) as refused:
        await world.create(ask(pool.id, device(count=2), gang={"members": 3}))
    assert refused.value.details["asked"] == "6"
    view = await world.create(ask(pool.id, device(), gang={"members": 5}))
    assert await world.used(pool) == {"gpu": 5}
    await world.release(view)
    assert await world.used(pool) == {}


async def test_instances_are_charged_for_all_members_exactly(world: World):
    cut = ("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4")
    pool = await world.pool(
        pool_of("H100", "mig"),
        *(inventory(n, gpu("H100", 0, *cut, node=n)) for n in ("n0", "n1")),
    )
    pieces = device("gpu.mig", profile="1g.10gb"), device("gpu.mig", profile="2g.20gb")
    view = await world.create(ask(pool.id, *pieces, gang={"members": 2}))
    assert view.charges["gpu.mig"] == 4
    assert str(view.charges["gpuEquivalents"]) == "6/7"
    assert [each.device for each in view.bookings] == [0, 1, 0, 1]
    assert [each.member for each in view.bookings] == [0, 0, 1, 1]


async def test_all_members_end_and_give_back_together(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(3))
    gang = ask(pool.id, device(count=2), vcpu=2, gang={"members": 3}, duration="2h")
    view = await world.create(gang)
    world.clock.advance(hours=1)
    ended = await world.release(view)
    assert {each.end for each in ended.bookings} == {world.clock()}
    assert await world.used(pool) == {}
    assert await world.gpu_hours() == 6
    again = await world.create(gang)
    assert again.state == "active"
    await world.tick(hours=2)
    assert (await world.get(again)).state == "ended"


async def test_all_members_are_kept_longer_or_none(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(2, gpus=1, cpus=8))
    gang = await world.create(ask(pool.id, device(), vcpu=5, gang={"members": 2}))
    later = ask(pool.id, vcpu=4, start=gang.end, duration="1h")
    first, second = await world.create(later), await world.create(later)
    longer = ReservationUpdate(duration="90m")
    for blocker in (first, second):
        with pytest.raises(ConflictError) as refused:
            await world.reservations.update(world.caller, gang.id, longer)
        assert refused.value.details["in_the_way"][0]["code"] == "host_resources_short"
        assert (await world.get(gang)).end == gang.end
        await world.release(blocker)
    view = await world.reservations.update(world.caller, gang.id, longer)
    assert {each.end for each in view.bookings} == {view.end}
    rows = await world.rows("SELECT count(DISTINCT upper(during))::int AS ends FROM host_bookings")
    assert rows[0]["ends"] >= 1
    sooner = ReservationUpdate(duration="30m")
    view = await world.reservations.update(world.caller, gang.id, sooner)
    assert {each.end for each in view.bookings} == {view.end}
    assert len(view.bookings) == 2


async def test_a_gang_on_gpus_in_the_way_of_one_member_is_not_kept_longer(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(2, gpus=1))
    gang = await world.create(ask(pool.id, device(), gang={"members": 2}))
    other = await world.create(ask(pool.id, device(), start=gang.end, duration="1h"))
    longer = ReservationUpdate(duration="2h")
    with pytest.raises(ConflictError) as refused:
        await world.reservations.update(world.caller, gang.id, longer)
    [way] = refused.value.details["in_the_way"]
    assert (way["code"], way["gpu_id"]) == ("units_booked", other.bookings[0].gpu_id)


async def test_slots_of_those_who_have_not_begun_make_way_for_all_members(world: World):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=2),
        *(inventory(n, gpu("T4", 0, node=n)) for n in ("n0", "n1")),
    )
    one, slot = world.clock(), device("gpu.slot")
    first = [await world.create(ask(pool.id, slot, duration="1h")) for _ in range(4)]
    second = []
    for n in ("n0", "n1"):
        there = device("gpu.slot", where=[("node", "In", [n])])
        second += [
            await world.create(ask(pool.id, there, start=first[0].end, duration="1h"))
            for _ in range(2)
        ]
    # Of each GPU the holder of another slot leaves now and then: across both, one slot is free.
    for n in ("n0", "n1"):
        mine = [each for each in first if each.bookings[0].node == n]
        gone = next(each for each in mine if each.bookings[0].units == "{[0,1)}")
        await world.reservations.release(world.caller, gone.id)
        behind = [each for each in second if each.bookings[0].node == n]
        gone = next(each for each in behind if each.bookings[0].units == "{[1,2)}")
        await world.reservations.release(world.caller, gone.id)
    across = ask(pool.id, slot, start=one, duration="2h", gang={"members": 2})
    view = await world.create(across)
    assert {each.node for each in view.bookings} == {"n0", "n1"}


async def test_a_gang_goes_to_the_one_pool_that_has_room_for_all(world: World):
    small = await world.pool(pool_of("H100", name="small"), *nodes(2))
    large = await world.pool(
        pool_of("H100", name="large"),
        *(inventory(f"m{at}", gpu("H100", 0, node=f"m{at}")) for at in range(5)),
    )
    pools = [small.id, large.id]
    view = await world.create(ask(pools, device(), gang={"members": 5}))
    assert view.pool_id == large.id
    waiting = await world.create(ask(pools, device(), gang={"members": 5}))
    assert waiting.reason["members"] == {"asked": 5, "placed": 4}
    assert waiting.reason["nodes"] == 7


async def test_a_gang_of_one_is_one(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(1))
    view = await world.create(ask(pool.id, device(), gang={"members": 1}))
    assert view.gang is None
    assert [each.member for each in view.bookings] == [0]


async def test_the_events_tell_what_all_members_are_charged(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(2))
    view = await world.create(ask(pool.id, device(count=2), gang={"members": 2}))
    [row] = await world.rows(
        "SELECT data FROM events WHERE subject = %s AND type = 'reservation.placed'", view.id
    )
    assert Counter(row["data"]["charges"]) == Counter({"gpu": 4, "gpuEquivalents": 4})
    assert Decimal(row["data"]["charges"]["gpu"]) == 4


async def test_a_gang_with_slack_begins_when_all_members_have_room(world: World):
    pool = await world.pool(pool_of("H100"), *nodes(2))
    now = world.clock()
    for length in ("1h", "2h", "3h", "4h"):
        assert (await world.create(ask(pool.id, device(), duration=length))).bookings
    slack = {"end_before": (now + timedelta(hours=5)).isoformat()}
    for members, after in ((3, 3), (1, 1), (2, 2)):
        gang = ask(pool.id, device(), duration="1h", gang={"members": members}, **slack)
        view = await world.create(gang)
        assert (view.start - now, len(view.bookings)) == (timedelta(hours=after), members)
        await world.reservations.release(world.caller, view.id)
        world.reservations.lifecycle.hint.clear()
    late = ask(pool.id, device(), duration="2h", gang={"members": 4}, **slack)
    assert (await world.create(late)).state == "pending"
