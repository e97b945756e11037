"""What could help an ask that waits, by name: it is tried again when one of these changes."""

from apportion.placement import Verdict
from apportion.pools.service import QuotaKey


def room(pool_id: str) -> str:
    """Name what is free in a pool."""
    return pool_id


def fleet(pool_id: str) -> str:
    """Name the nodes of a pool, and what their GPUs are cut into."""
    return f"{pool_id}/fleet"


def quota(key: QuotaKey) -> str:
    """Name what a quota has left."""
    tenant_id, pool_id, resource = key
    return f"{pool_id}/{tenant_id}/{resource}"


def helping(pool_id: str, verdict: Verdict) -> str:
    """Name what could change a refusal by a pool."""
    return fleet(pool_id) if verdict.for_good else room(pool_id)
