"""Which right each operation needs. Default deny: one that is not listed cannot be served."""

from collections.abc import Mapping
from typing import Final

from apportion.errors import ForbiddenError
from apportion.tenants.service import ROOT, Caller

RIGHTS: Final[Mapping[str, str]] = {
    "list_sites": "compute:sites:read",
    "create_pool": "compute:pools:create",
    "list_pools": "compute:pools:read",
    "get_pool": "compute:pools:read",
    "join_node": "compute:nodes:join",
    "list_nodes": "compute:nodes:read",
    "get_node": "compute:nodes:read",
    "report_inventory": "compute:nodes:report",
    "list_gpus": "compute:gpus:read",
    "list_atoms": "compute:atoms:read",
    "list_quotas": "compute:quotas:read",
    "set_quota": "compute:quotas:set",
    "create_reservation": "compute:reservations:create",
    "create_reservations": "compute:reservations:create",
    "list_reservations": "compute:reservations:read",
    "get_reservation": "compute:reservations:read",
    "release_reservation": "compute:reservations:release",
    "get_usage": "compute:usage:read",
    "list_events": "compute:events:read",
}
"""Operation id to right."""

PUBLIC: Final = frozenset({"get_health", "get_readiness"})
"""The operations that need no token; the OpenAPI document needs none either."""


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


def authorize(caller: Caller, right: str) -> None:
    """Refuse with ForbiddenError what the caller may not do: all but the root tenant, anything."""
    if caller.tenant_id != ROOT:
        raise ForbiddenError(f"needs the right {right}", details={"right": right})
