"""Which right each operation needs. Default deny: one that is not listed cannot be served."""

from collections.abc import Mapping
from typing import Final

RIGHTS: Final[Mapping[str, str]] = {
    "get_caller": "compute:caller:read",
    "create_tenant": "compute:tenants:create",
    "list_tenants": "compute:tenants:read",
    "get_tenant": "compute:tenants:read",
    "update_tenant": "compute:tenants:manage",
    "delete_tenant": "compute:tenants:delete",
    "create_token": "compute:tokens:create",
    "list_tokens": "compute:tokens:read",
    "get_token": "compute:tokens:read",
    "rotate_token": "compute:tokens:manage",
    "revoke_token": "compute:tokens:manage",
    "create_policy": "compute:policies:manage",
    "list_policies": "compute:policies:read",
    "get_policy": "compute:policies:read",
    "update_policy": "compute:policies:manage",
    "delete_policy": "compute:policies:manage",
    "check_policy": "compute:policies:check",
    "list_roles": "compute:policies:read",
    "create_site": "compute:sites:create",
    "list_sites": "compute:sites:read",
    "get_site": "compute:sites:read",
    "update_site": "compute:sites:manage",
    "delete_site": "compute:sites:manage",
    "create_pool": "compute:pools:create",
    "validate_pool": "compute:pools:validate",
    "list_pools": "compute:pools:read",
    "get_pool": "compute:pools:read",
    "get_pool_capacity": "compute:pools:read",
    "update_pool": "compute:pools:manage",
    "archive_pool": "compute:pools:manage",
    "defragment_pool": "compute:pools:manage",
    "offer_pool": "compute:pools:share",
    "unoffer_pool": "compute:pools:share",
    "list_offers": "compute:pools:read",
    "join_node": "compute:nodes:join",
    "list_nodes": "compute:nodes:read",
    "get_node": "compute:nodes:read",
    "report_inventory": "compute:nodes:report",
    "get_spec": "compute:nodes:report",
    "report_node": "compute:nodes:report",
    "update_node": "compute:nodes:manage",
    "revoke_node": "compute:nodes:manage",
    "create_join_token": "compute:nodes:manage",
    "list_join_tokens": "compute:nodes:read",
    "revoke_join_token": "compute:nodes:manage",
    "list_layouts": "compute:pools:read",
    "set_layout": "compute:pools:manage",
    "plan_layout": "compute:pools:manage",
    "cancel_layout": "compute:pools:manage",
    "list_gpus": "compute:gpus:read",
    "get_gpu_calendar": "compute:gpus:read",
    "list_atoms": "compute:atoms:read",
    "list_quotas": "compute:quotas:read",
    "get_quota": "compute:quotas:read",
    "set_quota": "compute:quotas:set",
    "explain_quota": "compute:quotas:read",
    "create_reservation": "compute:reservations:create",
    "create_reservations": "compute:reservations:create",
    "find_earliest": "compute:reservations:create",
    "find_free_windows": "compute:reservations:create",
    "list_reservations": "compute:reservations:read",
    "get_reservation": "compute:reservations:read",
    "explain_reservation": "compute:reservations:read",
    "update_reservation": "compute:reservations:update",
    "release_reservation": "compute:reservations:release",
    "create_series": "compute:reservations:create",
    "list_series": "compute:reservations:read",
    "get_series": "compute:reservations:read",
    "release_series": "compute:reservations:release",
    "get_usage": "compute:usage:read",
    "list_events": "compute:events:read",
    "stream_events": "compute:events:read",
    "list_audit": "compute:audit:read",
    "create_webhook": "compute:webhooks:manage",
    "list_webhooks": "compute:webhooks:read",
    "get_webhook": "compute:webhooks:read",
    "update_webhook": "compute:webhooks:manage",
    "delete_webhook": "compute:webhooks:manage",
    "rotate_webhook_secret": "compute:webhooks:manage",
    "list_deliveries": "compute:webhooks:read",
    "resend_delivery": "compute:webhooks:manage",
}
"""Operation id to right."""

PUBLIC: Final = frozenset({"get_health", "get_readiness", "enroll_node"})
"""The operations that need no token; the OpenAPI document needs none either.

Who joins shows what vouches for it instead, and signs with the key that it will be known by.
"""


def right_of(operation_id: str) -> str | None:
    """Return the right that an operation needs, None for a public one.

    Raises LookupError for one that is not listed, which keeps the server from starting.
    """
    if operation_id in PUBLIC:
        return None
    try:
        return RIGHTS[operation_id]
    except KeyError:
        raise LookupError(f"{operation_id}: no right is stated in RIGHTS") from None
