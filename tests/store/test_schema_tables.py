"""The rules of every table but bookings and atoms, attacked one by one with plain SQL."""

import pytest
from psycopg import sql
from psycopg.errors import IntegrityError

from apportion.store.connections import Pool, transaction

pytestmark = pytest.mark.anyio

DAY = "2026-03-01 00:00+00"
ROWS = {
    "tenants": {"id": "root", "ancestors": ["root"], "name": "Root", "created_at": DAY},
    "tokens": {
        "id": "tok",
        "tenant_id": "root",
        "name": "t",
        "role": "owner",
        "actions": ["*"],
        "hash": b"h" * 32,
        "key_id": "k",
        "created_by": "system",
        "created_at": DAY,
    },
    "sites": {
        "id": "site_1",
        "tenant_id": "root",
        "name": "main",
        "region": "local",
        "kind": "shared",
        "created_at": DAY,
    },
    "pools": {
        "id": "pool_1",
        "tenant_id": "root",
        "site_id": "site_1",
        "name": "h100",
        "class": "metal-host",
        "gpu_model": "H100",
        "sharing": "exclusive",
        "agent": "none",
        "policy": "{}",
        "created_at": DAY,
    },
    "quotas": {"tenant_id": "root", "pool_id": "pool_1", "resource": "gpu", "max": 8},
    "nodes": {
        "uid": "node_1",
        "tenant_id": "root",
        "pool_id": "pool_1",
        "name": "n1",
        "target": "direct",
        "controller": "platform",
        "health": "healthy",
        "inventory": "{}",
        "inventory_at": DAY,
        "created_at": DAY,
    },
    "node_resources": {
        "node_id": 1,
        "tenant_id": "root",
        "resource": "vcpu",
        "total": 64000,
        "ratio": "1.5",
        "capacity": 96000,
        "updated_at": DAY,
    },
    "gpus": {
        "uuid": "GPU-1",
        "tenant_id": "root",
        "pool_id": "pool_1",
        "node_id": 1,
        "index": 0,
        "product": "H100",
        "model": "H100",
        "mig_current": False,
        "mig_pending": False,
        "split": "none",
        "ruler": 1,
        "nvlink": "[]",
        "present": True,
    },
    "reservations": {
        "id": "res_1",
        "tenant_id": "root",
        "caller": "tok",
        "candidates": ["pool_1", "pool_2"],
        "pool_id": "pool_1",
        "state": "placed",
        "reason": '{"code": "placed"}',
        "devices": '[{"class": "gpu"}]',
        "vcpu_milli": 0,
        "memory_mib": 0,
        "duration": "1h",
        "starts_at": "2026-03-02 10:00+00",
        "ends_at": "2026-03-02 11:00+00",
        "pending_until": DAY,
        "charges": "{}",
        "request_hash": b"h",
        "created_at": DAY,
        "updated_at": DAY,
    },
    "host_bookings": {
        "tenant_id": "root",
        "node_id": 1,
        "reservation_id": "res_1",
        "vcpu_milli": 4000,
        "memory_mib": 0,
        "during": "[2026-03-02 10:00+00,2026-03-02 11:00+00)",
    },
}
BROKEN = {
    "tenants": [
        ({"id": "Root"}, "tenants_id_form"),
        ({"id": "-a"}, "tenants_id_form"),
        ({"id": "a-"}, "tenants_id_form"),
        ({"id": ""}, "tenants_id_form"),
        ({"id": "a" * 64}, "tenants_id_form"),
        ({"id": "a\n"}, "tenants_id_form"),
        ({"id": "root"}, "tenants_pkey"),
    ],
    "tokens": [
        ({"hash": b"short"}, "tokens_hash_length"),
        ({"id": "tok_2"}, "tokens_hash_key"),
        ({"id": "tok_2", "hash": b"i" * 32, "tenant_id": "acme"}, "tokens_tenant_fkey"),
    ],
    "sites": [
        ({"id": "site_2"}, "sites_name_key"),
        ({"id": "site_2", "name": "b", "tenant_id": "acme"}, "sites_tenant_fkey"),
    ],
    "pools": [
        ({}, "pools_name_key"),
        ({"name": "b", "site_id": "site_9"}, "pools_site_fkey"),
        ({"name": "b", "tenant_id": "acme"}, "pools_tenant_fkey"),
        ({"name": "b", "class": "desktop"}, "pools_class_known"),
        ({"name": "b", "sharing": "vgpu"}, "pools_sharing_known"),
        ({"name": "b", "class": "provider"}, "pools_provider_account"),
        ({"name": "b", "provider_account_id": "a"}, "pools_provider_account"),
        (
            {"name": "b", "class": "provider", "provider_account_id": "a", "agent": "own"},
            "pools_provider_agent",
        ),
        ({"name": "b", "sharing": "mps", "replicas": 0}, "pools_replicas_range"),
        ({"name": "b", "sharing": "mps", "replicas": 49}, "pools_replicas_range"),
        ({"name": "b", "sharing": "mps", "shares": 99}, "pools_shares_fixed"),
        ({"name": "b", "sharing": "mps", "replicas": 4, "shares": 100}, "pools_split"),
        ({"name": "b", "sharing": "timeslice"}, "pools_split"),
        ({"name": "b", "sharing": "mig", "replicas": 4}, "pools_split"),
        ({"name": "b", "shares": 100}, "pools_split"),
    ],
    "quotas": [
        ({"resource": "gpu.tpu"}, "quotas_resource_known"),
        ({"resource": "vcpu", "max": -1}, "quotas_max_not_negative"),
        ({"resource": "vcpu", "used": -1}, "quotas_used_not_negative"),
        ({"resource": "vcpu", "pool_id": "pool_9"}, "quotas_pool_fkey"),
        ({}, "quotas_pkey"),
    ],
    "nodes": [
        ({"uid": "node_2"}, "nodes_name_key"),
        ({"name": "n2"}, "nodes_uid_key"),
        ({"uid": "node_2", "name": "n2", "target": "cloud"}, "nodes_target_known"),
        ({"uid": "node_2", "name": "n2", "controller": "nobody"}, "nodes_controller_known"),
        ({"uid": "node_2", "name": "n2", "health": "fine"}, "nodes_health_known"),
        ({"uid": "node_2", "name": "n2", "health": "degraded"}, "nodes_health_reason"),
        ({"uid": "node_2", "name": "n2", "health_reason": "x"}, "nodes_health_reason"),
    ],
    "node_resources": [
        ({"resource": "disk"}, "node_resources_resource_known"),
        ({"resource": "memoryGiB", "total": -1}, "node_resources_total_not_negative"),
        ({"resource": "memoryGiB", "ratio": "0.09"}, "node_resources_ratio_range"),
        ({"resource": "memoryGiB", "ratio": "100.1", "total": 0}, "node_resources_ratio_range"),
        ({"resource": "memoryGiB", "ratio": "NaN"}, "node_resources_capacity_covers"),
        ({"resource": "hugepages2Mi", "ratio": "1.5"}, "node_resources_hugepages_exact"),
        ({"resource": "memoryGiB", "capacity": 95999}, "node_resources_capacity_covers"),
        ({"node_id": 9}, "node_resources_node_fkey"),
    ],
    "gpus": [
        ({}, "gpus_uuid_key"),
        ({"uuid": "GPU-2", "split": "vgpu"}, "gpus_split_known"),
        ({"uuid": "GPU-2", "ruler": 0}, "gpus_ruler_positive"),
        ({"uuid": "GPU-2", "node_id": 9}, "gpus_node_fkey"),
    ],
    "reservations": [
        ({"id": "res_2", "state": "queued"}, "reservations_state_known"),
        ({"id": "res_2", "reason": '{"message": "m"}'}, "reservations_reason_coded"),
        ({"id": "res_2", "candidates": []}, "reservations_candidates_given"),
        ({"id": "res_2", "candidates": ["pool_2"]}, "reservations_pool_is_candidate"),
        ({"id": "res_2", "pool_id": None}, "reservations_live_has_window"),
        ({"id": "res_2", "ends_at": None, "state": "active"}, "reservations_live_has_window"),
        ({"id": "res_2", "ends_at": "2026-03-02 09:00+00"}, "reservations_window_forward"),
        ({"id": "res_2", "duration": None}, "reservations_asks_for_time"),
        ({"id": "res_2", "duration": "0s"}, "reservations_asks_for_time"),
        ({"id": "res_2", "duration": "-1h"}, "reservations_asks_for_time"),
        ({"id": "res_2", "asked_end": "2026-03-02 11:00+00"}, "reservations_asks_for_time"),
        (
            {"id": "res_2", "duration": None, "asked_end": "2026-03-02 11:00+00"},
            "reservations_asks_for_time",
        ),
        (
            {
                "id": "res_2",
                "duration": None,
                "asked_start": "2026-03-02 11:00+00",
                "asked_end": "2026-03-02 11:00+00",
            },
            "reservations_asks_for_time",
        ),
        ({"id": "res_2", "devices": "[]"}, "reservations_asks_for_something"),
        ({"id": "res_2", "vcpu_milli": -1}, "reservations_host_not_negative"),
        ({"id": "res_2", "candidates": ["pool_9"], "pool_id": "pool_9"}, "reservations_pool_fkey"),
        ({}, "reservations_pkey"),
    ],
    "host_bookings": [
        ({}, "host_bookings_reservation_key"),
        ({"vcpu_milli": 0}, "host_bookings_amount"),
        ({"vcpu_milli": 5000, "memory_mib": -1}, "host_bookings_amount"),
        ({"during": "empty"}, "host_bookings_during_half_open"),
        ({"during": "(,2026-03-02 11:00+00)"}, "host_bookings_during_half_open"),
        ({"voided_at": "2026-03-02 10:30+00"}, "host_bookings_void_before_start"),
        ({"node_id": 9, "reservation_id": "res_9"}, "host_bookings_node_fkey"),
    ],
}


async def insert(pool: Pool, table: str, **values):
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    async with pool.connection() as connection:
        await connection.execute(statement, list(values.values()))


@pytest.fixture
async def rows(db: Pool):
    for table, row in ROWS.items():
        await insert(db, table, **row)
    return db


@pytest.mark.parametrize("table", BROKEN)
async def test_each_rule_refuses_what_breaks_it(rows: Pool, table: str):
    for changes, constraint in BROKEN[table]:
        own = {"id": "pool_2"} if table == "pools" else {}
        with pytest.raises(IntegrityError) as caught:
            await insert(rows, table, **{**ROWS[table], **own, **changes})
        assert caught.value.diag.constraint_name == constraint, changes


async def test_every_rule_of_these_tables_is_attacked(db: Pool):
    attacked = {constraint for cases in BROKEN.values() for _, constraint in cases}
    async with transaction(db) as connection:
        cursor = await connection.execute(
            """SELECT conname FROM pg_constraint
            WHERE contype = 'c' AND conrelid = ANY (%s::regclass[])""",
            [list(BROKEN)],
        )
        checks = {row["conname"] for row in await cursor.fetchall()}
    assert checks <= attacked


async def test_every_table_of_a_tenants_things_names_the_tenant(db: Pool):
    async with transaction(db) as connection:
        cursor = await connection.execute(
            """SELECT table_name, bool_or(column_name = 'tenant_id' AND is_nullable = 'NO') AS named
            FROM information_schema.columns WHERE table_schema = 'public' GROUP BY table_name"""
        )
        nameless = {row["table_name"] for row in await cursor.fetchall() if not row["named"]}
    assert nameless == {"tenants", "mig_placements", "schema_migrations"}


async def test_no_column_holds_a_time_without_a_zone(db: Pool):
    async with transaction(db) as connection:
        cursor = await connection.execute(
            """SELECT table_name, column_name FROM information_schema.columns
            WHERE table_schema = 'public'
                AND data_type IN ('timestamp without time zone', 'date', 'tsrange')"""
        )
        assert await cursor.fetchall() == []
