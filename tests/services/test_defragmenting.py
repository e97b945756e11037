"""Making room by moving reservations: fewest, all or none, and nobody who may not be moved."""

from datetime import timedelta

import pytest

from apportion.errors import ConflictError, InvalidInputError, NotFoundError
from apportion.reservations.schemas import Defragmentation
from apportion.reservations.window_schemas import SeriesCreate
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

HOUR = timedelta(hours=1)
LATER = MONDAY + 2 * HOUR


def part(profile):
    return device("gpu.mig", profile=profile)


def on(index, profile):
    return device("gpu.mig", profile=profile, where=[("gpuIndex", "In", [index])])


@pytest.fixture
async def scattered(world):
    """Book a 1g on each of two GPUs from later on, so that no 7g fits then."""
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic", preemptible=True),
        inventory("n1", gpu("H100", 0), gpu("H100", 1)),
    )
    held = []
    for index in range(2):
        own = await world.create(
            ask(pool.id, on(index, "1g.10gb"), start=LATER, duration="4h", vcpu=2)
        )
        held.append(own)
    return pool, held


async def freely(world, pool, held):
    """Let a reservation lie anywhere: as asked for, it named its GPU."""
    await world.rows(
        """UPDATE reservations SET devices = jsonb_set(
            devices, '{0,selector,matchExpressions}',
            '[{"key": "migProfile", "op": "In", "values": ["1g.10gb"]}]'
        ) WHERE id = ANY (%s)""",
        [each.id for each in held],
    )


async def there(world, reservation_id):
    return await world.reservations.get(world.caller, reservation_id)


async def defragment(world, pool, caller=None, **request):
    return await world.reservations.defragmenter.run(
        caller or world.caller, pool.id, Defragmentation.model_validate(request)
    )


async def test_one_that_has_not_begun_makes_way_for_one_that_waits(world, scattered):
    pool, held = scattered
    await freely(world, pool, held)
    wants = await world.create(ask(pool.id, part("7g.80gb"), start=LATER, duration="1h"))
    assert wants.state == "pending"
    plan = await defragment(world, pool)
    assert (len(plan.moves), plan.bound, plan.optimal, plan.applied) == (1, 1, True, False)
    assert plan.fits == [wants.id]
    assert (await there(world, wants.id)).state == "pending", "a plan changes nothing"
    done = await defragment(world, pool, apply=True)
    assert done.applied
    [move] = done.moves
    assert move.how == "rebook"
    placed = await there(world, wants.id)
    assert placed.state == "placed"
    moved = await there(world, move.reservation_id)
    assert (moved.state, moved.start, moved.end) == ("placed", LATER, LATER + 4 * HOUR)
    assert {b.gpu_id for b in moved.bookings}.isdisjoint(b.gpu_id for b in placed.bookings)
    [event] = await world.rows("SELECT * FROM events WHERE type = 'reservation.moved'")
    assert event["subject"] == move.reservation_id
    assert event["before"] != event["after"]
    assert moved.charges == held[0].charges


async def test_whole_gpus_are_freed(world, scattered):
    pool, held = scattered
    await freely(world, pool, held)
    done = await defragment(world, pool, free_gpus=True, apply=True)
    assert (done.freed_gpus, len(done.moves), done.optimal) == (1, 1, True)
    assert done.largest_from == world.clock()
    then = {each.class_: (each.largest_count, each.largest_profile) for each in done.largest_then}
    now = {each.class_: (each.largest_count, each.largest_profile) for each in done.largest_now}
    assert now == {"gpu": (0, None), "gpu.mig": (None, "4g.40gb")}
    assert then == {"gpu": (1, None), "gpu.mig": (None, "7g.80gb")}
    gpus = {b.gpu_id for each in held for b in (await there(world, each.id)).bookings}
    assert len(gpus) == 1


async def test_it_can_go_back_to_where_it_was(world, scattered):
    pool, held = scattered
    await freely(world, pool, held)
    for _ in range(3):
        await defragment(world, pool, free_gpus=True, apply=True)
        together = await there(world, held[0].id)
        await world.create(
            ask(
                pool.id,
                device("gpu", where=[("gpuUuid", "In", [together.bookings[0].gpu_id])]),
                start=LATER,
                duration="1h",
            )
        )
        waits = await world.reservations.list(world.caller, states=["pending"])
        if waits:
            await defragment(world, pool, apply=True)
            for each in waits:
                await world.reservations.release(world.caller, each.id)


async def test_what_named_its_gpu_stays_there(world, scattered):
    pool, _ = scattered
    wants = await world.create(ask(pool.id, part("7g.80gb"), start=LATER, duration="1h"))
    plan = await defragment(world, pool)
    assert (plan.moves, plan.fits, plan.does_not_fit) == ([], [], [wants.id])


async def running(world, pool, *, movable):
    held = [
        await world.create(
            ask(pool.id, on(index, "1g.10gb"), duration="4h", placement={"movable": movable})
        )
        for index in range(2)
    ]
    await freely(world, pool, held)
    return held


async def test_one_that_runs_stays_unless_its_owner_lets_it_be_moved(world):
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic", preemptible=True),
        inventory("n1", gpu("H100", 0), gpu("H100", 1)),
    )
    held = await running(world, pool, movable=False)
    wants = await world.create(ask(pool.id, part("7g.80gb"), duration="1h"))
    plan = await defragment(world, pool, apply=True)
    assert (plan.moves, plan.does_not_fit) == ([], [wants.id])
    assert [(await there(world, each.id)).end for each in held] == [each.end for each in held]


async def test_one_that_runs_ends_by_notice_and_goes_on_elsewhere(world):
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic", preemptible=True),
        inventory("n1", gpu("H100", 0), gpu("H100", 1)),
    )
    held = await running(world, pool, movable=True)
    wants = await world.create(ask(pool.id, part("7g.80gb"), duration="1h"))
    done = await defragment(world, pool, apply=True, notice="10m")
    [move] = done.moves
    assert move.how == "recreate"
    was = await there(world, move.reservation_id)
    on_as = await there(world, move.successor_id)
    then = MONDAY + timedelta(minutes=10)
    assert (was.end, on_as.start, on_as.end) == (then, then, held[0].end)
    assert on_as.state == "placed"
    assert on_as.placement.movable
    assert was.bookings[0].gpu_id != on_as.bookings[0].gpu_id
    assert (await there(world, wants.id)).state == "pending", "till the notice is over"
    world.clock.advance(minutes=10)
    await world.reservations.lifecycle.advance()
    assert (await there(world, was.id)).state == "ended"
    assert (await there(world, on_as.id)).state == "active"
    assert (await there(world, wants.id)).state == "active"


async def test_of_a_series_that_goes_on_elsewhere_the_peak_is_charged_and_every_page_ends(world):
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic", preemptible=True),
        inventory("n1", gpu("H100", 0), gpu("H100", 1)),
    )
    await world.create(ask(pool.id, on(0, "1g.10gb"), duration="4h"))
    request = {
        "pool_id": pool.id,
        "devices": [on(1, "1g.10gb").model_dump(by_alias=True)],
        "placement": {"movable": True},
        "recurrence": {"days": ["mon", "tue", "wed"], "start": "08:00", "end": "16:00"}
        | {"zone": "UTC", "count": 3},
    }
    world.clock.advance(hours=-1)
    series = SeriesCreate.model_validate(request)
    series_id = await world.reservations.series.create(world.caller, series)
    await world.tick(hours=1)
    first, *_ = await of_series(world, series_id)
    await freely(world, pool, [first])
    before = await world.all_used(pool)
    wants = await world.create(ask(pool.id, part("7g.80gb"), duration="1h"))
    done = await defragment(world, pool, apply=True, notice="10m", reservations=[wants.id])
    assert [move.reservation_id for move in done.moves] == [first.id]
    assert await world.all_used(pool) == before
    assert await world.findings() == []
    found = await of_series(world, series_id)
    assert [each.id for each in found[3:]] == [done.moves[0].successor_id]
    await world.reservations.release(world.caller, wants.id)
    for _ in range(4):
        await world.tick(hours=1)
        assert await world.findings() == []
    await world.reservations.series.release(world.caller, series_id)
    assert await world.all_used(pool) == {}


async def of_series(world, series_id):
    """Return the reservations of a series, page by page."""
    found, after, more = [], None, True
    while more:
        view, more = await world.reservations.series.get(
            world.caller, series_id, after=after, limit=1
        )
        found += view.reservations
        after = found[-1].created_at, found[-1].id
        assert len(found) < 9, "the pages do not end"
    return found


async def test_what_is_moved_tells_how_well_its_gpus_reach_each_other_there(world):
    pool = await world.pool(
        pool_of("H100"),
        inventory("n1", *(gpu("H100", at, numa_node=0) for at in range(3))),
        inventory("n2", *(gpu("H100", at, node="n2", numa_node=at) for at in range(2))),
    )
    wide = device(count=2, where=[("node", "In", ["n1"])])
    held = await world.create(ask(pool.id, wide, start=LATER, duration="4h"))
    assert held.topology.link == "numa"
    forget = "UPDATE reservations SET devices = devices #- '{0,selector}' WHERE id = %s"
    await world.rows(forget, held.id)
    three = device(count=3)
    wants = await world.create(ask(pool.id, three, start=LATER, duration="1h"))
    assert wants.state == "pending"
    done = await defragment(world, pool, apply=True)
    assert [move.reservation_id for move in done.moves] == [held.id]
    moved = await there(world, held.id)
    assert {each.node for each in moved.bookings} == {"n2"}
    assert moved.topology.link == "node"
    assert (await there(world, wants.id)).topology.link == "numa"


async def test_a_pool_that_does_not_permit_it_refuses_those_that_could_be_moved(world):
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic"), inventory("n1", gpu("H100", 0))
    )
    with pytest.raises(InvalidInputError, match="what runs in h100-mig is not moved") as caught:
        await world.create(ask(pool.id, part("1g.10gb"), placement={"movable": True}))
    assert caught.value.field == "placement.movable"


async def test_only_whoever_manages_the_pool_may(world, scattered):
    pool, _ = scattered
    other = await world.tenant("acme")
    with pytest.raises(NotFoundError):
        await defragment(world, pool, caller=other)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"free_gpus": True, "reservations": ["res_1"]}, "free_gpus"),
        ({"reservations": ["res_1"]}, "reservations"),
        ({"notice": "soon"}, "notice"),
        ({"time_limit": "2h"}, "time_limit"),
    ],
)
async def test_bad_input_names_its_field(world, scattered, request_, field):
    pool, _ = scattered
    with pytest.raises(InvalidInputError) as caught:
        await defragment(world, pool, **request_)
    assert caught.value.field == field


async def test_where_somebody_was_faster_nothing_is_moved(world, scattered, monkeypatch):
    pool, held = scattered
    await freely(world, pool, held)
    await world.create(ask(pool.id, part("7g.80gb"), start=LATER, duration="1h"))
    defragmenter = world.reservations.defragmenter
    planned = defragmenter._plan

    async def plan_and_then_somebody_releases(*args):
        found = await planned(*args)
        await world.reservations.release(world.caller, found.moves[0].row["id"])
        return found

    monkeypatch.setattr(defragmenter, "_plan", plan_and_then_somebody_releases)
    before = await world.rows("SELECT id, gpu_id, voided_at FROM bookings ORDER BY id")
    with pytest.raises(ConflictError, match="nothing was moved"):
        await defragment(world, pool, apply=True)
    after = await world.rows("SELECT id, gpu_id, voided_at FROM bookings ORDER BY id")
    assert [row["id"] for row in after] == [row["id"] for row in before]
