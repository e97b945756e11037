"""Gangs and places with many at once, at random, and cut off at any statement: all or nothing."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest
from services_world import World, world_on
from test_services_crash import Killer, rows_of
from test_services_races import RACERS, race, racers

from apportion.nodes.schemas import NvLink
from apportion.store.connections import open_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def crowd(dsn: str):
    async with open_pool(dsn, size=RACERS + 4) as pool, world_on(pool) as world:
        yield world


async def test_gangs_and_singles_race_and_no_gang_is_there_in_part(crowd: World):
    world = crowd
    pool = await world.pool(
        pool_of("H100"),
        *(inventory(n, *(gpu("H100", i, node=n) for i in range(2))) for n in ("n1", "n2", "n3")),
    )
    services = await racers(world, pool)
    gang = ask(pool.id, device(), vcpu=2, gang={"members": 4})
    single = ask(pool.id, device(), vcpu=1)
    for _ in range(3):
        outcomes = await race(world, services, [gang, single] * (RACERS // 2))
        views = [each for each in outcomes if not isinstance(each, Exception)]
        assert len(views) == RACERS
        assert Counter(len(view.bookings) for view in views[::2]).keys() <= {0, 4}
        rows = await world.rows(
            "SELECT reservation_id, count(*)::int AS pieces FROM bookings"
            " WHERE voided_at IS NULL AND upper(planned) > %s GROUP BY 1",
            world.clock(),
        )
        had = {row["reservation_id"]: row["pieces"] for row in rows}
        assert had == {view.id: len(view.bookings) for view in views if view.bookings}
        assert sum(had.values()) in (5, 6)
        assert await world.findings() == []
        for view in views:
            await services[0].release(world.caller, view.id)


async def test_two_gangs_that_need_the_same_nodes_never_share_them_out(crowd: World):
    world = crowd
    pool = await world.pool(
        pool_of("H100"),
        *(inventory(f"n{at}", gpu("H100", 0, node=f"n{at}"), cpus=4) for at in range(6)),
    )
    services = await racers(world, pool)
    gang = ask(pool.id, device(), vcpu=3, gang={"members": 4, "apart": True})
    outcomes = await race(world, services, [gang] * RACERS)
    assert Counter(each.state for each in outcomes) == {"active": 1, "pending": RACERS - 1}
    rest = await world.create(ask(pool.id, device(), gang={"members": 2}))
    assert rest.state == "active"


async def test_a_gang_that_dies_at_any_statement_leaves_nothing(world: World, monkeypatch):
    killer = Killer(monkeypatch)
    pool = await world.pool(
        pool_of("H100"),
        *(inventory(f"n{at}", gpu("H100", 0, node=f"n{at}")) for at in range(3)),
    )
    gang = ask(pool.id, device(), vcpu=2, gang={"members": 3}, key="once")
    before = await rows_of(world)

    async def check():
        assert await rows_of(world) == before
        assert await world.drift() == {}

    died, made = await killer.at_each_statement(
        lambda: world.reservations.create_many(world.caller, [gang]), check
    )
    assert died > 8
    view = await world.reservations.create(world.caller, gang)
    assert (made, len(view.bookings)) == ([view.id], 3)


def fleet(rng):
    """Give some nodes: how many GPUs, NUMA nodes and links, and how much CPU each has."""
    nodes = []
    for at in range(rng.randint(2, 4)):
        count = rng.randint(1, 5)
        pairs = [(one, other) for one in range(count) for other in range(one) if rng.random() < 0.3]
        nodes.append(
            (f"n{at}", [rng.randint(0, 1) for _ in range(count)], pairs, rng.randint(2, 9))
        )
    return nodes


def report(name, numa, pairs, cpus):
    return inventory(
        name,
        *(
            gpu(
                "H100",
                at,
                node=name,
                numa_node=of,
                nvlink=[
                    NvLink(peer=f"GPU-{name}-{other}", links=2).model_dump()
                    for one, other in pairs
                    if one == at
                ],
            )
            for at, of in enumerate(numa)
        ),
        cpus=cpus,
    )


def domains(node, together):
    """Return the sets of a node's GPUs that pieces may lie on together."""
    _, numa, pairs, _ = node
    if together == "node":
        return [set(range(len(numa)))]
    if together == "numa":
        return [{at for at, of in enumerate(numa) if of == each} for each in set(numa)]
    found = [{at} for at in range(len(numa))]
    for one, other in pairs:
        joined = [each for each in found if each & {one, other}]
        found = [each for each in found if each not in joined] + [set().union(*joined)]
    return found


def members_with_room(node, taken, asked):
    """Count the members that a node has room for."""
    name, _, _, cpus = node
    count, vcpu, together, apart = asked
    gpus, used = taken[name]
    room = sum(len(each - gpus) // count for each in domains(node, together))
    if vcpu:
        room = min(room, (cpus - used) // vcpu)
    return min(room, 1) if apart else room


@pytest.mark.parametrize("_time", range(3))
async def test_gangs_lie_as_they_say_and_wait_only_without_room(world: World, _time):
    """The judge counts, domain by domain, how many members of whole GPUs there is room for."""
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    nodes = fleet(rng)
    pool = await world.pool(pool_of("H100", maxPending="0s"), *(report(*each) for each in nodes))
    by_name = {node[0]: node for node in nodes}
    live = {}
    for _ in range(30):
        if live and rng.random() < 0.35:
            gone = rng.choice(sorted(live))
            await world.reservations.release(world.caller, gone)
            del live[gone]
            continue
        asked = (
            rng.randint(1, 3),
            rng.randint(0, 2),
            rng.choice(("node", "numa", "nvlink")),
            rng.random() < 0.3,
        )
        count, vcpu, together, apart = asked
        members = rng.randint(1, 4)
        taken = {name: (set(), 0) for name in by_name}
        for view, (_, held, *_) in live.values():
            for name, gpus in _places(view).items():
                before, used = taken[name]
                holders = len({each.member for each in view.bookings if each.node == name})
                taken[name] = before | gpus, used + held * holders
        room = sum(members_with_room(node, taken, asked) for node in nodes)
        policy = rng.choice((None, "first", "best", "spread", "fragmentation"))
        placement = {"together": together, "policy": policy}
        gang = {"members": members, "apart": apart}
        view = await world.create(
            ask(pool.id, device(count=count), vcpu=vcpu, placement=placement, gang=gang)
        )
        # Of one member it does not matter whether it is apart.
        assert (view.state == "active") == (room >= members), (seed, asked, members, taken)
        if view.state != "active":
            continue
        live[view.id] = view, asked
        pieces = defaultdict(list)
        for each in view.bookings:
            pieces[each.member].append(each)
        assert sorted(pieces) == list(range(members))
        for found in pieces.values():
            [name] = {each.node for each in found}
            lie = {int(each.gpu_id.rpartition("-")[2]) for each in found}
            assert len(lie) == count
            assert any(lie <= domain for domain in domains(by_name[name], together))
            assert not lie & taken[name][0]
        if apart:
            assert len({found[0].node for found in pieces.values()}) == members


def _places(view):
    found = defaultdict(set)
    for each in view.bookings:
        found[each.node].add(int(each.gpu_id.rpartition("-")[2]))
    return found


async def test_gangs_and_their_releases_at_once_leave_no_deadlock(crowd: World):
    world = crowd
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=2),
        *(inventory(f"n{at}", gpu("T4", 0, node=f"n{at}"), cpus=8) for at in range(4)),
    )
    services = await racers(world, pool)

    async def person(number):
        for step in range(3):
            request = ask(
                pool.id,
                device("gpu.slot"),
                vcpu=1,
                gang={"members": 2 + (number + step) % 3, "apart": bool(number % 2)},
            )
            view = await services[number].create(world.caller, request)
            assert len(view.bookings) in (0, view.gang.members)
            await services[number].release(world.caller, view.id)

    await asyncio.gather(*(person(number) for number in range(RACERS)))
    assert await world.used(pool) == {}
