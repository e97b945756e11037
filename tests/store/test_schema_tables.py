"""The rules of every table but bookings and atoms, attacked one by one with plain SQL.

What the terms of an offer do when its pool changes is in `test_schema_offers`.
"""

import pytest
from psycopg.errors import IntegrityError
from schema_rows import DAY, ROOT, ROWS, fill, insert

from apportion.store.connections import Pool, transaction

pytestmark = pytest.mark.anyio

TOKEN_2 = {"id": "tok_2", "hash": b"i" * 32, "previous_hash": None, "previous_until": None}
JOIN_2 = {"id": "join_2", "hash": b"i" * 32}
NODE_2 = {"uid": "node_2", "name": "n2", "public_key": b"l" * 32}
KEYLESS = {"public_key": None, "attestor": None, "enrolled_at": None}
TO_GLOBEX = {"tenant_id": "globex"}


def child(*way: str, **changes: object) -> dict[str, object]:
    """Return the tenant at the end of a way that begins at root, changed as said."""
    ancestors = ["root", *way]
    return {"id": ancestors[-1], "parent_id": ancestors[-2], "ancestors": ancestors, **changes}


BROKEN = {
    "tenants": [
        *((child(name), "tenants_id_form") for name in ("Root", "-a", "a-", "", "a" * 64, "a\n")),
        ({}, "tenants_pkey"),
        (child("nobody", "b"), "tenants_parent_fkey"),
        (child("b", parent_id=None), "tenants_one_root"),
        (child("b", ancestors=["b"]), "tenants_ancestors_end"),
        (child("b", ancestors=["root"]), "tenants_ancestors_end"),
        (child("b", ancestors=[]), "tenants_ancestors_end"),
        (child("b", ancestors=[None, "b"]), "tenants_ancestors_end"),
        (child("b", ancestors=["root", "acme", "b"]), "tenants_ancestors_end"),
        (child("acme", "b", ancestors=["root", "b"]), "tenants_ancestors_end"),
        (child("acme", "b", ancestors=["acme", "root", "b"]), "tenants_ancestors_end"),
        (child(*"bcdefghijk"), "tenants_depth"),
        ({**ROOT, "parent_id": "acme"}, "tenants_ancestors_end"),
        ({**ROOT, "parent_id": None, "deleted_at": DAY}, "tenants_root_stays"),
    ],
    "tokens": [
        ({"hash": b"short"}, "tokens_hash_length"),
        ({"id": "tok_2"}, "tokens_hash_key"),
        ({"id": "tok_2", "hash": b"i" * 32}, "tokens_previous_hash_key"),
        ({**TOKEN_2, "tenant_id": "nobody"}, "tokens_tenant_fkey"),
        ({**TOKEN_2, "previous_hash": b"q" * 32}, "tokens_previous_ends"),
        ({**TOKEN_2, "previous_until": DAY}, "tokens_previous_ends"),
        ({**TOKEN_2, "role": "admin"}, "tokens_role_known"),
        ({**TOKEN_2, "actions": []}, "tokens_actions_given"),
    ],
    "access_policies": [
        ({}, "access_policies_pkey"),
        ({"id": "policy_2"}, "access_policies_name_key"),
        ({"id": "policy_2", "name": "b", "text": ""}, "access_policies_text_length"),
        ({"id": "policy_2", "name": "b", "text": "/" * 10001}, "access_policies_text_length"),
        (
            {"id": "policy_2", "name": "b", "tenant_id": "nobody"},
            "access_policies_tenant_fkey",
        ),
    ],
    "sites": [
        ({"id": "site_2"}, "sites_name_key"),
        (
            {"id": "site_2", "name": "b", "tenant_id": "nobody", "kind": "custom"},
            "sites_tenant_fkey",
        ),
        ({"id": "site_2", "name": "b", "kind": "custom"}, "sites_kind_of_tenant"),
        ({"id": "site_2", "name": "b", "tenant_id": "acme"}, "sites_kind_of_tenant"),
        (
            {"id": "site_2", "name": "b", "tenant_id": "acme", "kind": "dedicated"},
            "sites_kind_of_tenant",
        ),
    ],
    "pools": [
        ({}, "pools_name_key"),
        ({"name": "b", "site_id": "site_9"}, "pools_site_fkey"),
        ({"name": "b", "tenant_id": "nobody"}, "pools_tenant_fkey"),
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
    "offers": [
        ({}, "offers_pkey"),
        ({"tenant_id": "nobody"}, "offers_tenant_fkey"),
        ({"tenant_id": "root"}, "offers_not_to_owner"),
        ({**TO_GLOBEX, "priority": -1001}, "offers_priority_range"),
        ({**TO_GLOBEX, "priority": 1001}, "offers_priority_range"),
        ({**TO_GLOBEX, "sharing": "timeslice"}, "offers_isolated"),
        ({**TO_GLOBEX, "sharing": "mps"}, "offers_isolated"),
        ({**TO_GLOBEX, "holds_tenant_nodes": True}, "offers_platform_nodes"),
        ({**TO_GLOBEX, "archived": True}, "offers_not_archived"),
        (
            {**TO_GLOBEX, "single_tenant": True, "include_descendants": True},
            "offers_single_tenant_alone",
        ),
        # Terms that are not the pool's: what may be offered is judged by what the pool is.
        ({**TO_GLOBEX, "pool_id": "pool_9"}, "offers_terms_fkey"),
        ({**TO_GLOBEX, "owner_tenant_id": "acme"}, "offers_terms_fkey"),
        ({**TO_GLOBEX, "sharing": "mig"}, "offers_terms_fkey"),
        ({**TO_GLOBEX, "single_tenant": True}, "offers_terms_fkey"),
    ],
    "quotas": [
        ({"resource": "gpu.tpu"}, "quotas_resource_known"),
        ({"resource": "vcpu", "max": -1}, "quotas_max_not_negative"),
        ({"resource": "vcpu", "used": -1}, "quotas_used_not_negative"),
        ({"resource": "vcpu", "pool_id": "pool_9"}, "quotas_pool_fkey"),
        ({"resource": "vcpu", "tenant_id": "nobody"}, "quotas_tenant_fkey"),
        ({"resource": "gpuEquivalents", "max": "0.5"}, "quotas_equivalents_whole"),
        ({"resource": "gpuEquivalents", "used": "0.5"}, "quotas_equivalents_whole"),
        (
            {"resource": "gpuEquivalents", "max": None, "used": "0.5"},
            "quotas_equivalents_whole",
        ),
        ({}, "quotas_pkey"),
    ],
    "join_tokens": [
        ({}, "join_tokens_pkey"),
        ({"id": "join_2"}, "join_tokens_hash_key"),
        ({**JOIN_2, "hash": b"short"}, "join_tokens_hash_length"),
        ({**JOIN_2, "tenant_id": "nobody"}, "join_tokens_tenant_fkey"),
        ({**JOIN_2, "pool_id": "nothing"}, "join_tokens_pool_fkey"),
        ({**JOIN_2, "node_id": 99, "used_at": DAY}, "join_tokens_node_fkey"),
        ({**JOIN_2, "expires_at": DAY}, "join_tokens_ends"),
        ({**JOIN_2, "used_at": DAY}, "join_tokens_used_by_node"),
    ],
    "nodes": [
        ({**NODE_2, "public_key": b"k" * 32}, "nodes_public_key_key"),
        ({**NODE_2, "public_key": b"k" * 31}, "nodes_public_key_length"),
        ({**NODE_2, "public_key": None}, "nodes_enrolled_whole"),
        ({**NODE_2, "attestor": None}, "nodes_enrolled_whole"),
        ({**NODE_2, "pinned_layout": ""}, "nodes_pinned_to_something"),
        ({**NODE_2, "own_layout": ""}, "nodes_own_layout_named"),
        ({**NODE_2, "outcomes": "[]"}, "nodes_outcomes_is_object"),
        ({**NODE_2, "acceptance": "[]"}, "nodes_acceptance_is_object"),
        ({**NODE_2, **KEYLESS, "revoked_at": DAY}, "nodes_revoked_had_key"),
        ({**NODE_2, "name": "n1"}, "nodes_name_key"),
        ({**NODE_2, "uid": "node_1"}, "nodes_uid_key"),
        ({**NODE_2, "target": "cloud"}, "nodes_target_known"),
        ({**NODE_2, "controller": "nobody"}, "nodes_controller_known"),
        ({**NODE_2, "health": "fine"}, "nodes_health_known"),
        ({**NODE_2, "health": "degraded"}, "nodes_health_reason"),
        ({**NODE_2, "health_reason": "x"}, "nodes_health_reason"),
        ({**NODE_2, "mig_layout_from": "me"}, "nodes_layout_from_known"),
        ({**NODE_2, "spec_generation": 0}, "nodes_spec_counted"),
        (
            {
                **NODE_2,
                "report_sequence": 1,
                "observed_generation": 2,
                "observed_at": DAY,
            },
            "nodes_observed_was_asked",
        ),
        ({**NODE_2, "report_sequence": 1}, "nodes_observed_whole"),
        ({**NODE_2, "converged": "[]"}, "nodes_converged_is_object"),
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
        ({"id": "res_2", "state": "pending"}, "reservations_waiting_ends"),
        (
            {"id": "res_2", "delayed_from": "2027-01-01T00:00:00Z"},
            "reservations_delayed_begins_later",
        ),
        ({"id": "res_2", "reason": '{"message": "m"}'}, "reservations_reason_coded"),
        ({"id": "res_2", "candidates": []}, "reservations_candidates_given"),
        ({"id": "res_2", "candidates": ["pool_2"]}, "reservations_pool_is_candidate"),
        ({"id": "res_2", "pool_id": None}, "reservations_live_has_window"),
        ({"id": "res_2", "ends_at": None, "state": "active"}, "reservations_live_has_window"),
        ({"id": "res_2", "charged_tenant_id": None}, "reservations_live_is_charged"),
        (
            {"id": "res_2", "charged_tenant_id": None, "state": "ending"},
            "reservations_live_is_charged",
        ),
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
        ({"id": "res_2", "open_ended": True}, "reservations_asks_for_time"),
        ({"id": "res_2", "end_before": DAY}, "reservations_slack_has_length"),
        (
            {
                "id": "res_2",
                "duration": None,
                "open_ended": True,
                "end_before": "2026-03-09 00:00+00",
            },
            "reservations_slack_has_length",
        ),
        ({"id": "res_2", "members": 0}, "reservations_members_counted"),
        ({"id": "res_2", "members": 65}, "reservations_members_counted"),
        ({"id": "res_2", "placement": "[]"}, "reservations_placement_is_object"),
        ({"id": "res_2", "topology": "{}"}, "reservations_topology_scored"),
        ({"id": "res_2", "devices": "[]"}, "reservations_asks_for_something"),
        ({"id": "res_2", "vcpu_milli": -1}, "reservations_host_not_negative"),
        ({"id": "res_2", "candidates": ["pool_9"], "pool_id": "pool_9"}, "reservations_pool_fkey"),
        ({}, "reservations_pkey"),
    ],
    "node_layouts": [
        ({}, "node_layouts_pkey"),
        ({"node_id": 2, "state": "held", "hold_from": None}, "node_layouts_state_known"),
        ({"node_id": 2, "pending": None}, "node_layouts_pending_given"),
        (
            {"node_id": 2, "state": "settled", "hold_from": None},
            "node_layouts_pending_given",
        ),
        ({"node_id": 2, "hold_from": None}, "node_layouts_held_while_changing"),
        ({"node_id": 2, "state": "pending"}, "node_layouts_held_while_changing"),
        ({"node_id": 2, "state": "granted"}, "node_layouts_grant_numbered"),
        ({"node_id": 2, "granted": "[]"}, "node_layouts_cuts_are_objects"),
        ({"node_id": 2, "pending": "4"}, "node_layouts_cuts_are_objects"),
        ({"node_id": 2, "reason": "{}"}, "node_layouts_reason_coded"),
        ({"node_id": 2}, "node_layouts_node_fkey"),
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
    "webhooks": [
        ({}, "webhooks_pkey"),
        ({"id": "hook_2"}, "webhooks_name_key"),
        ({"id": "hook_2", "name": "b", "tenant_id": "nobody"}, "webhooks_tenant_fkey"),
    ],
    "reservation_reasons": [
        ({"since": "2026-03-03 10:00+00", "reason": "{}"}, "reservation_reasons_coded"),
    ],
    "deliveries": [
        ({}, "deliveries_event_key"),
        ({"event_id": 9}, "deliveries_event_fkey"),
        ({"webhook_id": "hook_9"}, "deliveries_webhook_fkey"),
        ({"state": "delivered"}, "deliveries_state_known"),
        ({"state": "dead"}, "deliveries_dead_has_error"),
    ],
}
# These cannot be broken by a row alone: see the tests of what happens when a pool changes.
ELSEWHERE = {"offers_single_tenant_one"}


@pytest.fixture
async def rows(db: Pool):
    await fill(db)
    return db


@pytest.mark.parametrize("table", BROKEN)
async def test_each_rule_refuses_what_breaks_it(rows: Pool, table: str):
    for changes, constraint in BROKEN[table]:
        own = {"id": "pool_2"} if table == "pools" else {}
        with pytest.raises(IntegrityError) as caught:
            await insert(rows, table, **{**ROWS[table], **own, **changes})
        assert caught.value.diag.constraint_name == constraint, changes


async def test_every_rule_of_these_tables_is_attacked(db: Pool):
    """Checks, and what must be unique beside the primary key, unless it holds that key as well."""
    attacked = {constraint for cases in BROKEN.values() for _, constraint in cases} | ELSEWHERE
    async with transaction(db) as connection:
        cursor = await connection.execute(
            """SELECT conname AS name FROM pg_constraint
            WHERE contype = 'c' AND conrelid = ANY (%(tables)s::regclass[])
            UNION
            SELECT other.indexrelid::regclass::text
            FROM pg_index AS other
            JOIN pg_index AS key ON key.indrelid = other.indrelid AND key.indisprimary
            WHERE other.indrelid = ANY (%(tables)s::regclass[]) AND other.indisunique
                AND NOT key.indkey::int2[] <@ other.indkey::int2[]""",
            {"tables": [*BROKEN]},
        )
        rules = {row["name"] for row in await cursor.fetchall()}
    assert rules - attacked == set()


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
