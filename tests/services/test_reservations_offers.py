"""A reservation is charged to whom the pool is offered, exactly, and gives back to the same."""

from fractions import Fraction

import pytest
from pools_acting import limit, limits, offer, unoffer

from apportion.errors import QuotaExceededError
from apportion.events.service import list_events
from apportion.quantities.equivalents import PER_GPU
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
CUTS = ("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4")


@pytest.fixture
async def pool(world):
    gpus = [gpu("H100", index) for index in range(8)]
    return await world.pool(pool_of("H100"), inventory("n1", *gpus))


async def cut_pool(world):
    gpus = [gpu("H100", 0, *CUTS), gpu("H100", 1, "7g.80gb@0"), gpu("H100", 2)]
    return await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))


async def reserve(world, caller, request):
    return await world.reservations.create(caller, request)


async def used(world, caller, pool):
    """Return what is used of a tenant's quotas on a pool, equivalents as parts of a GPU."""
    found = await limits(world, caller, pool)
    return {
        resource: Fraction(amount, PER_GPU) if resource == "gpuEquivalents" else amount
        for resource, (_, text) in found.items()
        if (amount := int(text))
    }


# -- whose quota -----------------------------------------------------------------------------------


async def test_an_offered_tenant_is_charged_and_the_owner_is_not(world, pool, acme):
    await offer(world, pool, acme, {"gpu": 4})
    view = await reserve(world, acme, ask(pool.id, device(count=3)))
    assert (view.tenant_id, view.charged_tenant_id) == ("acme", "acme")
    assert view.charges == {"gpu": 3, "gpuEquivalents": 3}
    assert await used(world, acme, pool) == {"gpu": 3, "gpuEquivalents": 3}
    assert await used(world, world.caller, pool) == {}
    with pytest.raises(QuotaExceededError) as caught:
        await reserve(world, acme, ask(pool.id, device(count=2)))
    assert caught.value.message == f"asks for 2 gpu of {pool.name}, and there is 1 left"
    assert caught.value.details["tenant_id"] == "acme"
    assert caught.value.hint == "The pool's owner sets the quota of acme on it"


async def test_descendants_are_charged_to_the_tenant_that_has_the_offer(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 4}, include_descendants=True)
    own = await reserve(world, acme, ask(pool.id, device()))
    below = await reserve(world, lab, ask(pool.id, device(count=3)))
    assert (own.charged_tenant_id, below.charged_tenant_id) == ("acme", "acme")
    assert below.tenant_id == "acme-lab"
    assert await used(world, acme, pool) == {"gpu": 4, "gpuEquivalents": 4}
    with pytest.raises(QuotaExceededError) as caught:
        await reserve(world, lab, ask(pool.id, device()))
    assert caught.value.details["tenant_id"] == "acme"
    await world.reservations.release(lab, below.id)
    assert await used(world, acme, pool) == {"gpu": 1, "gpuEquivalents": 1}


async def test_what_ends_gives_back_to_whom_it_was_charged_whatever_the_offers_say_by_now(
    world, pool, acme, lab
):
    await offer(world, pool, acme, {"gpu": 4}, include_descendants=True)
    first = await reserve(world, lab, ask(pool.id, device(), duration="1h"))
    await offer(world, pool, lab, {"gpu": 4})
    second = await reserve(world, lab, ask(pool.id, device(), duration="2h"))
    assert (first.charged_tenant_id, second.charged_tenant_id) == ("acme", "acme-lab")
    await unoffer(world, pool, acme)
    await world.tick(hours=1)
    assert await used(world, acme, pool) == {}
    assert await used(world, lab, pool) == {"gpu": 1, "gpuEquivalents": 1}
    await world.reservations.release(lab, second.id)
    assert await used(world, lab, pool) == {}


async def test_the_clock_places_what_waits_for_each_tenant_on_its_own_quota(world, pool, acme, lab):
    await offer(world, pool, acme, {"gpu": 8}, include_descendants=True)
    held = await world.create(ask(pool.id, device(count=8)))
    waiting = [
        await reserve(world, caller, ask(pool.id, device(count=2)))
        for caller in (world.caller, acme, lab)
    ]
    assert {view.state for view in waiting} == {"pending"}
    assert [view.charges for view in waiting] == [{}, {}, {}]
    await world.release(held)
    assert await used(world, world.caller, pool) == {"gpu": 2, "gpuEquivalents": 2}
    assert await used(world, acme, pool) == {"gpu": 4, "gpuEquivalents": 4}
    placed = [
        await world.reservations.get(caller, view.id)
        for caller, view in zip((world.caller, acme, lab), waiting, strict=True)
    ]
    assert [view.charged_tenant_id for view in placed] == ["root", "acme", "acme"]


async def test_each_candidate_pool_has_a_quota_of_its_own(world, pool, acme, lab):
    """The tenant's own offer of one pool is spent; the other pool it has through the one above."""
    other = await world.pool(
        pool_of("H100", name="other"), inventory("n2", gpu("H100", 0, node="n2"))
    )
    await offer(world, pool, lab, {"gpu": 0})
    await offer(world, other, acme, {"gpu": 1}, include_descendants=True)
    view = await reserve(world, lab, ask([pool.id, other.id], device()))
    assert (view.pool_id, view.charged_tenant_id) == (other.id, "acme")


# -- exact GPU equivalents -------------------------------------------------------------------------


async def test_a_1g_and_a_7g_cost_one_of_the_count_alike_and_a_seventh_and_a_whole(world, acme):
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": 10})
    small = await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="1g.10gb")))
    large = await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="7g.80gb")))
    assert small.charges == {"gpu.mig": 1, "gpuEquivalents": "1/7"}
    assert large.charges == {"gpu.mig": 1, "gpuEquivalents": 1}
    assert await used(world, acme, pool) == {"gpu.mig": 2, "gpuEquivalents": Fraction(8, 7)}
    [stored] = await world.rows("SELECT charges FROM reservations WHERE id = %s", small.id)
    assert stored["charges"] == {"gpu.mig": "1", "gpuEquivalents": "63245806209101973600"}
    await world.reservations.release(acme, large.id)
    assert await used(world, acme, pool) == {"gpu.mig": 1, "gpuEquivalents": Fraction(1, 7)}


@pytest.mark.parametrize(
    ("sharing", "policy", "piece", "part"),
    [
        ("exclusive", {}, device(count=2), 2),
        ("timeslice", {"replicas": 7}, device("gpu.slot", count=2, units=3), Fraction(6, 7)),
        ("mps", {"replicas": 3}, device("gpu.slot"), Fraction(33, 100)),
        ("mps", {"shares": 100}, device("gpu.share", count=2, units=81), Fraction(162, 100)),
        ("exclusive", {}, None, 0),
    ],
)
async def test_each_kind_of_piece_is_charged_its_part_of_a_gpu(world, sharing, policy, piece, part):
    gpus = [gpu("T4", index) for index in range(2)]
    pool = await world.pool(pool_of("T4", sharing, **policy), inventory("n1", *gpus))
    devices = [] if piece is None else [piece]
    view = await world.create(ask(pool.id, *devices, vcpu=1))
    assert view.state == "active"
    assert (await used(world, world.caller, pool)).get("gpuEquivalents", 0) == part
    # What takes no GPU takes nothing of it, and needs no quota of it.
    assert ("gpuEquivalents" in view.charges) == bool(part)
    await world.release(view)
    assert await used(world, world.caller, pool) == {}


async def test_a_limit_of_equivalents_holds_exactly_where_the_count_does_not(world, acme):
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": "unlimited", "gpuEquivalents": "3/7"})
    for profile in ("1g.10gb", "2g.20gb"):
        view = await reserve(world, acme, ask(pool.id, device("gpu.mig", profile=profile)))
        assert view.state == "active"
    with pytest.raises(QuotaExceededError) as caught:
        await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="1g.10gb")))
    assert caught.value.details == {
        "pool_id": pool.id,
        "tenant_id": "acme",
        "resource": "gpuEquivalents",
        "asked": "at least 1/8",
        "max": "3/7",
        "used": "3/7",
    }


async def test_only_the_place_tells_what_an_instance_costs_and_the_quota_is_asked_again(
    world, acme
):
    """One refusal, not one clash after another: what fits in theory costs too much in its place."""
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": 10, "gpuEquivalents": "6/7"})
    with pytest.raises(QuotaExceededError) as caught:
        await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="7g.80gb")))
    assert caught.value.message == (
        f"asks for 1 gpuEquivalents of {pool.name}, and there is 6/7 left"
    )
    assert await used(world, acme, pool) == {}
    await limit(world, pool, acme, "gpuEquivalents", 1)
    view = await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="7g.80gb")))
    assert view.state == "active"


async def test_no_row_of_equivalents_grants_no_gpu(world, acme):
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": 10, "gpu": 10})
    await world.rows("DELETE FROM quotas WHERE resource = 'gpuEquivalents' AND tenant_id = 'acme'")
    for piece in (device("gpu.mig"), device()):
        with pytest.raises(QuotaExceededError, match="no quota row, which grants 0") as caught:
            await reserve(world, acme, ask(pool.id, piece))
        assert caught.value.details["resource"] == "gpuEquivalents"
    await limit(world, pool, acme, "gpuEquivalents", "unlimited")
    assert (await reserve(world, acme, ask(pool.id, device()))).state == "active"


async def test_a_waiting_one_is_held_back_by_equivalents_until_the_limit_is_raised(world, acme):
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": 10, "gpuEquivalents": 2})
    piece = ask(pool.id, device("gpu.mig", profile="7g.80gb"))
    held = await reserve(world, acme, piece)
    waiting = await reserve(world, acme, piece)
    assert waiting.state == "pending"
    await limit(world, pool, acme, "gpuEquivalents", "1/2")
    await world.reservations.release(acme, held.id)
    await world.tick(seconds=1)
    view = await world.reservations.get(acme, waiting.id)
    assert (view.state, view.reason["code"]) == ("pending", "quota_exceeded")
    assert view.reason["message"] == (
        f"asks for 1 gpuEquivalents of {pool.name}, and there is 1/2 left"
    )
    assert await used(world, acme, pool) == {}
    await limit(world, pool, acme, "gpuEquivalents", 1)
    await world.tick(seconds=1)
    assert (await world.reservations.get(acme, waiting.id)).state == "active"


async def test_many_in_one_batch_never_take_more_than_the_limit_of_equivalents(world, acme):
    """Seven sevenths fit one GPU's worth, the eighth does not; what loses holds nothing."""
    gpus = [gpu("H100", index, *(f"1g.10gb@{at}" for at in range(7))) for index in range(2)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))
    await offer(world, pool, acme, {"gpu.mig": 14, "gpuEquivalents": 1})
    asks = [ask(pool.id, device("gpu.mig")) for _ in range(9)]
    outcomes = await world.reservations.create_many(acme, asks)
    refused = [each for each in outcomes if isinstance(each, QuotaExceededError)]
    assert len(refused) == 2
    assert await used(world, acme, pool) == {"gpu.mig": 7, "gpuEquivalents": 1}


async def test_events_show_charges_as_people_read_them_and_say_what_changed(world, acme):
    pool = await cut_pool(world)
    await offer(world, pool, acme, {"gpu.mig": 10})
    view = await reserve(world, acme, ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    world.clock.advance(minutes=10)
    await world.reservations.release(acme, view.id)
    placed, ended = await list_events(world.runtime, acme, subject=view.id)
    assert placed.data["charges"] == {"gpu.mig": 1, "gpuEquivalents": "3/7"}
    assert placed.data["charged_tenant_id"] == "acme"
    assert ended.data["charges"] == placed.data["charges"]
    rows = await world.rows(
        "SELECT before, after FROM events WHERE subject = %s ORDER BY id", view.id
    )
    assert (rows[0]["before"], rows[0]["after"]["state"]) == (None, "active")
    assert (rows[1]["before"]["state"], rows[1]["after"]["state"]) == ("active", "ended")
    assert rows[1]["before"]["end"] == "2026-03-02T10:00:00Z"
    assert rows[1]["after"]["end"] == "2026-03-02T09:10:00Z"
