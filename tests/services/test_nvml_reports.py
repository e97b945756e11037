"""What a node agent reports of its GPUs is held against what can be booked."""

import pytest

from apportion.geometry import board_by_key
from apportion.nodes.schemas import GpuReport, ProductProfiles
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


def cut(*instances):
    """Build the report of an H100 in MIG mode that has those instances."""
    report = gpu("H100", 0, "1g.10gb@0").model_dump()
    rows = [
        {"gi_id": at, "ci_id": 0, "uuid": f"MIG-{at}", "profile": "1g.10gb", "start": at, **each}
        for at, each in enumerate(instances)
    ]
    report["mig"] = {"current": True, "pending": True, "instances": rows}
    return GpuReport.model_validate(report)


async def reasons(world, pool):
    return {atom.id.partition("/")[2]: atom.reason for atom in await world.atoms(pool)}


async def health(world, pool):
    rows = await world.rows("SELECT health, health_reason FROM nodes WHERE pool_id = %s", pool.id)
    return [(row["health"], row["health_reason"]) for row in rows]


@pytest.mark.parametrize("layout", [None, "dynamic"])
@pytest.mark.parametrize(
    ("broken", "reason"),
    [({"failed": "xid 94"}, "failed"), ({"ci_id": None, "uuid": None}, "no_compute_instance")],
)
async def test_an_instance_that_cannot_be_used_is_not_booked_and_its_neighbours_are(
    world, layout, broken, reason
):
    policy = {} if layout is None else {"migLayout": layout}
    pool = await world.pool(pool_of("H100", "mig", **policy), inventory("n1", cut({}, broken, {})))
    found = await reasons(world, pool)
    assert found["mig/19@1"] == reason
    if layout is None:
        assert [found[key] for key in ("mig/19@0", "mig/19@2")] == [None, None]
        states = [
            (await world.create(ask(pool.id, device("gpu.mig", profile="1g.10gb")))).state
            for _ in range(3)
        ]
        assert states == ["active", "active", "pending"]
    else:
        assert found["mig/9@4"] is None
        assert found["mig/9@0"] is not None


async def test_a_failed_instance_makes_its_node_degraded_until_it_is_made_anew(world):
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", cut({}, {"failed": "xid 94"})))
    assert await health(world, pool) == [("degraded", "failed: MIG-1")]
    await world.report(pool, inventory("n1", cut({}, {"uuid": "MIG-new"})))
    assert await health(world, pool) == [("healthy", None)]
    assert (await reasons(world, pool))["mig/19@1"] is None


def told(**changed):
    """Build what a driver says of an H100's profiles: the table's, but for some profiles."""
    board = board_by_key("h100-sxm5-80gb")
    rows = [
        {
            "id": profile.id,
            "name": profile.name,
            "compute_slices": profile.compute_slices,
            "max_instances": profile.max_instances,
            "memory_mib": profile.memory_mib,
            "sm_count": profile.sm,
            **profile.engines._asdict(),
            "placements": [{"start": p.start, "size": p.size} for p in profile.placements],
            **changed.get(f"p{profile.id}", {}),
        }
        for profile in board.profiles
        if changed.get(f"p{profile.id}", {}) is not None
    ]
    product = gpu("H100", 0).product
    return [ProductProfiles.model_validate({"product": product, "profiles": rows})]


def node(*gpus, profiles):
    return inventory("n1", *gpus).model_copy(update={"mig_profiles": profiles})


async def test_a_place_that_the_driver_does_not_have_is_not_booked_and_the_others_are(world):
    profiles = told(
        p9={"placements": [{"start": 4, "size": 4}]}, p5=None, p14={"memory_mib": 15000}
    )
    pool = await world.pool(
        pool_of("H100", "mig", migLayout="dynamic"), node(gpu("H100", 0), profiles=profiles)
    )
    found = await reasons(world, pool)
    assert {key for key, reason in found.items() if reason} == {"mig/9@0", "mig/5@0"}
    assert set(found.values()) == {None, "not_in_driver"}
    sizes = {
        atom.id.partition("/")[2]: atom.attributes.get("vramGiB")
        for atom in await world.atoms(pool)
    }
    assert (sizes["mig/14@0"], sizes["mig/9@4"]) == (15, 40)
    states = [
        (await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))).state
        for _ in range(2)
    ]
    assert states == ["active", "pending"]
    await world.report(pool, node(gpu("H100", 0), profiles=told()))
    assert set((await reasons(world, pool)).values()) == {None}


async def test_what_an_instance_has_to_have_is_what_its_driver_says(world):
    row = {"memory_mib": 9984, "sm_count": 14}
    by_table = await world.pool(pool_of("H100", "mig"), inventory("n1", cut(row)))
    assert (await reasons(world, by_table))["mig/19@0"] == "delivered_less"
    await world.report(by_table, node(cut(row), profiles=told(p19={"sm_count": 14})))
    assert (await reasons(world, by_table))["mig/19@0"] is None


async def test_what_is_wrong_and_belongs_to_no_gpu_makes_the_node_degraded(world):
    document = inventory("n1", gpu("H100", 0)).model_copy(
        update={"problems": ["GPU 1 does not answer: gpu_lost"]}
    )
    pool = await world.pool(pool_of("H100"), document)
    assert await health(world, pool) == [("degraded", "GPU 1 does not answer: gpu_lost")]
