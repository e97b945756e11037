"""What a pool says of its hosts stands in its nodes' specs, and what they say of it is told."""

import random

import pytest
from joined_node import Node
from partitions_world import NOTHING

from apportion.errors import InvalidInputError
from apportion.nodes.host_units import host_units
from apportion.partitions.service import get_spec
from apportion.pools.policy import read_stored
from apportion.pools.schemas import PoolUpdate
from apportion.pools.service import get_pool, update_pool
from apportion.testing.builders import inventory, pool_of

pytestmark = pytest.mark.anyio

HOST = {
    "hugepages": {"1Gi": 8},
    "kernelModules": ["nvidia-peermem", "vfio", "vfio"],
    "cpu": {"isolated": "2-15", "governor": "performance", "smt": False, "turbo": "later"},
    "iommu": True,
    "gpu": {"persistenceMode": True, "ecc": False, "powerLimitWatts": 400},
    "kubernetes": {"labels": {"tier": "gpu"}, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
}
UNITS = {
    "hugepages": {"2Mi": 0, "1Gi": 8},
    "kernelModules": {"modules": ["nvidia-peermem", "vfio"]},
    "cpu": {"isolated": "2-15", "governor": "performance", "smt": False},
    "iommu": {"mode": "on"},
    "gpu": {"persistenceMode": True, "ecc": False, "powerLimitWatts": 400},
    "kubernetes": {
        "labels": {"tier": "gpu"},
        "taints": [{"key": "gpu", "value": "", "effect": "NoSchedule"}],
    },
}
DIFFERS = {
    "done": False,
    "reason": "cpu_differs",
    "message": "governor is to be performance, and it is powersave",
    "objects": [],
    "mismatches": [
        {"field": "governor", "wanted": "performance", "found": "powersave", "object": None}
    ],
}


async def spec_of(world, node):
    return await get_spec(world.runtime, node.caller, node.id)


async def change(world, pool, **policy):
    version = (await get_pool(world.runtime, world.caller, pool.id)).version
    request = PoolUpdate(version=version, policy=policy)
    await update_pool(world.runtime, world.caller, pool.id, request)


async def events(world, kind):
    rows = await world.rows("SELECT data FROM events WHERE type = %s ORDER BY id", kind)
    return [row["data"] for row in rows]


async def test_every_host_field_is_a_unit_in_the_policys_own_words(world):
    pool = await world.pool(pool_of("H100", **HOST))
    node = await Node(world, "m1").join(pool)
    assert (await spec_of(world, node)).units == {"devices": NOTHING, **UNITS}


async def test_a_policy_that_says_nothing_of_hosts_asks_for_nothing(world):
    pool = await world.pool(pool_of("H100", cpu={}, gpu={}, kubernetes={}, hugepages={}))
    node = await Node(world, "m1").join(pool)
    assert (await spec_of(world, node)).units.keys() == {"devices"}


async def test_who_has_no_agent_is_asked_for_nothing(world):
    await world.pool(pool_of("H100", **HOST), inventory("n1"))
    [row] = await world.rows("SELECT uid FROM nodes")
    spec = await get_spec(world.runtime, world.caller, row["uid"])
    assert spec.units == {}


# Mostly what is left out: else every change would change something that nodes are asked for.
NOT = [None] * 40
FIELDS = {
    "maxPending": ["1h", "2h", "3h"],
    "hugepages": [*NOT, {}, {"2Mi": 0}, {"2Mi": 512}],
    "kernelModules": [*NOT, [], ["vfio"], ["vfio", "vfio"]],
    "cpu": [*NOT, {}, {"smt": True}, {"smt": False}],
    "iommu": [*NOT, "on", True, "off"],
    "gpu": [*NOT, {}, {"ecc": True}, {"powerLimitWatts": 300}],
    "kubernetes": [*NOT, {}, {"labels": {}}, {"labels": {"a": "b"}}],
}


async def test_the_generation_rises_with_what_nodes_are_asked_for_and_with_nothing_else(world):
    pool = await world.pool(pool_of("H100"))
    node = await Node(world, "m1").join(pool)
    rose = []
    for _ in range(60):
        policy = {name: random.choice(values) for name, values in FIELDS.items()}
        policy = {name: value for name, value in policy.items() if value is not None}
        before = await spec_of(world, node)
        await change(world, pool, **policy)
        after = await spec_of(world, node)
        rose.append(after.generation > before.generation)
        assert rose[-1] == (before.units != after.units), policy
    assert {True, False} == set(rose)


async def test_what_differs_is_shown_told_once_and_keeps_nobody_from_working(world):
    pool = await world.pool(pool_of("H100", cpu={"governor": "performance"}))
    node = await Node(world, "m1").join(pool)
    generation = (await spec_of(world, node)).generation
    for _ in range(2):
        await node.report(
            converged={"devices": generation}, outcomes={"cpu": DIFFERS, "devices": {"done": True}}
        )
    view = await node.view()
    assert (view.reason, view.outcomes["cpu"]) == (None, DIFFERS)
    [told] = await events(world, "node.host_differs")
    assert (told["name"], told["units"]) == ("m1", {"cpu": DIFFERS})
    assert [atom.reason for atom in await world.atoms(pool)] == [None]
    await node.report(outcomes={"cpu": {"done": True}})
    assert len(await events(world, "node.host_agrees")) == 1
    await node.report(outcomes={})
    assert len(await events(world, "node.host_agrees")) == 1


@pytest.mark.parametrize("unit", ["hugepages", "kernelModules"])
async def test_what_is_to_be_made_so_is_waited_for_once(world, unit):
    pool = await world.pool(pool_of("H100", **{unit: HOST[unit]}))
    node = await Node(world, "m1").join(pool)
    spec = await spec_of(world, node)
    short = {**DIFFERS, "reason": f"{unit}_short"}
    await node.report(converged={"devices": spec.generation}, outcomes={unit: short})
    view = await node.view()
    assert (view.reason["code"], view.reason["units"]) == ("spec_not_converged", {unit: short})
    await node.report()
    assert (await node.view()).reason is None
    await node.report(converged={"devices": spec.generation}, outcomes={unit: short})
    assert (await node.view()).reason is None
    assert len(await events(world, "node.host_differs")) == 2


@pytest.mark.parametrize(
    ("sharing", "split", "mode"),
    [
        ("mps", {"replicas": 4}, "default"),
        ("timeslice", {"replicas": 4}, "exclusiveProcess"),
        ("mig", {}, "exclusiveProcess"),
    ],
)
async def test_a_compute_mode_in_which_gpus_cannot_be_shared_so_is_refused(
    world, sharing, split, mode
):
    with pytest.raises(InvalidInputError) as refused:
        await world.pool(pool_of("H100", sharing, **split, gpu={"computeMode": mode}))
    assert refused.value.field == "policy.gpu.computeMode"
    allowed = refused.value.allowed.split(",")[0]
    await world.pool(pool_of("H100", sharing, **split, gpu={"computeMode": allowed}))
    await world.pool(pool_of("H100", gpu={"computeMode": mode}, name="whole"))


async def test_what_let_a_node_in_stays_on_record(world):
    pool = await world.pool(pool_of("H100", acceptance=[{"kind": "diag.nvml"}]))
    node = await Node(world, "m1").join(pool)
    await node.report()
    passed = {"diag.nvml": {"passed": True, "details": {"wrong": []}}}
    await node.report(acceptance=passed)
    await node.report(acceptance={})
    view = await node.view()
    assert (view.acceptance, view.reason) == (passed, None)
    assert view.accepted_at is not None


async def test_a_check_that_is_asked_for_twice_is_refused(world):
    steps = [{"kind": "diag.nvml"}, {"kind": "diag.nvml", "minutes": 5}]
    with pytest.raises(InvalidInputError) as refused:
        await world.pool(pool_of("H100", acceptance=steps))
    assert refused.value.field == "policy.acceptance[1].kind"


def test_units_are_made_of_what_was_stored_as_well():
    assert host_units(read_stored({**HOST, "cpu": {"governor": 7}})) == {
        name: unit for name, unit in UNITS.items() if name != "cpu"
    }


async def test_pages_that_no_host_could_set_aside_are_refused_with_the_hosts_named(world):
    pool = await world.pool(pool_of("H100"), inventory("n1"), inventory("n2"))
    with pytest.raises(InvalidInputError) as refused:
        await change(world, pool, hugepages={"1Gi": 200, "2Mi": 28 * 1024})
    assert refused.value.field == "policy.hugepages"
    assert refused.value.details["nodes"] == ["n1", "n2"]
    await change(world, pool, hugepages={"1Gi": 200, "2Mi": 28 * 1024 - 1})
    await world.report(pool, inventory("n3", memory_gib=8))
    # Who joins later keeps nobody from changing something else.
    await change(world, pool, hugepages={"1Gi": 200, "2Mi": 28 * 1024 - 1}, maxPending="1h")
