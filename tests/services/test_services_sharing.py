"""Each way of sharing a GPU, from the node's report to the bill."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, mig, pool_of

pytestmark = pytest.mark.anyio

CUT = ("3g.40gb@4", "2g.20gb@0", "2g.20gb@2")


async def shown(world, pool):
    return [(a.id, a.class_, str(a.share), a.bookable, a.reason) for a in await world.atoms(pool)]


async def test_a_whole_gpu_is_one_atom_booked_whole(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    assert await shown(world, pool) == [("GPU-n1-0", "gpu", "1", True, None)]
    view = await world.create(ask(pool.id, device(), duration="2h"))
    assert [(b.units, b.atom, b.share) for b in view.bookings] == [("{[0,)}", "GPU-n1-0", 1)]
    again = await world.create(ask(pool.id, device()))
    assert (again.state, again.reason["code"]) == ("pending", "units_booked")
    await world.tick(minutes=90)
    assert await world.gpu_hours() == Fraction(3, 2)


async def test_half_a_gpu_in_slots_and_a_3g_for_an_hour_are_thirteen_fourteenths(world):
    slots = await world.pool(
        pool_of("H100", "timeslice", replicas=4), inventory("n1", gpu("H100", 0, node="n1"))
    )
    cut = await world.pool(pool_of("H100", "mig"), inventory("n2", gpu("H100", 0, *CUT, node="n2")))
    await world.create(ask(slots.id, device("gpu.slot", count=2)))
    await world.create(ask(cut.id, device("gpu.mig", profile="3g.40gb")))
    await world.tick(hours=3)
    rows = await world.usage()
    assert {row.meter for row in rows} == {"gpu.h100.hours"}
    assert sum(row.gpu_hours for row in rows) == Fraction(13, 14)


@pytest.mark.parametrize("replicas", [1, 3, 7, 48])
async def test_an_mps_slot_is_the_floor_of_a_hundred_units_over_the_replicas(world, replicas: int):
    pool = await world.pool(pool_of("T4", "mps", replicas=replicas), inventory("n1", gpu("T4", 0)))
    atoms = await world.atoms(pool, cls="gpu.slot")
    each = 100 // replicas
    assert [a.attributes["mpsUnits"] for a in atoms] == [each] * replicas
    assert {a.share for a in atoms} == {Fraction(each, 100)}
    taken = [await world.create(ask(pool.id, device("gpu.slot"))) for _ in range(replicas)]
    assert {view.state for view in taken} == {"active"}
    assert (await world.create(ask(pool.id, device("gpu.slot")))).state == "pending"
    await world.tick(hours=1)
    assert await world.gpu_hours(end=world.clock()) == Fraction(each * replicas, 100)


@pytest.mark.parametrize(("name", "value"), [("replicas", 49), ("replicas", 0), ("shares", 48)])
async def test_a_split_that_mps_cannot_serve_is_refused_with_the_limit(
    world, name: str, value: int
):
    with pytest.raises(InvalidInputError) as caught:
        await world.pool(pool_of("T4", "mps", **{name: value}))
    assert caught.value.field == f"policy.{name}"
    assert caught.value.given == value
    assert caught.value.allowed is not None


async def test_an_a30_is_billed_by_its_four_compute_slices(world):
    pool = await world.pool(
        pool_of("A30", "mig"), inventory("n1", gpu("A30", 0, "2g.12gb@0", "1g.6gb@2"))
    )
    await world.create(ask(pool.id, device("gpu.mig", profile="2g.12gb")))
    await world.tick(hours=1)
    assert await world.gpu_hours() == Fraction(2, 4)


async def test_a_fraction_of_free_shares_is_that_many_units_and_a_seat(world):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    view = await world.create(ask(pool.id, device("gpu.share", units=81)))
    assert [(b.units, b.share) for b in view.bookings] == [
        ("{[0,81),[100,101)}", Fraction(81, 100))
    ]
    assert await world.used(pool) == {"gpu.share": 81}
    rest = await world.create(ask(pool.id, device("gpu.share", units=20)))
    assert rest.state == "pending"
    assert (await world.create(ask(pool.id, device("gpu.share", units=19)))).state == "active"


async def test_a_shared_gpu_seats_48_holders_and_no_more(world):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    one = ask(pool.id, device("gpu.share", units=1))
    outcomes = await world.reservations.create_many(world.caller, [one] * 49)
    views = await world.reservations.get_many(world.caller, outcomes)
    states = [views[each].state for each in outcomes]
    assert states == ["active"] * 48 + ["pending"]
    await world.release(views[outcomes[7]])
    assert (await world.get(views[outcomes[48]])).state == "active"


async def test_several_whole_gpus_by_their_shares_lie_on_gpus_of_their_own(world):
    gpus = [gpu("T4", index) for index in range(3)]
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", *gpus))
    view = await world.create(ask(pool.id, device("gpu.share", count=2, units=50)))
    assert len({booking.gpu_id for booking in view.bookings}) == 2


async def test_ten_tenths_fill_a_gpu_and_the_eleventh_waits(world):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    views = [await world.create(ask(pool.id, device("gpu.share", units=10))) for _ in range(11)]
    assert [view.state for view in views] == ["active"] * 10 + ["pending"]
    for view in views:
        await world.release(view)
    whole = await world.create(ask(pool.id, device("gpu.share", units=100)))
    assert whole.state == "active"


async def test_four_quarters_are_a_whole_gpu_hour_each(world):
    pool = await world.pool(pool_of("H100", "mps", shares=100), inventory("n1", gpu("H100", 0)))
    for _ in range(4):
        await world.create(ask(pool.id, device("gpu.share", units=25)))
    await world.tick(hours=1)
    assert await world.gpu_hours() == 1
    await world.create(ask(pool.id, device("gpu.share", units=100)))
    await world.tick(hours=1)
    assert await world.gpu_hours(start=MONDAY) == 2


async def test_a_gpu_whose_mig_mode_is_changing_takes_nothing_new(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *CUT)))
    changing = gpu("H100", 0, mig=mig("GPU-n1-0", *CUT, pending=False))
    await world.report(pool, inventory("n1", changing))
    assert {a.reason for a in await world.atoms(pool)} == {"partitionPending"}
    view = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    assert (view.state, view.reason["code"]) == ("pending", "gpu_unbookable")
    await world.report(pool, inventory("n1", gpu("H100", 0, *CUT)))
    await world.tick(seconds=1)
    assert (await world.get(view)).state == "active"


async def test_a_gpu_in_mig_mode_cannot_be_reserved_in_a_pool_of_another_mode(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0, *CUT), gpu("H100", 1)))
    reasons = {a.id: a.reason for a in await world.atoms(pool)}
    assert reasons.pop("GPU-n1-1") is None
    assert reasons.pop("GPU-n1-0") == "split"
    assert set(reasons.values()) == {"pool_does_not_share_by_mig"}
    first, second = [await world.create(ask(pool.id, device())) for _ in range(2)]
    assert [b.gpu_id for b in first.bookings] == ["GPU-n1-1"]
    assert (second.state, second.reason["code"]) == ("pending", "units_booked")


async def test_an_unsplit_gpu_of_a_mig_pool_is_taken_whole_and_a_split_one_never(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *CUT)))
    view = await world.create(ask(pool.id, device()))
    assert (view.state, view.reason["code"]) == ("pending", "no_unsplit_gpu")


async def test_a_parent_and_its_slices_are_never_both_on_offer(world):
    pool = await world.pool(
        pool_of("H100", "mig"), *(inventory(n, gpu("H100", 0, *CUT, node=n)) for n in ("n1", "n2"))
    )
    slices = ask(pool.id, device("gpu.mig", count=3))
    taken = [await world.create(slices) for _ in range(2)]
    assert {view.state for view in taken} == {"active"}
    every = await world.create(ask(pool.id, device("gpu", count=2)))
    assert (every.state, every.reason["code"]) == ("pending", "no_unsplit_gpu")
    assert sum(reason["count"] for reason in every.reason["reasons"]) == every.reason["nodes"] == 2


async def test_a_gpu_of_another_model_is_refused_with_the_reason(world):
    pool = await world.pool(pool_of("H100", "mig"))
    with pytest.raises(InvalidInputError) as caught:
        await world.report(pool, inventory("n1", gpu("H100", 0), gpu("A100", 1)))
    assert caught.value.field == "gpus[1].product"
    assert "the pool holds H100 GPUs and this is of family A100" in str(caught.value)
    assert await world.rows("SELECT uid FROM nodes") == []


async def test_instances_that_overlap_cannot_both_be_booked(world):
    """A report that contradicts itself is refused, or its instances clash when booked."""
    pool = await world.pool(pool_of("H100", "mig"))
    with pytest.raises(InvalidInputError) as caught:
        await world.report(pool, inventory("n1", gpu("H100", 0, "3g.40gb@4", "1g.10gb@5")))
    assert caught.value.field == "gpus[0].mig.instances"


async def test_a_compute_instance_is_no_instance_of_its_own(world):
    instances = mig("GPU-n1-0", "1c.3g.40gb@4", "2g.20gb@0")
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, mig=instances)))
    atoms = {a.id: a.reason for a in await world.atoms(pool, cls="gpu.mig")}
    assert atoms == {
        "GPU-n1-0/mig/9@4": "compute_instance_smaller_than_gpu_instance",
        "GPU-n1-0/mig/14@0": None,
    }
