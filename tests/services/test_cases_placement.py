"""Public bug reports of people who share GPUs, re-created small: each with the right answer.

A board and its slices both on offer, one GPU seen by two names, fractions and quotas by pieces.
"""

import asyncio
from datetime import timedelta
from fractions import Fraction

import pytest
from pools_acting import offer

from apportion.errors import ConflictError, InvalidInputError, QuotaExceededError
from apportion.reservations.service import Reservations
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
QUARTERS = ("1g.6gb@0", "1g.6gb@1", "1g.6gb@2", "1g.6gb@3")


async def in_use(world, pool):
    """Return what part of its GPUs is charged, exactly."""
    used = await world.all_used(pool)
    return Fraction(used.get("gpuEquivalents", 0))


# -- a board and its slices ------------------------------------------------------------------------


async def test_all_slices_of_two_boards_keep_both_boards_from_being_taken_whole(world):
    boards = [gpu("A30", index, *QUARTERS) for index in range(2)]
    pool = await world.pool(pool_of("A30", "mig"), inventory("n1", *boards))
    slices = await world.create(ask(pool.id, device("gpu.mig", 8)))
    assert len(slices.bookings) == 8
    whole = await world.create(ask(pool.id, device(count=2)))
    assert (whole.state, whole.reason["code"]) == ("pending", "no_unsplit_gpu")
    # Nor later, when the slices are free: a board that is cut is not there to be had whole.
    later = ask(pool.id, device(count=2), start=MONDAY + 5 * HOUR)
    assert (await world.create(later)).state == "pending"
    assert (await world.create(ask(pool.id, device("gpu.mig")))).reason["code"] == "units_booked"


@pytest.mark.parametrize("first", ["whole", "slice"])
async def test_a_board_and_a_slice_never_share_an_instant_of_any_window(world, first):
    """On a GPU that is cut on demand both can be had, one after the other."""
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic"), inventory("n1", gpu("H100", 0))
    )
    kinds = {"whole": device(), "slice": device("gpu.mig", profile="1g.10gb")}
    [second] = kinds.keys() - {first}
    held = await world.create(
        ask(pool.id, kinds[first], start=MONDAY + 2 * HOUR, end=MONDAY + 4 * HOUR)
    )
    assert held.state == "placed"
    for start, end, state in [
        (0, 2, "active"),
        (1, 3, "pending"),
        (2, 3, "pending"),
        (3, 5, "pending"),
        (1, 5, "pending"),
        (4, 6, "placed"),
    ]:
        request = ask(pool.id, kinds[second], start=MONDAY + start * HOUR, end=MONDAY + end * HOUR)
        assert (await world.create(request)).state == state, (start, end)


# -- one GPU by two names --------------------------------------------------------------------------


async def test_four_gpus_of_five_slots_are_four_gpus_and_their_use_is_exact(world):
    """One whole, one full by slots, one at three of five, one free; then the free one whole."""
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=5),
        inventory("n1", *(gpu("T4", index) for index in range(4))),
    )

    def slots(index, units):
        return ask(
            pool.id, device("gpu.slot", units=units, where=[("gpuUuid", "In", [f"GPU-n1-{index}"])])
        )

    for index, units in ((0, 5), (1, 3), (1, 2), (2, 3)):
        assert (await world.create(slots(index, units))).state == "active"
    assert await in_use(world, pool) == Fraction(13, 5)
    assert (await world.create(slots(1, 1))).state == "pending"
    assert (await world.create(slots(3, 5))).state == "active"
    free = [await world.create(ask(pool.id, device("gpu.slot"))) for _ in range(3)]
    assert [view.state for view in free] == ["active", "active", "pending"]
    assert {view.bookings[0].gpu_id for view in free[:2]} == {"GPU-n1-2"}


# -- fractions -------------------------------------------------------------------------------------


async def test_a_tenth_and_two_tenths_fit_three_tenths_exactly(world):
    pool = await world.pool(
        pool_of("T4", "mps", shares=100, quota={"gpu.share": 1000, "gpuEquivalents": "3/10"}),
        inventory("n1", gpu("T4", 0)),
    )
    for units in (10, 20):
        view = await world.create(ask(pool.id, device("gpu.share", units=units)))
        assert view.state == "active"
    assert await in_use(world, pool) == Fraction(3, 10)
    with pytest.raises(QuotaExceededError) as caught:
        await world.create(ask(pool.id, device("gpu.share", units=1)))
    assert caught.value.details["max"] == caught.value.details["used"] == "3/10"
    assert caught.value.details["asked"] == "1/100"


async def test_ten_tenths_fill_a_gpu_an_eleventh_waits_and_all_given_back_is_exactly_one(world):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    tenth = ask(pool.id, device("gpu.share", units=10))
    held = [await world.create(tenth) for _ in range(10)]
    assert {view.state for view in held} == {"active"}
    assert await in_use(world, pool) == 1
    eleventh = await world.create(tenth)
    assert (eleventh.state, eleventh.reason["code"]) == ("pending", "units_booked")
    await world.reservations.release(world.caller, eleventh.id)
    for view in held:
        await world.reservations.release(world.caller, view.id)
    assert await in_use(world, pool) == 0
    assert (await world.create(ask(pool.id, device("gpu.share", units=100)))).state == "active"


async def test_seven_sevenths_fill_a_quota_of_one_gpu_and_an_eighth_does_not_fit(world):
    cut = [f"1g.10gb@{start}" for start in range(7)]
    pool = await world.pool(
        pool_of("H100", "mig", quota={"gpu.mig": "unlimited", "gpuEquivalents": 1}),
        inventory("n1", gpu("H100", 0, *cut), gpu("H100", 1, *cut)),
    )
    for _ in range(7):
        assert (await world.create(ask(pool.id, device("gpu.mig")))).state == "active"
    assert await in_use(world, pool) == 1
    with pytest.raises(QuotaExceededError):
        await world.create(ask(pool.id, device("gpu.mig")))


# -- quotas ----------------------------------------------------------------------------------------


async def test_a_quota_counts_what_all_pieces_take_and_not_one_of_them(world):
    pool = await world.pool(
        pool_of("T4", "mps", shares=100, quota={"gpu.share": 150, "gpuEquivalents": 1}),
        inventory("n1", gpu("T4", 0), gpu("T4", 1)),
    )
    with pytest.raises(QuotaExceededError) as caught:  # 2 pieces of 6/10 are 6/5
        await world.create(ask(pool.id, device("gpu.share", 2, 60)))
    assert caught.value.details["asked"] == "6/5"
    assert await world.all_used(pool) == {}
    view = await world.create(ask(pool.id, device("gpu.share", 2, 40)))
    assert await world.used(pool) == {"gpu.share": 80}
    assert view.charges == {"gpu.share": 80, "gpuEquivalents": "4/5"}


@pytest.mark.parametrize(
    ("quota", "fits"), [({}, 0), ({"vcpu": 0}, 0), ({"vcpu": 5}, 5), ({"vcpu": "unlimited"}, 64)]
)
async def test_no_quota_is_none_zero_is_none_and_only_unlimited_is_all(world, quota, fits):
    pool = await world.pool(
        pool_of("H100", quota={"gpu": 1, "gpuEquivalents": "unlimited", **quota}),
        inventory("n1", gpu("H100", 0), cpus=68),
    )
    # An ask of none of it needs no quota of it.
    assert (await world.create(ask(pool.id, device()))).state == "active"
    if fits:
        view = await world.create(ask(pool.id, vcpu=fits))
        assert view.charges == {"vcpu": fits}
    with pytest.raises(QuotaExceededError if fits < 64 else InvalidInputError):
        await world.create(ask(pool.id, vcpu="1" if fits < 64 else "0"))


@pytest.mark.parametrize("vcpu", ["9223372036854775808", "1e40", "-1", "NaN"])
async def test_an_amount_beyond_all_counting_is_refused_and_never_wraps(world, vcpu):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    with pytest.raises(InvalidInputError) as caught:
        await world.create(ask(pool.id, vcpu=vcpu))
    assert "vcpu" in caught.value.field
    assert await world.all_used(pool) == {}


# -- two at once -----------------------------------------------------------------------------------


async def test_of_many_who_want_the_last_of_a_quota_one_gets_it_and_the_others_see_numbers(world):
    acme = await world.tenant("acme")
    pool = await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(16)))
    )
    await offer(world, pool, acme, {"gpu": 10})
    servers = [Reservations(world.runtime) for _ in range(4)]
    await asyncio.gather(*(servers[n % 4].create(acme, ask(pool.id, device())) for n in range(9)))
    outcomes = await asyncio.gather(
        *(servers[n % 4].create(acme, ask(pool.id, device())) for n in range(12)),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, QuotaExceededError)]
    placed = [each for each in outcomes if not isinstance(each, Exception)]
    assert ([view.state for view in placed], len(refused)) == (["active"], 11)
    assert {(each.details["max"], each.details["used"]) for each in refused} == {("10", "10")}


async def test_one_key_is_one_reservation_whichever_server_is_asked_and_how_often(world):
    pool = await world.pool(
        pool_of("H100"), inventory("n1", *(gpu("H100", index) for index in range(8)))
    )
    servers = [Reservations(world.runtime) for _ in range(4)]
    same = ask(pool.id, device(), duration="2h", key="mine")
    views = await asyncio.gather(*(servers[n % 4].create(world.caller, same) for n in range(16)))
    assert len({view.id for view in views}) == 1
    assert await world.used(pool) == {"gpu": 1}
    with pytest.raises(ConflictError) as caught:
        await servers[1].create(world.caller, ask(pool.id, device(), duration="3h", key="mine"))
    assert caught.value.details["reservation_id"] == views[0].id
    assert await in_use(world, pool) == 1
