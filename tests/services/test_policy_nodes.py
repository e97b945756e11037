"""A change of a pool's policy or model is judged by its nodes, and true for them at once."""

import asyncio
from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.nodes.service import list_gpus, list_nodes
from apportion.pools import validators
from apportion.pools.schemas import PoolUpdate, PoolValidate
from apportion.pools.service import get_pool, update_pool, validate_pool
from apportion.quantities.units import from_multirange
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def change(world, pool, **fields):
    """Change a pool, and let the gate do what it can by now."""
    version = (await get_pool(world.runtime, world.caller, pool.id)).version
    request = PoolUpdate(version=version, **fields)
    changed = await update_pool(world.runtime, world.caller, pool.id, request)
    await world.gate.advance()
    return changed


async def dry_run(world, pool, **fields):
    version = (await get_pool(world.runtime, world.caller, pool.id)).version
    request = PoolValidate(pool_id=pool.id, update=PoolUpdate(version=version, **fields))
    return await validate_pool(world.runtime, world.caller, request)


async def cut(world, pool):
    """Give each GPU's split, ruler and generation."""
    gpus = await list_gpus(world.runtime, world.caller, pool_id=pool.id)
    return [(each.split, each.ruler, each.layout_generation) for each in gpus]


async def host(world, pool):
    [node] = await list_nodes(world.runtime, world.caller, pool_id=pool.id)
    return {each.resource: (each.total, str(each.ratio), each.capacity) for each in node.resources}


def slot(pool, **window):
    return ask(pool.id, device("gpu.slot"), **window)


@pytest.mark.parametrize("mode", ["timeslice", "mps"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (48, 1)])
async def test_a_new_slot_count_is_bookable_at_once(world, mode, before, after):
    pool = await world.pool(pool_of("H100", mode, replicas=before), inventory("n1", gpu("H100", 0)))
    await change(world, pool, policy={"replicas": after})
    assert await cut(world, pool) == [("slots", after, 2)]
    shares = {each.share for each in await world.atoms(pool, cls="gpu.slot")}
    assert shares == {Fraction(1, after) if mode == "timeslice" else Fraction(100 // after, 100)}
    states = [(await world.create(slot(pool))).state for _ in range(after + 1)]
    assert states == ["active"] * after + ["pending"]


async def test_what_is_booked_after_a_change_is_billed_by_the_new_split(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=4), inventory("n1", gpu("H100", 0))
    )
    await world.create(slot(pool))
    await world.tick(hours=1)
    await change(world, pool, policy={"replicas": 2})
    await world.create(slot(pool))
    await world.tick(hours=1)
    assert await world.gpu_hours(end=world.clock()) == Fraction(1, 4) + Fraction(1, 2)


async def test_an_atom_is_never_edited_into_another(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=4), inventory("n1", gpu("H100", 0))
    )
    before = {row["id"] for row in await world.rows("SELECT id FROM atoms WHERE class <> 'gpu'")}
    await change(world, pool, policy={"replicas": 2})
    now = await world.rows("SELECT id FROM atoms WHERE class <> 'gpu' AND retired_at IS NULL")
    assert len(now) == 2
    assert before.isdisjoint(row["id"] for row in now)


async def test_slots_become_free_shares_and_back(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=4), inventory("n1", gpu("H100", 0))
    )
    await change(world, pool, policy={"shares": 100})
    assert await cut(world, pool) == [("shares", 100, 2)]
    tenth = ask(pool.id, device("gpu.share", units=10))
    assert (await world.create(tenth)).state == "active"
    await world.tick(hours=1)
    await change(world, pool, policy={"replicas": 2})
    assert await cut(world, pool) == [("slots", 2, 3)]


@pytest.mark.parametrize("start", [None, "2026-03-02T15:00:00Z"])
async def test_the_ruler_stays_while_somebody_has_units_of_it_now_or_later(world, start):
    gpus = [gpu("H100", 0), gpu("H100", 1)]
    pool = await world.pool(pool_of("H100", "timeslice", replicas=2), inventory("n1", *gpus))
    held = [await world.create(slot(pool, start=start, duration=f"{n}h")) for n in (1, 2, 3)]
    assert (await dry_run(world, pool, policy={"replicas": 4})).valid
    await change(world, pool, policy={"replicas": 4})
    assert [ruler for _, ruler, _ in await cut(world, pool)] == [2, 2]
    # Cancelled before it began, or ended: it holds nothing any more.
    for each in held:
        await world.release(each)
    await world.gate.advance()
    assert [ruler for _, ruler, _ in await cut(world, pool)] == [4, 4]


async def test_a_change_that_leaves_the_ruler_alone_goes_through_and_touches_no_node(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=2), inventory("n1", gpu("H100", 0))
    )
    await world.create(slot(pool))
    before = await world.rows("SELECT xmin::text, * FROM atoms ORDER BY id")
    await change(world, pool, policy={"replicas": 2, "maxPending": "6h"})
    assert await world.rows("SELECT xmin::text, * FROM atoms ORDER BY id") == before
    assert await cut(world, pool) == [("slots", 2, 1)]


async def test_who_books_while_a_node_is_recut_wins_and_is_waited_for(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=2), inventory("n1", gpu("H100", 0))
    )
    held = await world.create(slot(pool))
    await world.rows("UPDATE bookings SET voided_at = lower(during)")
    async with world.db.connection() as connection:
        # Somebody holds the GPU and is about to have units of it; nobody else sees that yet.
        await connection.execute("SELECT 1 FROM gpus FOR NO KEY UPDATE")
        changing = asyncio.create_task(change(world, pool, policy={"replicas": 4}))
        await asyncio.sleep(0.3)
        assert not changing.done()
        await connection.execute("UPDATE bookings SET voided_at = NULL")
    await changing
    assert await cut(world, pool) == [("slots", 2, 1)]
    await world.tick(hours=1)
    assert (await world.get(held)).state == "ended"
    assert await cut(world, pool) == [("slots", 4, 2)]


async def test_bookings_and_changes_that_race_never_leave_a_booking_on_an_old_ruler(world):
    gpus = [gpu("H100", each) for each in range(4)]
    pool = await world.pool(pool_of("H100", "timeslice", replicas=4), inventory("n1", *gpus))
    done = {"booked": 0, "changed": 0, "waited": 0}

    async def book():
        for _ in range(8):
            held = await world.create(slot(pool))
            done["booked"] += held.state == "active"
            await world.release(held)

    async def change_often():
        for replicas in (2, 8, 1, 4, 48, 3):
            await change(world, pool, policy={"replicas": replicas})
            states = await world.rows("SELECT state FROM node_layouts WHERE state <> 'settled'")
            done["waited" if states else "changed"] += 1
            await on_the_ruler()

    async def on_the_ruler():
        rows = await world.rows(
            "SELECT bookings.units::text AS units, ruler FROM bookings"
            " JOIN gpus ON gpus.id = gpu_id WHERE voided_at IS NULL AND upper(during) > %s",
            world.clock(),
        )
        for row in rows:
            assert from_multirange(row["units"]) >> row["ruler"] == 0

    await asyncio.gather(*(book() for _ in range(6)), change_often())
    await on_the_ruler()
    await change(world, pool, policy={"replicas": 5})
    assert done["booked"] > 10
    assert done["changed"] + done["waited"] == 6


async def test_a_report_that_waited_for_a_change_follows_the_new_policy(world, monkeypatch):
    pool = await world.pool(pool_of("H100", "timeslice", replicas=4))
    written, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_):
        written.set()
        await go_on.wait()

    monkeypatch.setattr(validators, "_FOLLOW_UPS", {"wait": wait})
    changing = asyncio.create_task(change(world, pool, policy={"replicas": 2}))
    await written.wait()
    reporting = asyncio.create_task(world.report(pool, inventory("n1", gpu("H100", 0))))
    await asyncio.sleep(0.3)
    assert not reporting.done()
    go_on.set()
    await asyncio.gather(changing, reporting)
    assert await cut(world, pool) == [("slots", 2, 1)]


async def test_the_model_changes_only_while_no_node_contradicts_it(world):
    pool = await world.pool(pool_of("A100"))
    assert (await change(world, pool, gpu_model="H100")).gpu_model == "H100"
    await world.report(
        pool,
        inventory("n1", gpu("H100", 0, node="n1"), gpu("H100", 1, node="n1")),
        inventory("n2", gpu("H100", 0, node="n2")),
    )
    told = await dry_run(world, pool, gpu_model="A100")
    with pytest.raises(InvalidStateError) as refused:
        await change(world, pool, gpu_model="A100")
    assert refused.value.message == "2 nodes hold GPUs of another model: n1, n2"
    assert (refused.value.field, refused.value.given) == ("gpu_model", "A100")
    assert (refused.value.allowed, refused.value.details["gpus"]) == ("H100", 3)
    assert [each.detail for each in told.problems] == [
        "gpu_model: 2 nodes hold GPUs of another model: n1, n2"
    ]
    assert {each.attributes["gpuModel"] for each in await world.atoms(pool)} == {"H100"}


async def test_another_spelling_of_the_model_reaches_the_atoms(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    held = await world.create(ask(pool.id, device()))
    await change(world, pool, gpu_model="h100")
    assert {each.attributes["gpuModel"] for each in await world.atoms(pool)} == {"h100"}
    assert [each.model for each in await list_gpus(world.runtime, world.caller)] == ["h100"]
    assert (await world.get(held)).state == "active"


async def test_a_layout_must_be_one_that_the_boards_that_are_there_can_have(world):
    pool = await world.pool(pool_of("H100", "mig", migLayout="all-1g.12gb"))
    await world.report(pool, inventory("n1", gpu("H100", 0)))
    with pytest.raises(InvalidInputError) as refused:
        await change(world, pool, policy={"migLayout": "all-1g.24gb"})
    assert refused.value.field == "policy.migLayout"
    assert refused.value.details["nodes"] == ["n1"]
    for fine in ("all-1g.10gb", "dynamic"):
        assert (await change(world, pool, policy={"migLayout": fine})).policy["migLayout"] == fine


async def test_reserve_overcommit_and_huge_pages_take_effect_at_once(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    assert await host(world, pool) == {
        "hugepages1Gi": ("0", "1", "0"),
        "hugepages2Mi": ("0", "1", "0"),
        "memoryGiB": ("256", "1", "256"),
        "vcpu": ("64", "1", "64"),
    }
    await change(
        world,
        pool,
        policy={
            "hostReserve": {"vcpu": 4, "memoryGiB": 8},
            "overcommit": {"vcpu": 2, "memoryGiB": 0.01},
            "hugepages": {"1Gi": 8, "2Mi": 1024},
        },
    )
    assert await host(world, pool) == {
        "hugepages1Gi": ("8", "1", "8"),
        "hugepages2Mi": ("1024", "1", "1024"),
        "memoryGiB": ("238", "0.1", "23.7998046875"),
        "vcpu": ("60", "2", "120"),
    }


async def test_a_capacity_never_falls_below_what_is_allocated(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    await world.create(ask(pool.id, vcpu=40, memory_gib=200))
    await change(world, pool, policy={"hostReserve": {"vcpu": 60, "memoryGiB": 250}})
    resources = await host(world, pool)
    assert resources["vcpu"] == ("4", "1", "40")
    assert resources["memoryGiB"] == ("6", "1", "200")
    await world.tick(hours=1)
    await change(world, pool, policy={"hostReserve": {"vcpu": 60, "memoryGiB": 249}})
    assert (await host(world, pool))["vcpu"] == ("4", "1", "4")


async def test_what_waits_for_host_resources_is_placed_once_more_is_given_away(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    waits = await world.create(ask(pool.id, vcpu=100))
    assert waits.state == "pending"
    await change(world, pool, policy={"overcommit": {"vcpu": 2}})
    await world.tick(seconds=1)
    assert (await world.get(waits)).state == "active"


async def test_what_waits_for_a_slot_is_placed_once_there_are_more(world):
    pool = await world.pool(
        pool_of("H100", "timeslice", replicas=1), inventory("n1", gpu("H100", 0))
    )
    held = await world.create(slot(pool, duration="30m"))
    waits = [await world.create(slot(pool)) for _ in range(3)]
    await world.reservations.release(world.caller, held.id)
    await change(world, pool, policy={"replicas": 3})
    await world.tick(seconds=1)
    assert [(await world.get(each)).state for each in waits] == ["active"] * 3
