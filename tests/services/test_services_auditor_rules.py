"""The auditor sees each rule of tenants, pools, offers, quotas and events broken."""

import pytest
from services_world import World

from apportion.authority.service import Caller
from apportion.store.connections import open_pool
from apportion.testing.builders import ask, device, gpu, inventory, pool_of
from apportion.testing.rules import CHANGES, RULES

pytestmark = pytest.mark.anyio

# acme and those below it are offered a pool of root; globex is deleted. Another pool, which acme
# was offered, is archived: acme's quota of it is what one reservation had then, which has ended.
GROUND = """
INSERT INTO tenants (id, parent_id, ancestors, name, created_at, deleted_at) VALUES
    ('acme', 'root', '{root,acme}', 'Acme', '2026-03-01', NULL),
    ('acme-lab', 'acme', '{root,acme,acme-lab}', 'Lab', '2026-03-01', NULL),
    ('globex', 'root', '{root,globex}', 'Globex', '2026-03-01', '2026-03-02');
INSERT INTO tokens (id, tenant_id, name, role, actions, hash, key_id, created_by, created_at)
    VALUES ('tok_1', 'acme', 't', 'owner', '{*}', sha256('one'), 'k', 'system', '2026-03-01');
INSERT INTO webhooks (id, tenant_id, name, url, types, enabled, read_xid, read_id, created_at,
        updated_at)
    VALUES ('hook_1', 'acme', 'h', 'https://example.com', '{}', true, '0', 0, '2026-03-01',
        '2026-03-01');
INSERT INTO offers (pool_id, tenant_id, priority, include_descendants, created_at, updated_at,
        owner_tenant_id, sharing, single_tenant, holds_tenant_nodes, archived)
SELECT id, 'acme', 0, true, '2026-03-01', '2026-03-01', tenant_id, sharing, single_tenant,
    holds_tenant_nodes, archived
FROM pools WHERE name = 'offered';
INSERT INTO quotas (tenant_id, pool_id, resource, max)
SELECT 'acme', id, resource, CASE resource WHEN 'gpu.mig' THEN 4 END
FROM pools CROSS JOIN unnest('{gpu.mig,gpuEquivalents}'::text[]) AS resource
WHERE name = 'offered';
INSERT INTO events (tenant_id, type, subject, actor, data, occurred_at)
SELECT tenant_id, 'pool.offered', pool_id, 'root', '{}', created_at FROM offers;
"""
ARCHIVED = """
UPDATE reservations SET tenant_id = 'acme', charged_tenant_id = 'acme' WHERE state = 'ended';
UPDATE pools SET archived_at = '2026-03-02 09:00' WHERE name = 'old';
INSERT INTO quotas (tenant_id, pool_id, resource, max)
SELECT 'acme', id, resource, CASE resource WHEN 'gpu' THEN 1 ELSE 442720643463713815200 END
FROM pools CROSS JOIN unnest('{gpu,gpuEquivalents}'::text[]) AS resource
WHERE name = 'old';
INSERT INTO events (tenant_id, type, subject, actor, data, occurred_at)
SELECT 'root', 'pool.archived', id, 'tok', '{}', archived_at FROM pools WHERE name = 'old';
"""
CONSTRAINTS = """
SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname) AS statement
FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype = ANY (%s::char[])
"""
LAB = Caller("acme-lab", "tok_lab", ancestors=("root", "acme", "acme-lab"))
ASSIGNED = """
INSERT INTO assignments (booking_id, tenant_id, node_id, gpu_id, reservation_id, piece, generation,
    state, since, reason)
SELECT bookings.id, bookings.tenant_id, node_id, gpus.id,
    reservation_id, piece, {1}, 'asked', '2026-03-02', '{{"code": "device_asked"}}'
FROM bookings
JOIN gpus ON gpus.id = gpu_id
JOIN reservations ON reservations.id = reservation_id
WHERE {0};
"""
TWICE = """
INSERT INTO bookings OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(bookings, '{"id": 99}')).* FROM bookings WHERE class = 'gpu.mig';
"""
BREAKS = [
    ("not that of the tenant above it", "UPDATE tenants SET ancestors = '{root,acme-lab}'"),
    ("lives under acme", "UPDATE tenants SET deleted_at = now() WHERE id = 'acme'"),
    ("is active, and its tenant is deleted", "UPDATE reservations SET tenant_id = 'globex'"),
    ("is pending, and its tenant is deleted", "UPDATE reservations SET tenant_id = 'globex'"),
    ("its owner is deleted", "UPDATE pools SET tenant_id = 'globex'"),
    ("offered to globex, which is deleted", "UPDATE offers SET tenant_id = 'globex'"),
    ("opens the door", "UPDATE tokens SET tenant_id = 'globex'"),
    ("is told of a tenant that is deleted", "UPDATE webhooks SET tenant_id = 'globex'"),
    ("is mps, and offered to acme", "UPDATE pools SET sharing = 'mps'"),
    ("is timeslice, and offered to acme", "UPDATE pools SET sharing = 'timeslice'"),
    ("is archived, and offered to acme", "UPDATE pools SET archived_at = now()"),
    ("holds nodes of the tenant acme", "UPDATE nodes SET tenant_id = 'acme'"),
    (
        "for a single tenant, and offered to more",
        "UPDATE pools SET policy = policy || '{\"singleTenant\": true}'",
    ),
    (
        "for a single tenant, and offered to more",
        """UPDATE pools SET policy = policy || '{"singleTenant": true}';
        UPDATE offers SET include_descendants = false;
        INSERT INTO offers
        SELECT (jsonb_populate_record(offers, '{"tenant_id": "acme-lab"}')).* FROM offers""",
    ),
    ("offered to root, which is not below", "UPDATE offers SET tenant_id = 'root'"),
    ("offered to acme, which is not below", "UPDATE pools SET tenant_id = 'acme-lab'"),
    ("with the priority 1001", "UPDATE offers SET priority = 1001"),
    ("is not what its offer to acme says", "UPDATE offers SET single_tenant = true"),
    ("is not what its offer to acme says", "UPDATE offers SET owner_tenant_id = 'globex'"),
    ("is not what its policy says", "UPDATE pools SET single_tenant = true"),
    ("is not what its policy says", "UPDATE pools SET replicas = 4"),
    ("is not what its policy says", "UPDATE pools SET shares = NULL WHERE name = 'shared'"),
    ("wrong about whether it holds nodes", "UPDATE pools SET holds_tenant_nodes = true"),
    (
        "has no count of the GPU equivalents of acme",
        "DELETE FROM quotas WHERE tenant_id = 'acme' AND resource = 'gpuEquivalents'",
    ),
    ("has no count of the GPU equivalents of acme", "DELETE FROM quotas"),
    ("acme may have 4 gpu.mig, and had 1 when", "DELETE FROM offers"),
    (
        "acme may have any amount of gpu, and had 1 when",
        "UPDATE quotas SET max = NULL WHERE tenant_id = 'acme'",
    ),
    (
        "acme may have 2 gpu, and had 1 when",
        "UPDATE quotas SET max = max + 1 WHERE tenant_id = 'acme'",
    ),
    (
        "acme may have 1 gpu, and had 0 when",
        "UPDATE reservations SET updated_at = '2026-03-02 08:58' WHERE state = 'ended'",
    ),
    (
        "acme uses 1 gpu.mig of 0",
        "UPDATE quotas SET max = 0 WHERE tenant_id = 'acme' AND resource = 'gpu.mig'",
    ),
    (
        "its reasons count 1 of 7 nodes",
        "UPDATE reservations SET reason = reason || '{\"nodes\": 7}'",
    ),
    ("waits, and is charged", 'UPDATE reservations SET charges = \'{"gpu": "1"}\''),
    ("waits, and is charged", "UPDATE reservations SET charged_tenant_id = 'root'"),
    ("is charged to globex", "UPDATE reservations SET charged_tenant_id = 'globex'"),
    ("does not say why or since when", "UPDATE reservations SET reason = reason - 'since'"),
    ("does not say why or since when", "UPDATE reservations SET reason = reason - 'code'"),
    (
        "is active, and the last that was told is nothing",
        "DELETE FROM events WHERE type = 'reservation.placed'",
    ),
    (
        "is pending, and the last that was told is nothing",
        "DELETE FROM events WHERE type = 'reservation.pending'",
    ),
    (
        "is failed, and the last that was told is reservation.pending",
        "UPDATE reservations SET state = 'failed' WHERE state = 'pending'",
    ),
    (
        "is ended, and the last that was told is reservation.placed",
        "DELETE FROM events WHERE type = 'reservation.ended'",
    ),
    (
        "was told of twice: reservation.ended",
        """INSERT INTO events (tenant_id, type, subject, actor, data, occurred_at)
        SELECT tenant_id, type, subject, actor, data, occurred_at FROM events""",
    ),
    ("exists, and nobody was told", "DELETE FROM events WHERE type = 'pool.created'"),
    (
        "is offered to acme, and the last that was told is nothing",
        "DELETE FROM events WHERE type = 'pool.offered'",
    ),
    ("is not offered to acme, and the last that was told is pool.offered", "DELETE FROM offers"),
    ("has version 2, and the last that was told is 1", "UPDATE pools SET version = 2"),
    ("is archived, and nobody was told", "DELETE FROM events WHERE type = 'pool.archived'"),
    ("runs on n1, which is not asked for its piece 0", "UPDATE nodes SET agent = 'ours'"),
    ("is ended, and its node is asked for it", ASSIGNED.format("state = 'ended'", 1)),
    ("has, by the spec of its node", TWICE + ASSIGNED.format("true", 1)),
    ("is in generation 9 of a spec that has 1", ASSIGNED.format("true", 9)),
]


@pytest.fixture(scope="module")
async def made(template):
    """Make once what each test begins with."""

    async def fill(dsn):
        async with open_pool(dsn) as db:
            await build(World(db))

    return await template.filled(fill)


@pytest.fixture
async def shared(made):
    """Give a world of several tenants in which all is right, and whose constraints are gone."""
    async with made.clone() as dsn, open_pool(dsn) as db:
        yield World(db)


async def build(world):
    offered = await world.pool(
        pool_of("H100", "mig", name="offered"), inventory("n1", gpu("H100", 0, "3g.40gb@4"))
    )
    await world.pool(pool_of("T4", "mps", name="shared", shares=100))
    old = await world.pool(pool_of("A100", name="old"), inventory("n2", gpu("A100", 0, node="n2")))
    await world.rows(GROUND)
    await world.release(await world.create(ask(old.id, device())))
    await world.rows(ARCHIVED)
    owner, world.caller = world.caller, LAB
    for _ in range(2):
        await world.create(ask(offered.id, device("gpu.mig", profile="3g.40gb")))
    world.caller = owner
    assert await world.findings() == []
    for kinds in ("f", "cux"):  # those that refer to others first
        for row in await world.rows(CONSTRAINTS, [*kinds]):
            await world.rows(row["statement"])


@pytest.mark.parametrize(("words", "statement"), BREAKS)
async def test_a_broken_rule_is_found(shared, words: str, statement: str):
    await shared.rows(statement)
    found = await shared.findings()
    assert any(words in each for each in found), found


async def test_every_rule_is_broken_by_one_of_these(shared):
    broken = set()
    for _, statement in BREAKS:
        async with shared.db.connection() as connection:
            await connection.execute(statement)
            for _, query in RULES:
                parameters = {"changes": CHANGES, "now": shared.clock()}
                cursor = await connection.execute(query, parameters)
                if await cursor.fetchall():
                    broken.add(query)
            await connection.rollback()
    assert {query for _, query in RULES} - broken == set()
