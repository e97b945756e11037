"""What a node agent reports of its GPUs is held against what can be booked."""

import pytest

from apportion.nodes.schemas import GpuReport
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


async def test_what_is_wrong_and_belongs_to_no_gpu_makes_the_node_degraded(world):
    document = inventory("n1", gpu("H100", 0)).model_copy(
        update={"problems": ["GPU 1 does not answer: gpu_lost"]}
    )
    pool = await world.pool(pool_of("H100"), document)
    assert await health(world, pool) == [("degraded", "GPU 1 does not answer: gpu_lost")]
