"""Reports of nodes: atoms follow the cut, host rows the machine; nobody loses what they have."""

import asyncio
from datetime import timedelta

import pytest

from apportion.errors import ConflictError, InvalidInputError
from apportion.nodes.service import list_gpus, list_nodes
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

THREES = ("3g.40gb@4", "3g.40gb@0")
TWOS = ("3g.40gb@4", "2g.20gb@0", "2g.20gb@2")


async def keys(world, pool):
    return {a.id.removeprefix("GPU-n1-0"): a.reason for a in await world.atoms(pool)}


async def generation(world, pool):
    [gpu] = await list_gpus(world.runtime, world.caller, pool_id=pool.id)
    return gpu.layout_generation


async def resources(world, pool):
    [node] = await list_nodes(world.runtime, world.caller, pool_id=pool.id)
    return {r.resource: (r.total, str(r.ratio), r.capacity) for r in node.resources}


async def test_a_new_cut_retires_the_old_atoms_and_raises_the_generation(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *THREES)))
    assert await generation(world, pool) == 1
    before = await world.rows("SELECT id, key FROM atoms")
    await world.report(pool, inventory("n1", gpu("H100", 0, *TWOS)))
    assert await keys(world, pool) == {
        "": "split",
        "/mig/9@4": None,
        "/mig/14@0": None,
        "/mig/14@2": None,
    }
    assert await generation(world, pool) == 2
    after = await world.rows("SELECT id, key, generation FROM atoms WHERE retired_at IS NULL")
    # What stayed is the same atom; what is new carries the generation that it was made in.
    ids = {row["key"]: row["id"] for row in before}
    assert {r["key"]: (r["id"] == ids.get(r["key"]), r["generation"]) for r in after} == {
        "GPU-n1-0": (True, 1),
        "GPU-n1-0/mig/9@4": (True, 1),
        "GPU-n1-0/mig/14@0": (False, 2),
        "GPU-n1-0/mig/14@2": (False, 2),
    }


async def test_the_same_report_again_changes_nothing(world):
    report = inventory("n1", gpu("H100", 0, *THREES))
    pool = await world.pool(pool_of("H100", "mig"), report)
    before = await world.rows("SELECT xmin::text, * FROM atoms ORDER BY id")
    await world.report(pool, report)
    assert await world.rows("SELECT xmin::text, * FROM atoms ORDER BY id") == before
    assert await generation(world, pool) == 1


async def test_a_new_mig_uuid_is_the_same_atom(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *THREES)))
    held = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    again = gpu("H100", 0, *reversed(THREES))
    await world.report(pool, inventory("n1", again))
    assert await generation(world, pool) == 1
    [atom] = [a for a in await world.atoms(pool) if a.id == held.bookings[0].atom]
    [there] = [i for i in again.mig.instances if i.start == int(atom.id[-1])]
    assert atom.attributes["migUuid"] == there.uuid


async def test_an_instance_that_is_gone_keeps_its_atom_unbookable_while_it_is_booked(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, *THREES)))
    where = [("giId", "In", [2])]
    held = await world.create(ask(pool.id, device("gpu.mig", where=where), duration="2h"))
    assert held.bookings[0].atom == "GPU-n1-0/mig/9@0"
    await world.report(pool, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    await world.report(pool, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    assert (await keys(world, pool))["/mig/9@0"] == "instance_missing"
    assert await generation(world, pool) == 2
    both = await world.create(ask(pool.id, device("gpu.mig", count=2)))
    assert both.state == "pending"
    await world.release(both)
    # It comes back and can be booked again, or its window ends and it is retired.
    await world.report(pool, inventory("n1", gpu("H100", 0, *THREES)))
    assert (await keys(world, pool))["/mig/9@0"] is None
    await world.tick(hours=2)
    await world.report(pool, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    assert "/mig/9@0" not in await keys(world, pool)


async def test_a_gpu_that_is_not_listed_is_no_longer_there(world):
    both = [gpu("H100", 0), gpu("H100", 1)]
    pool = await world.pool(pool_of("H100"), inventory("n1", *both))
    await world.report(pool, inventory("n1", both[1]))
    first, second = [await world.create(ask(pool.id, device())) for _ in range(2)]
    assert [b.gpu_id for b in first.bookings] == ["GPU-n1-1"]
    assert second.state == "pending"
    await world.report(pool, inventory("n1", *both))
    await world.tick(seconds=1)
    assert [b.gpu_id for b in (await world.get(second)).bookings] == ["GPU-n1-0"]


async def test_a_failed_gpu_degrades_its_node_and_leaves_the_others_usable(world):
    gpus = [gpu("H100", 0, failed="Xid 79"), gpu("H100", 1)]
    pool = await world.pool(pool_of("H100"), inventory("n1", *gpus))
    [node] = await list_nodes(world.runtime, world.caller)
    assert (node.health, node.health_reason) == ("degraded", "failed: GPU-n1-0")
    assert (await keys(world, pool))[""] == "failed"
    assert (await world.create(ask(pool.id, device()))).bookings[0].gpu_id == "GPU-n1-1"
    await world.report(pool, inventory("n1", gpu("H100", 0, failed="Xid 79")))
    [node] = await list_nodes(world.runtime, world.caller)
    assert node.health == "no_capacity"


async def test_a_gpu_of_another_node_is_a_conflict_and_nothing_is_half_written(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    moved = inventory("n2", gpu("H100", 0, node="n1"), gpu("H100", 1, node="n2"))
    with pytest.raises(ConflictError, match="GPU-n1-0 is on node n1 already"):
        await world.report(pool, moved)
    assert [row["name"] for row in await world.rows("SELECT name FROM nodes")] == ["n1"]


async def test_two_pools_that_claim_one_gpu_at_once_get_one_answer_each(world):
    pools = [await world.pool(pool_of("H100", name=f"p{i}")) for i in range(4)]
    outcomes = await asyncio.gather(
        *(
            world.report(pool, inventory(f"n{i}", gpu("H100", 0, node="same")))
            for i, pool in enumerate(pools)
        ),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, Exception)]
    assert len(refused) == 3
    assert {type(each) for each in refused} == {ConflictError}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, {"vcpu": ("64", "1", "64"), "memoryGiB": ("256", "1", "256")}),
        (
            {
                "hostReserve": {"vcpu": "0.5", "memoryGiB": 8},
                "overcommit": {"vcpu": 1.5, "memoryGiB": "1.1"},
            },
            {"vcpu": ("63.5", "1.5", "95.25"), "memoryGiB": ("248", "1.1", "272.7998046875")},
        ),
        (
            {"overcommit": {"vcpu": 1000, "memoryGiB": "0.01"}},
            {"vcpu": ("64", "100", "6400"), "memoryGiB": ("256", "0.1", "25.599609375")},
        ),
        (
            {"hostReserve": {"vcpu": 100, "memoryGiB": 300}},
            {"vcpu": ("0", "1", "0"), "memoryGiB": ("0", "1", "0")},
        ),
    ],
)
async def test_host_rows_are_what_is_left_times_the_ratio_clamped_and_stored(
    world, policy, expected
):
    pool = await world.pool(pool_of("H100", **policy), inventory("n1", gpu("H100", 0)))
    rows = await resources(world, pool)
    assert {key: rows[key] for key in expected} == expected


@pytest.mark.parametrize("ratio", ["1/3", -1, "NaN", True, "two"])
async def test_a_ratio_that_is_no_exact_decimal_above_nought_is_refused(world, ratio):
    with pytest.raises(InvalidInputError) as caught:
        await world.pool(pool_of("H100", overcommit={"vcpu": ratio}))
    assert caught.value.field == "policy.overcommit.vcpu"


async def test_huge_pages_come_off_the_memory_and_are_never_overcommitted(world):
    host = {"logical_cpus": 64, "memory_mib": 262144, "hugepages": {"2Mi": 512, "1Gi": 4}}
    pool = await world.pool(
        pool_of("H100", overcommit={"memoryGiB": 2}), inventory("n1", gpu("H100", 0), host=host)
    )
    assert await resources(world, pool) == {
        "vcpu": ("64", "1", "64"),
        "memoryGiB": ("251", "2", "502"),
        "hugepages2Mi": ("512", "1", "512"),
        "hugepages1Gi": ("4", "1", "4"),
    }


async def test_huge_pages_of_the_policy_win_over_those_reported(world):
    pool = await world.pool(pool_of("H100", hugepages={"1Gi": 64}), inventory("n1", gpu("H100", 0)))
    rows = await resources(world, pool)
    assert rows["hugepages1Gi"] == ("64", "1", "64")
    assert rows["memoryGiB"] == ("192", "1", "192")


async def test_a_machine_that_its_tenant_controls_has_no_host_rows(world):
    report = inventory("n1", gpu("H100", 0), controller="tenant")
    pool = await world.pool(pool_of("H100"), report)
    assert await resources(world, pool) == {}
    assert (await world.create(ask(pool.id, device()))).state == "active"
    short = await world.create(ask(pool.id, vcpu=1))
    assert (short.state, short.reason["code"]) == ("pending", "larger_than_any_node")


async def test_a_row_never_shrinks_below_what_is_allocated(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), cpus=64))
    await world.create(ask(pool.id, vcpu=40, duration="1h"))
    later = world.clock() + timedelta(hours=2)
    await world.create(ask(pool.id, vcpu=48, memory_gib=100, start=later, duration="1h"))
    small = inventory("n1", gpu("H100", 0), cpus=16, memory_gib=64)
    await world.report(pool, small)
    rows = await resources(world, pool)
    assert (rows["vcpu"], rows["memoryGiB"]) == (("16", "1", "48"), ("64", "1", "100"))
    # Nothing more fits beside what is kept, and once that has ended the row says what there is.
    assert (await world.create(ask(pool.id, vcpu=10, duration="10m"))).state == "pending"
    await world.tick(hours=3)
    await world.report(pool, small)
    assert (await resources(world, pool))["vcpu"] == ("16", "1", "16")


async def test_rows_that_would_say_the_same_again_are_not_rewritten(world):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    query = "SELECT resource, xmin::text, updated_at FROM node_resources ORDER BY resource"
    before = await world.rows(query)
    world.clock.advance(hours=1)
    await world.report(pool, inventory("n1", gpu("H100", 0)))
    assert await world.rows(query) == before
    await world.report(pool, inventory("n1", gpu("H100", 0), cpus=63))
    changed = [
        b["resource"] for a, b in zip(before, await world.rows(query), strict=True) if a != b
    ]
    assert changed == ["vcpu"]
