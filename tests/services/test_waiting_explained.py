"""What an explanation says adds up, and whatever it suggests does place what waits."""

from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pools_acting import offer
from services_world import World

from apportion.errors import NotFoundError
from apportion.pools.schemas import QuotaSet
from apportion.pools.service import set_quota
from apportion.reservations.schemas import GangSpec, ReservationCreate
from apportion.store.connections import open_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


async def explained(world, view, caller=None):
    return await world.reservations.explain(caller or world.caller, view.id)


def by_code(told):
    found = {}
    for each in told.suggestions:
        found.setdefault(each.code, each)
    return found


async def apply(world, suggestion, waiting):
    """Do what a suggestion says, and return the reservation that comes of it."""
    if suggestion.request is not None:
        return await world.create(ReservationCreate.model_validate(suggestion.request))
    for each in suggestion.limits:
        limit = Fraction(str(each.used)) + Fraction(str(each.asked))
        await _set(world, each, str(limit))
    await world.tick(seconds=1)
    return await world.get(waiting)


async def _set(world, lack, limit):
    fields = {"pool_id": lack.pool_id, "tenant_id": lack.tenant_id, "resource": lack.resource}
    await set_quota(world.runtime, world.caller, QuotaSet(**fields, max=limit))


async def test_the_sentence_is_as_promised_and_adds_up(world):
    """0 of 5 nodes: two scattered, one full, one failed, one that was never cut so."""
    halves = ["3g.40gb@0", "3g.40gb@4"]
    small = [f"1g.10gb@{at}" for at in range(7)]

    def node(name, *instances, **more):
        return inventory(name, gpu("H100", 0, *instances, node=name, **more))

    pool = await world.pool(
        pool_of("H100", "mig"),
        node("full", *halves),
        node("failed", *halves, failed="Xid 79"),
        node("small", *small),
    )
    held = ask(pool.id, device("gpu.mig", count=2, profile="3g.40gb"), duration="5h")
    await world.create(held)
    view = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    told = await explained(world, view)
    [one] = told.pools
    assert sum(each.count for each in one.reasons) == one.nodes == 3
    assert one.what == "3g.40gb placement"
    assert one.message == (
        "0 of 3 nodes: 1 reserved until 2026-03-02T14:00:00Z, 1 not cut into such a profile, "
        "1 not healthy"
    )
    assert by_code(told)["smaller_profile"].request["devices"][0]["selector"] == {
        "matchExpressions": [{"key": "migProfile", "op": "In", "values": ["1g.10gb"]}]
    }


async def test_what_lies_scattered_is_told_from_what_is_full(world):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=4), inventory("n1", gpu("T4", 0), gpu("T4", 1))
    )
    for _ in range(2):
        one = device("gpu.slot", units=2)
        await world.create(ask(pool.id, one, duration="5h"))
    first = await world.create(ask(pool.id, device("gpu.slot", units=4), duration="3h"))
    await world.release(first)
    rows = await world.rows("SELECT count(DISTINCT gpu_id) AS n FROM bookings")
    view = await world.create(ask(pool.id, device("gpu.slot", count=2, units=3)))
    told = await explained(world, view)
    [reason] = told.pools[0].reasons
    assert rows[0]["n"] >= 1
    assert (reason.code, reason.full) == ("units_booked", 0)
    assert told.pools[0].what == "3 slots of one GPU"
    assert {"fewer_pieces", "fewer_units", "later_start"} <= by_code(told).keys()


async def test_each_kind_of_suggestion_has_its_case_and_its_command(world):
    pool = await world.pool(
        pool_of("H100"),
        inventory("n1", *(gpu("H100", index) for index in range(4)), cpus=16),
    )
    other = await world.pool(
        pool_of("H100", name="other"),
        inventory("n2", *(gpu("H100", index, node="n2") for index in range(4)), cpus=16),
    )
    await world.create(ask(pool.id, device(count=2), duration="5h", vcpu=12))
    ends = world.clock() + 5 * HOUR
    view = await world.create(ask(pool.id, device(count=3), vcpu=4))
    told = by_code(await explained(world, view))
    assert told["later_start"].start == ends
    assert told["later_start"].command.split()[:4] == ["apportion", "reserve", "--pool", pool.id]
    assert told["other_pool"].request["pool_ids"] == [other.id]
    assert told["fewer_pieces"].command == (
        f"apportion reserve --pool {pool.id} --gpus 2 --vcpu 4 --for 1h"
    )
    host = await world.create(ask(pool.id, device(), vcpu=9))
    assert by_code(await explained(world, host))["fewer_vcpus"].request["resources"]["vcpu"] == "4"


async def test_a_quota_is_to_be_raised_by_what_is_missing(world):
    pool = await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(4)))
    )
    held = await world.create(ask(pool.id, device(count=4), duration="5h"))
    view = await world.create(ask(pool.id, device(count=3)))
    await world.quota(pool, "gpu", 1)
    await world.quota(pool, "gpuEquivalents", 2)
    await world.release(held)
    told = await explained(world, view)
    assert told.pools[0].quota.missing == 2
    raised = by_code(told)["raise_quota"]
    assert {each.resource: each.missing for each in raised.limits} == {
        "gpu": 2,
        "gpuEquivalents": 1,
    }
    assert raised.command == (
        f"apportion quota set {pool.id} gpu 3 && apportion quota set {pool.id} gpuEquivalents 3"
    )
    assert (await apply(world, raised, view)).state == "active"


async def test_whoever_is_offered_a_pool_is_told_to_ask_its_owner(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    acme = await world.tenant("acme")
    await offer(world, pool, acme, {"gpu": 2})
    held = await world.create(ask(pool.id, device(count=2), duration="5h"))
    view = await world.reservations.create(acme, ask(pool.id, device(count=2)))
    await offer(world, pool, acme, {"gpu": 1})
    await world.release(held)
    told = by_code(await explained(world, view, acme))
    assert told["raise_quota"].command is None
    assert told["raise_quota"].message.startswith("have its owner raise the quota of acme")


async def test_a_condition_that_rules_out_what_is_free_is_named(world):
    here, there = (gpu("H100", index, numa_node=index) for index in range(2))
    pool = await world.pool(pool_of("H100"), inventory("n1", here, there))
    await world.create(ask(pool.id, device(where=[("numaNode", "In", ["0"])]), duration="5h"))
    view = await world.create(ask(pool.id, device(where=[("numaNode", "In", ["0"])])))
    loose = by_code(await explained(world, view))["loosen_selector"]
    assert loose.message == "leave out numaNode In 0"
    assert (await apply(world, loose, view)).state == "active"


async def test_a_gang_is_told_how_many_members_have_room(world):
    nodes = [inventory(name, gpu("H100", 0, node=name)) for name in ("n1", "n2", "n3")]
    pool = await world.pool(pool_of("H100"), *nodes)
    await world.create(ask(pool.id, device(), duration="5h"))
    request = ask(pool.id, device()).model_copy(update={"gang": GangSpec(members=3)})
    view = await world.create(request)
    told = await explained(world, view)
    assert sum(each.count for each in told.pools[0].reasons) == 3
    fewer = by_code(told)["fewer_members"]
    assert fewer.command == f"apportion reserve --pool {pool.id} --gpus 1 --gang 2 --for 1h"
    assert len((await apply(world, fewer, view)).bookings) == 2


async def test_what_does_not_wait_has_its_story_and_nothing_to_suggest(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    held = await world.create(ask(pool.id, device(), duration="5h"))
    view = await world.create(ask(pool.id, device()))
    await world.release(held)
    told = await explained(world, view)
    assert told.reservation.state == "active"
    assert (told.pools, told.suggestions) == ([], [])
    assert [each.reason["code"] for each in told.history] == ["units_booked"]


async def test_another_tenants_reservation_is_not_there(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    view = await world.create(ask(pool.id, device()))
    acme = await world.tenant("acme")
    with pytest.raises(NotFoundError) as caught:
        await explained(world, view, acme)
    with pytest.raises(NotFoundError) as never:
        await world.reservations.explain(acme, "res_0000000000000000000000000")
    assert str(caught.value).replace(view.id, "res_0000000000000000000000000") == str(never.value)


async def test_to_explain_leaves_everything_as_it_was_and_wakes_nobody(world):
    pool = await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(4)))
    )
    await world.create(ask(pool.id, device(count=2), duration="5h"))
    view = await world.create(ask(pool.id, device(count=4)))
    for _ in range(3):
        await world.tick(seconds=1)
    freed = world.reservations.fleet.indexes[pool.id].freed
    await explained(world, view)
    assert world.reservations.fleet.indexes[pool.id].freed == freed
    assert await world.drift() == {}


# -- whatever is suggested


CUT = ["7g.80gb@0", "4g.40gb@0 2g.20gb@4 1g.10gb@6", "3g.40gb@0 3g.40gb@4"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
async def test_every_suggestion_places_it(template, seed):
    draw = Random(seed)
    async with template.clone() as dsn, open_pool(dsn) as db:
        world = World(db)
        pools = [await _pool(world, draw, name) for name in ("one", "two")]
        for _ in range(draw.randrange(9)):
            await _fill(world, draw.choice(pools), draw)
        view = await _one_that_waits(world, draw, pools[0])
        if draw.random() < 0.3:
            await world.quota(pools[0], "gpuEquivalents", draw.randrange(3))
        told = await explained(world, view)
        for pool in told.pools:
            assert sum(each.count for each in pool.reasons) == pool.nodes
        for each in told.suggestions:
            event(each.code)
            done = await apply(world, each, view)
            assert done.state in ("active", "placed"), (seed, each)
            if each.start is not None:
                assert done.start == each.start, seed
            if done.id == view.id:
                return
            # What it had is as free as before, and nobody was let in meanwhile.
            await world.reservations.release(world.caller, done.id)
        event("nothing" if not told.suggestions else "something")
        assert await world.findings() == []


async def _pool(world, draw, name):
    sharing = draw.choice(["exclusive", "mig"])
    nodes = []
    for at in range(draw.randint(1, 2)):
        node = f"{name}{at}"
        if sharing == "mig":
            cut = draw.choices(CUT, k=draw.randint(1, 3))
            gpus = [gpu("H100", i, *each.split(), node=node) for i, each in enumerate(cut)]
        else:
            gpus = [gpu("H100", i, node=node, numa_node=i % 2) for i in range(draw.randint(1, 4))]
        nodes.append(inventory(node, *gpus, cpus=16))
    return await world.pool(pool_of("H100", sharing, name=name), *nodes)


def _request(draw, pool, **window):
    if pool.sharing == "mig":
        profile = draw.choice(["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"])
        wanted = device("gpu.mig", count=draw.randint(1, 2), profile=profile)
    else:
        where = [("numaNode", "In", ["0"])] if draw.random() < 0.5 else []
        wanted = device(count=draw.randint(1, 4), where=where)
    request = ask(pool.id, wanted, vcpu=draw.choice([0, 4, 12]), **(window or {"duration": "1h"}))
    gang = GangSpec(members=draw.randint(2, 3), apart=draw.random() < 0.3)
    return request.model_copy(update={"gang": gang}) if draw.random() < 0.25 else request


async def _one_that_waits(world, draw, pool):
    """Ask until one has to wait; mostly for what others have, not for what is never there."""
    while True:
        view = await world.create(_request(draw, pool))
        lasting = view.reason["code"] not in ("placed", "units_booked", "host_resources_short")
        if view.state == "pending" and (not lasting or draw.random() < 0.1):
            return view
        if view.state == "pending":
            await world.reservations.release(world.caller, view.id)


async def _fill(world, pool, draw):
    start = world.clock() + draw.randrange(4) * HOUR
    view = await world.create(
        _request(draw, pool, start=start, end=start + draw.randint(1, 5) * HOUR)
    )
    if view.state == "pending":
        await world.reservations.release(world.caller, view.id)
