"""A database of the first version, with all that it may hold, becomes one of this version."""

from datetime import UTC, datetime

import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from apportion.store.migrations import load_migrations, migrate
from apportion.testing.auditor import audit

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)
# Two tenants side by side; acme's node is in its own pool. res_1 has 3/7 and 1/7 of a GPU, res_2 a
# fourth, res_3 a whole one and its host, res_4 only a host; res_5 waits, and res_6 had a fourth.
FIRST_VERSION = """
INSERT INTO tenants (id, name, created_at) VALUES
    ('root', 'Root', '2026-03-01'), ('acme', 'Acme', '2026-03-01');
INSERT INTO tokens (id, tenant_id, name, hash, created_at, revoked_at) VALUES
    ('tok_1', 'root', 'root', sha256('one'), '2026-03-01', NULL),
    ('tok_2', 'acme', 'old', sha256('two'), '2026-03-01', '2026-03-01 12:00');
INSERT INTO sites (id, tenant_id, name, region, created_at) VALUES
    ('site_1', 'root', 'main', 'fra', '2026-03-01'), ('site_2', 'acme', 'own', 'ams', '2026-03-01');
INSERT INTO pools (id, tenant_id, site_id, name, class, gpu_model, sharing, agent, policy, replicas,
        created_at, archived_at) VALUES
    ('mig', 'root', 'site_1', 'mig', 'metal-host', 'H100', 'mig', 'none', '{"singleTenant": true}',
        NULL, '2026-03-01', NULL),
    ('slots', 'root', 'site_1', 'slots', 'metal-host', 'T4', 'mps', 'none', '{"replicas": 4}', 4,
        '2026-03-01', NULL),
    ('own', 'acme', 'site_2', 'own', 'metal-host', 'H100', 'exclusive', 'none',
        '{"singleTenant": "yes"}', NULL, '2026-03-01', NULL),
    ('gone', 'root', 'site_1', 'gone', 'metal-host', 'H100', 'exclusive', 'none', '{}', NULL,
        '2026-03-01', '2026-03-01 12:00');
INSERT INTO quotas (tenant_id, pool_id, resource, max, used) VALUES
    ('root', 'mig', 'gpu.mig', NULL, 2), ('root', 'slots', 'gpu.slot', 8, 1),
    ('root', 'slots', 'vcpu', 8, 0.5), ('acme', 'own', 'gpu', NULL, 1),
    ('acme', 'own', 'vcpu', NULL, 4), ('root', 'gone', 'gpu', 0, 0);
INSERT INTO nodes (uid, tenant_id, pool_id, name, target, controller, health, inventory,
        inventory_at, created_at) VALUES
    ('node_1', 'root', 'mig', 'n1', 'direct', 'platform', 'healthy', '{}', '2026-03-01',
        '2026-03-01'),
    ('node_2', 'root', 'slots', 'n2', 'direct', 'platform', 'healthy', '{}', '2026-03-01',
        '2026-03-01'),
    ('node_3', 'acme', 'own', 'n3', 'direct', 'tenant', 'healthy', '{}', '2026-03-01',
        '2026-03-01');
INSERT INTO node_resources VALUES
    (2, 'root', 'vcpu', 4000, 1, 4000, '2026-03-01'),
    (3, 'acme', 'vcpu', 4000, 1, 4000, '2026-03-01');
INSERT INTO mig_placements VALUES
    ('h100-sxm5-80gb', '3g.40gb', 4, '{[4,8)}'), ('h100-sxm5-80gb', '1g.10gb', 0, '{[0,1)}');
INSERT INTO gpus (uuid, tenant_id, pool_id, node_id, index, product, model, board, mig_current,
        mig_pending, split, ruler, nvlink, present) VALUES
    ('GPU-1', 'root', 'mig', 1, 0, 'H100', 'H100', 'h100-sxm5-80gb', true, true, 'mig', 8, '[]',
        true),
    ('GPU-2', 'root', 'slots', 2, 0, 'T4', 'T4', NULL, false, false, 'slots', 4, '[]', true),
    ('GPU-3', 'acme', 'own', 3, 0, 'H100', 'H100', NULL, false, false, 'none', 1, '[]', true);
INSERT INTO atoms (tenant_id, pool_id, gpu_id, key, class, units, generation, board, profile, start,
        share_num, share_den, bookable, attributes) VALUES
    ('root', 'mig', 1, 'a', 'gpu.mig', '{[4,8)}', 1, 'h100-sxm5-80gb', '3g.40gb', 4, 3, 7, true,
        '{}'),
    ('root', 'mig', 1, 'b', 'gpu.mig', '{[0,1)}', 1, 'h100-sxm5-80gb', '1g.10gb', 0, 1, 7, true,
        '{}');
INSERT INTO reservations (id, tenant_id, caller, pool_id, candidates, state, reason, devices,
        vcpu_milli, memory_mib, duration, starts_at, ends_at, pending_until, charges, request_hash,
        created_at, updated_at) VALUES
    ('res_1', 'root', 'tok_1', 'mig', '{mig}', 'placed', '{"code": "placed"}',
        '[{"class": "gpu.mig", "count": 1}, {"class": "gpu.mig", "count": 1}]', 0, 0, '1h',
        '2026-03-02 11:00', '2026-03-02 12:00', '2026-03-03', '{"gpu.mig": "2"}', '', '2026-03-01',
        '2026-03-01'),
    ('res_2', 'root', 'tok_1', 'slots', '{slots}', 'active', '{"code": "started"}',
        '[{"class": "gpu.slot", "count": 1, "units": 1}]', 0, 0, '1h',
        '2026-03-02 10:00', '2026-03-02 11:00', '2026-03-03', '{"gpu.slot": "1"}', '', '2026-03-01',
        '2026-03-01'),
    ('res_3', 'acme', 'tok_2', 'own', '{own}', 'active', '{"code": "started"}',
        '[{"class": "gpu", "count": 1}]', 4000, 0, '1h',
        '2026-03-02 10:00', '2026-03-02 11:00', '2026-03-03', '{"gpu": "1", "vcpu": "4"}', '',
        '2026-03-01', '2026-03-01'),
    ('res_4', 'root', 'tok_1', 'slots', '{slots}', 'placed', '{"code": "placed"}', '[]', 500, 0,
        '1h', '2026-03-02 11:00', '2026-03-02 12:00', '2026-03-03', '{"vcpu": "0.5"}', '',
        '2026-03-01', '2026-03-01'),
    ('res_5', 'root', 'tok_1', NULL, '{slots}', 'pending', '{"code": "no_room", "message": "m",
        "since": "2026-03-01T00:00:00+00:00"}', '[{"class": "gpu", "count": 1}]', 0, 0, '1h', NULL,
        NULL, '2026-03-03', '{}', '', '2026-03-01', '2026-03-01'),
    ('res_6', 'root', 'tok_1', 'slots', '{slots}', 'ended', '{"code": "released"}',
        '[{"class": "gpu.slot", "count": 1, "units": 1}]', 0, 0, '1h',
        '2026-03-02 08:00', '2026-03-02 09:00', '2026-03-03', '{"gpu.slot": "1"}', '', '2026-03-01',
        '2026-03-01');
INSERT INTO bookings (tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id,
        generation, units, during, planned, share_num, share_den)
SELECT new.tenant_id, reservations.pool_id, gpu_id, reservation_id, piece, piece, class, atom_id, 1,
    units, tstzrange(starts_at, ends_at), tstzrange(starts_at, ends_at), share_num, share_den
FROM (VALUES
    ('root', 1, 'res_1', 0, 'gpu.mig', 1, '{[4,8)}'::int4multirange, 3, 7),
    ('root', 1, 'res_1', 1, 'gpu.mig', 2, '{[0,1)}', 1, 7),
    ('root', 2, 'res_2', 0, 'gpu.slot', NULL, '{[0,1)}', 1, 4),
    ('acme', 3, 'res_3', 0, 'gpu', NULL, '{[0,)}', 1, 1),
    ('root', 2, 'res_6', 0, 'gpu.slot', NULL, '{[0,1)}', 1, 4)
) AS new (tenant_id, gpu_id, reservation_id, piece, class, atom_id, units, share_num, share_den)
JOIN reservations ON reservations.id = reservation_id;
INSERT INTO host_bookings (tenant_id, node_id, reservation_id, vcpu_milli, memory_mib, during)
SELECT tenant_id, CASE id WHEN 'res_3' THEN 3 ELSE 2 END, id, vcpu_milli, memory_mib,
    tstzrange(starts_at, ends_at)
FROM reservations WHERE vcpu_milli > 0;
INSERT INTO events (tenant_id, type, subject, actor, data, occurred_at)
SELECT tenant_id, 'pool.created', id, 'tok_1', '{}'::jsonb, created_at FROM pools
UNION ALL
SELECT tenant_id, 'pool.archived', id, 'tok_1', '{}', archived_at FROM pools
WHERE archived_at IS NOT NULL
UNION ALL
SELECT tenant_id, 'reservation.' || CASE state WHEN 'active' THEN 'started' ELSE state END, id,
    'tok_1', '{}', created_at
FROM reservations;
"""
SEVENTH = 63245806209101973600
FOURTH = 110680160865928453800
WHOLE = 442720643463713815200


@pytest.fixture
async def upgraded(anyio_backend: str, postgres: str):
    """Give a connection to a database that was filled at the first version, then migrated."""
    first, *later = load_migrations()
    async with await AsyncConnection.connect(postgres, autocommit=True) as server:
        await server.execute("CREATE DATABASE upgraded")
        try:
            dsn = make_conninfo(postgres, dbname="upgraded")
            await migrate(dsn, [first])
            async with await AsyncConnection.connect(dsn) as connection:
                await connection.execute(FIRST_VERSION)
            assert await migrate(dsn) == later
            async with await AsyncConnection.connect(dsn, row_factory=dict_row) as connection:
                yield connection
        finally:
            await server.execute("DROP DATABASE upgraded WITH (FORCE)")


async def column(connection, query):
    """Return the two columns of a query as a dictionary."""
    cursor = await connection.execute(query)
    return dict([row.values() for row in await cursor.fetchall()])


async def test_tenants_stand_under_root_and_live(upgraded):
    assert await column(upgraded, "SELECT id, ancestors FROM tenants") == {
        "root": ["root"],
        "acme": ["root", "acme"],
    }
    assert await column(upgraded, "SELECT id, parent_id FROM tenants WHERE deleted_at IS NULL") == {
        "root": None,
        "acme": "root",
    }


async def test_tokens_whose_hash_has_no_key_are_revoked(upgraded):
    revoked = await column(upgraded, "SELECT id, revoked_at FROM tokens")
    assert revoked["tok_1"] is not None
    assert revoked["tok_2"] == datetime(2026, 3, 1, 12, tzinfo=UTC)  # when it was revoked before
    assert await column(upgraded, "SELECT id, (role, key_id, created_by)::text FROM tokens") == {
        "tok_1": "(owner,none,system)",
        "tok_2": "(owner,none,system)",
    }


async def test_sites_of_root_are_shared_and_others_custom(upgraded):
    assert await column(upgraded, "SELECT id, kind FROM sites") == {
        "site_1": "shared",
        "site_2": "custom",
    }


async def test_pools_have_the_terms_that_say_who_may_be_offered_them(upgraded):
    assert await column(
        upgraded, "SELECT id, (single_tenant, holds_tenant_nodes, archived)::text FROM pools"
    ) == {"mig": "(t,f,f)", "slots": "(f,f,f)", "own": "(f,t,f)", "gone": "(f,f,t)"}


async def test_live_reservations_are_charged_their_exact_share_and_nothing_else_is(upgraded):
    assert await column(upgraded, "SELECT id, charges FROM reservations") == {
        "res_1": {"gpu.mig": "2", "gpuEquivalents": str(4 * SEVENTH)},
        "res_2": {"gpu.slot": "1", "gpuEquivalents": str(FOURTH)},
        "res_3": {"gpu": "1", "vcpu": "4", "gpuEquivalents": str(WHOLE)},
        "res_4": {"vcpu": "0.5"},
        "res_5": {},
        "res_6": {"gpu.slot": "1"},
    }
    assert await column(upgraded, "SELECT id, charged_tenant_id FROM reservations") == {
        "res_1": "root",
        "res_2": "root",
        "res_3": "acme",
        "res_4": "root",
        "res_5": None,
        "res_6": None,
    }


async def test_beside_other_quotas_stands_an_unlimited_one_of_what_is_used_in_gpu_equivalents(
    upgraded,
):
    equivalents = "FROM quotas WHERE resource = 'gpuEquivalents'"
    assert await column(upgraded, f"SELECT pool_id, used {equivalents}") == {
        "mig": 4 * SEVENTH,
        "slots": FOURTH,
        "own": WHOLE,
        "gone": 0,
    }
    assert await column(upgraded, f"SELECT DISTINCT tenant_id, max {equivalents}") == {
        "root": None,
        "acme": None,
    }
    assert await column(upgraded, "SELECT pool_id, max FROM quotas WHERE resource = 'gpu'") == {
        "own": None,
        "gone": 0,
    }


async def test_events_of_before_are_no_audit_records(upgraded):
    query = "SELECT count(*) AS kept, count(before) + count(after) AS audited FROM events"
    assert await column(upgraded, query) == {11: 0}


async def test_the_auditor_finds_nothing_wrong_with_it(upgraded):
    assert await audit(upgraded, NOW) == []
