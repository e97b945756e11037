"""The auditor sees each rule broken, also where no constraint was in the way."""

import pytest
from services_world import World

from apportion.store.connections import open_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

DROPPED = (
    "bookings DROP CONSTRAINT bookings_no_overlap",
    "bookings DROP CONSTRAINT bookings_atom_fkey",
    "bookings DROP CONSTRAINT bookings_whole_is_every_unit",
    "bookings DROP CONSTRAINT bookings_planned_within_during",
    "bookings DROP CONSTRAINT bookings_reservation_fkey",
    "bookings DROP CONSTRAINT bookings_gpu_fkey",
    "atoms DROP CONSTRAINT atoms_placement_fkey",
    "atoms DROP CONSTRAINT atoms_gpu_board_fkey",
    "atoms DROP CONSTRAINT atoms_retired_unbookable",
    "node_resources DROP CONSTRAINT node_resources_capacity_covers",
    "host_bookings DROP CONSTRAINT host_bookings_reservation_fkey",
)
BREAKS = [
    ("exclusive", "UPDATE bookings SET units = '{[4,8)}' WHERE class = 'gpu.mig'"),
    ("legal", "UPDATE atoms SET start = 1 WHERE profile = '2g.20gb'"),
    ("legal", "UPDATE gpus SET board = 'a30-24gb' WHERE split = 'mig'"),
    (
        "legal",
        "UPDATE bookings SET units = '{[0,3)}' WHERE class = 'gpu.mig' AND units = '{[0,2)}'",
    ),
    ("legal", "UPDATE atoms SET retired_at = now() WHERE profile = '2g.20gb'"),
    ("ruler", "UPDATE bookings SET units = '{[0,60)}' WHERE class = 'gpu.share'"),
    ("ruler", "UPDATE bookings SET units = '{[0,60),[100,102)}' WHERE class = 'gpu.share'"),
    ("ruler", "UPDATE bookings SET units = '{[0,60),[148,149)}' WHERE class = 'gpu.share'"),
    ("ruler", "UPDATE bookings SET units = '{[0,1)}' WHERE class = 'gpu'"),
    ("ruler", "UPDATE gpus SET split = 'none' WHERE split = 'mig'"),
    ("host", "UPDATE node_resources SET capacity = 3999 WHERE resource = 'vcpu'"),
    ("host", "DELETE FROM node_resources WHERE resource = 'memoryGiB'"),
    ("shared", "UPDATE bookings SET share_num = 1, share_den = 1 WHERE class = 'gpu.mig'"),
    ("quota", "UPDATE quotas SET used = used + 1 WHERE resource = 'gpu.share'"),
    ("quota", "UPDATE quotas SET used = used + 1 WHERE resource = 'gpuEquivalents'"),
    ("quota", "UPDATE reservations SET charged_tenant_id = 'acme' WHERE vcpu_milli > 0"),
    ("quota", "DELETE FROM quotas WHERE resource = 'vcpu'"),
    ("quota", "UPDATE reservations SET state = 'ended' WHERE devices::text LIKE '%gpu.share%'"),
    ("held", "DELETE FROM bookings WHERE class = 'gpu.share'"),
    ("held", "UPDATE bookings SET voided_at = lower(during) WHERE class = 'gpu.share'"),
    ("held", "UPDATE bookings SET units = '{[0,59),[100,101)}' WHERE class = 'gpu.share'"),
    ("held", "UPDATE bookings SET piece = 0, device = 0 WHERE class = 'gpu.mig'"),
    (
        "held",
        """UPDATE bookings SET during = tstzrange(lower(during), lower(during) + '1s')
        WHERE class = 'gpu.mig'""",
    ),
    (
        "held",
        """UPDATE bookings SET planned = tstzrange(lower(planned), lower(planned) + '1s')
        WHERE class = 'gpu.mig'""",
    ),
    ("held", "UPDATE reservations SET ends_at = ends_at + '1s'"),
    ("held", 'UPDATE reservations SET charges = \'{"gpu": "2"}\' WHERE vcpu_milli > 0'),
    ("held", "UPDATE reservations SET charges = charges - 'gpuEquivalents'"),
    ("held", "UPDATE bookings SET share_num = share_num - 1 WHERE class = 'gpu.mig'"),
    ("held", "UPDATE bookings SET share_den = 99 WHERE class = 'gpu.share'"),
    ("held", "UPDATE reservations SET state = 'pending'"),
    ("held", "UPDATE reservations SET ends_at = starts_at, state = 'ended'"),
    ("held", "DELETE FROM host_bookings"),
    ("held", "UPDATE host_bookings SET vcpu_milli = 3000"),
    ("held", "UPDATE host_bookings SET during = tstzrange(lower(during), lower(during) + '1s')"),
    ("held", "UPDATE bookings SET reservation_id = 'res_none'"),
    ("held", "UPDATE bookings SET gpu_id = (SELECT max(id) FROM gpus) WHERE class = 'gpu.mig'"),
    ("held", "UPDATE bookings SET pool_id = 'other' WHERE class = 'gpu.share'"),
]


@pytest.fixture(scope="module")
async def made(template):
    """Make once what each test begins with."""

    async def fill(dsn):
        async with open_pool(dsn) as db:
            await build(World(db))

    return await template.filled(fill)


@pytest.fixture
async def busy(made):
    """Give a world in which something of each kind is held, and its constraints are gone."""
    async with made.clone() as dsn, open_pool(dsn) as db:
        yield World(db)


async def build(world):
    cut = await world.pool(
        pool_of("H100", "mig"),
        inventory("n1", gpu("H100", 0, "2g.20gb@0", "3g.40gb@4"), gpu("H100", 1), cpus=4),
        inventory("n2", gpu("H100", 0, "2g.20gb@0", node="n2")),
    )
    shared = await world.pool(
        pool_of("T4", "mps", shares=100), inventory("n3", gpu("T4", 0, node="n3"))
    )
    pair = [device("gpu.mig", profile="3g.40gb"), device("gpu.mig", profile="2g.20gb")]
    await world.create(ask(cut.id, *pair))
    await world.create(ask(cut.id, device(), vcpu=4, memory_gib=8))
    await world.create(ask(shared.id, device("gpu.share", units=60)))
    assert await world.findings() == []
    for change in DROPPED:
        await world.rows(f"ALTER TABLE {change}")


@pytest.mark.parametrize(("rule", "statement"), BREAKS)
async def test_a_broken_rule_is_found(busy, rule: str, statement: str):
    await busy.rows(statement)
    found = await busy.findings()
    assert rule in {each.partition(":")[0] for each in found}, found
