"""One row of each table, which tests change in one way to see which rule refuses it."""

from psycopg import sql

from apportion.store.connections import Pool

DAY = "2026-03-01 00:00+00"
ROOT = {"id": "root", "ancestors": ["root"], "name": "Root", "created_at": DAY}
GLOBEX = {**ROOT, "id": "globex", "parent_id": "root", "ancestors": ["root", "globex"]}
ROWS = {
    "tenants": {
        "id": "acme",
        "parent_id": "root",
        "ancestors": ["root", "acme"],
        "name": "Acme",
        "created_at": DAY,
    },
    "tokens": {
        "id": "tok",
        "tenant_id": "root",
        "name": "t",
        "role": "owner",
        "actions": ["*"],
        "hash": b"h" * 32,
        "key_id": "k",
        "previous_hash": b"p" * 32,
        "previous_until": DAY,
        "created_by": "system",
        "created_at": DAY,
    },
    "access_policies": {
        "id": "policy_1",
        "tenant_id": "root",
        "name": "nobody at night",
        "description": "",
        "text": "forbid (principal, action, resource);",
        "created_at": DAY,
        "updated_at": DAY,
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
    "offers": {
        "pool_id": "pool_1",
        "tenant_id": "acme",
        "priority": 0,
        "include_descendants": False,
        "created_at": DAY,
        "updated_at": DAY,
        "owner_tenant_id": "root",
        "sharing": "exclusive",
        "single_tenant": False,
        "holds_tenant_nodes": False,
        "archived": False,
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
        "public_key": b"k" * 32,
        "attestor": "join-token",
        "enrolled_at": DAY,
    },
    "join_tokens": {
        "id": "join_1",
        "tenant_id": "root",
        "pool_id": "pool_1",
        "name": "machine",
        "class": "metal-host",
        "hash": b"h" * 32,
        "created_by": "tok",
        "created_at": DAY,
        "expires_at": "2026-03-01 01:00+00",
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
        "charged_tenant_id": "root",
        "request_hash": b"h",
        "created_at": DAY,
        "updated_at": DAY,
    },
    "reservation_reasons": {
        "reservation_id": "res_1",
        "tenant_id": "root",
        "since": DAY,
        "reason": '{"code": "units_booked"}',
    },
    "node_layouts": {
        "node_id": 1,
        "tenant_id": "root",
        "pool_id": "pool_1",
        "state": "scheduled",
        "granted": "{}",
        "pending": '{"replicas": 2}',
        "hold_from": "2026-03-02 10:00+00",
        "since": DAY,
        "reason": '{"code": "waiting_for_holders"}',
    },
    "host_bookings": {
        "tenant_id": "root",
        "node_id": 1,
        "reservation_id": "res_1",
        "vcpu_milli": 4000,
        "memory_mib": 0,
        "during": "[2026-03-02 10:00+00,2026-03-02 11:00+00)",
    },
    "events": {
        "tenant_id": "root",
        "type": "pool.created",
        "subject": "pool_1",
        "actor": "tok",
        "data": "{}",
        "occurred_at": DAY,
    },
    "webhooks": {
        "id": "hook_1",
        "tenant_id": "root",
        "name": "chat",
        "url": "https://example.com",
        "types": [],
        "enabled": True,
        "read_xid": "0",
        "read_id": 0,
        "created_at": DAY,
        "updated_at": DAY,
    },
    "deliveries": {
        "tenant_id": "root",
        "webhook_id": "hook_1",
        "event_id": 1,
        "state": "pending",
        "next_at": DAY,
        "created_at": DAY,
        "updated_at": DAY,
    },
}


async def insert(pool: Pool, table: str, **values):
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    async with pool.connection() as connection:
        await connection.execute(statement, list(values.values()))


async def fill(pool: Pool):
    """Insert the one row of each table, and the tenants root and globex."""
    await insert(pool, "tenants", **ROOT)
    for table, row in ROWS.items():
        await insert(pool, table, **row)
    await insert(pool, "tenants", **GLOBEX)
