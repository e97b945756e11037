"""A first day: pools of every kind, inventories, reservations, and what they cost."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from apportion.metering.service import usage
from apportion.nodes.schemas import Inventory
from apportion.nodes.service import import_inventories, list_atoms, sync_placements
from apportion.pools.schemas import PoolCreate
from apportion.pools.service import create_pool, get_pool
from apportion.reservations.schemas import ReservationCreate
from apportion.reservations.service import Reservations
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.tenants.service import ROOT, Caller, ensure_root

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
CALLER = Caller(ROOT, "tok_test")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def runtime(db, clock):
    runtime = Runtime(db, clock)
    async with transaction(db) as connection:
        await ensure_root(runtime, connection)
        await sync_placements(connection)
    return runtime


def h100(index: int, layout: list[tuple[str, int]] | None = None) -> dict:
    gpu = {
        "index": index,
        "uuid": f"GPU-{index:08d}",
        "product": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559,
        "numa_node": index // 4,
    }
    if layout is not None:
        gpu["mig"] = {
            "current": True,
            "pending": True,
            "instances": [
                {"gi_id": i + 1, "ci_id": 0, "uuid": f"MIG-{index}-{i}", "profile": p, "start": s}
                for i, (p, s) in enumerate(layout)
            ],
        }
    return gpu


async def mig_pool(runtime):
    pool = await create_pool(
        runtime,
        CALLER,
        PoolCreate.model_validate(
            {
                "name": "h100-mig",
                "class": "metal-host",
                "gpu_model": "H100",
                "sharing": "mig",
                "owner_quota": {"gpu": "unlimited", "gpu.mig": 100, "vcpu": 100, "memoryGiB": 500},
            }
        ),
    )
    layout = [("3g.40gb", 4), ("2g.20gb", 0), ("2g.20gb", 2)]
    document = Inventory.model_validate(
        {
            "node": "n1",
            "host": {"logical_cpus": 64, "memory_mib": 262144},
            "gpus": [h100(0, layout), h100(1)],
        }
    )
    await import_inventories(runtime, CALLER, pool.id, [document])
    return pool


async def test_a_mig_slice_is_reserved_begins_ends_and_is_billed(runtime, clock):
    pool = await mig_pool(runtime)
    reservations = Reservations(runtime)
    request = {
        "pool_id": pool.id,
        "devices": [
            {
                "class": "gpu.mig",
                "count": 1,
                "selector": {
                    "matchExpressions": [{"key": "migProfile", "op": "In", "values": ["3g.40gb"]}]
                },
            }
        ],
        "resources": {"vcpu": 4, "memoryGiB": "32"},
        "duration": "1h",
    }
    view = await reservations.create(CALLER, ReservationCreate.model_validate(request))
    assert view.state == "active"
    assert [b.units for b in view.bookings] == ["{[4,8)}"]
    second = await reservations.create(CALLER, ReservationCreate.model_validate(request))
    assert (second.state, second.reason["code"]) == ("pending", "units_booked")
    quotas = {q.resource: q.used for q in (await get_pool(runtime, CALLER, pool.id)).quotas}
    assert quotas == {"gpu": 0, "gpu.mig": 1, "memoryGiB": 32, "vcpu": 4}
    clock.now += timedelta(hours=1)
    await reservations.lifecycle.advance()
    assert (await reservations.get(CALLER, view.id)).state == "ended"
    assert (await reservations.get(CALLER, second.id)).state == "active"
    rows = await usage(runtime, CALLER, START)
    assert [(r.meter, r.gpu_hours) for r in rows] == [("gpu.h100.hours", Fraction(3, 7))]
    await reservations.release(CALLER, second.id)
    quotas = {q.resource: q.used for q in (await get_pool(runtime, CALLER, pool.id)).quotas}
    assert set(quotas.values()) == {0}


async def test_atoms_of_a_split_gpu_follow_the_report(runtime):
    pool = await mig_pool(runtime)
    atoms = await list_atoms(runtime, CALLER, pool_id=pool.id)
    assert [(a.id, a.class_, a.bookable, a.reason) for a in atoms] == [
        ("GPU-00000000", "gpu", False, "split"),
        ("GPU-00000000/mig/14@0", "gpu.mig", True, None),
        ("GPU-00000000/mig/14@2", "gpu.mig", True, None),
        ("GPU-00000000/mig/9@4", "gpu.mig", True, None),
        ("GPU-00000001", "gpu", True, None),
    ]
