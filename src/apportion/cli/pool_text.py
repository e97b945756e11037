"""A pool, its quotas and its offers in words."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from apportion.cli.output import amount_text, table
from apportion.cli.pool_words import ATOM_CLASSES, UNLIMITED
from apportion.cli.server_caps import split_capabilities
from apportion.cli.showing import fact_lines
from apportion.cli.times import both_zones, short_time
from apportion.cli.unheard import unheard

if TYPE_CHECKING:
    from apportion.pools.schemas import OfferView, PoolView, QuotaView
    from apportion.reservations.schemas import LargestRequest, PoolCapacity

POOL_HEADERS = (
    *("name", "model", "sharing", "class", "region", "owner", "quota used", "not heard of"),
    "id",
)
OFFER_HEADERS = ("tenant", "priority", "descendants", "quota used", "since")


def pool_row(pool: "PoolView") -> Sequence[object]:
    """Give a pool's row below POOL_HEADERS."""
    return (
        pool.name,
        pool.gpu_model,
        _sharing(pool),
        pool.class_,
        pool.region,
        f"{pool.owner_tenant_id} (archived)" if pool.archived else pool.owner_tenant_id,
        _quotas_used(pool.quotas),
        _stale(pool),
        pool.id,
    )


def _stale(pool: "PoolView") -> str | None:
    if pool.stale is None:
        return None
    return f"{pool.stale.gpus:,} GPUs since {short_time(pool.stale.since)}"


def pool_lines(pool: "PoolView") -> list[str]:
    """Write a pool with what its tenant may use of it."""
    facts = {
        "id": pool.id,
        "owner": pool.owner_tenant_id if pool.owned else f"{pool.owner_tenant_id}, who offers it",
        "GPU model": pool.gpu_model,
        "sharing": _sharing(pool),
        "class": pool.class_,
        "site": f"{pool.site_id} in {pool.region}",
        "agent": pool.agent,
        "provider": pool.provider_account_id,
        "created": both_zones(pool.created_at),
        "version": pool.version,
        "policy": json.dumps(pool.policy) if pool.policy else "none",
    }
    title = f"{pool.name} (archived)" if pool.archived else pool.name
    return [*fact_lines(title, facts), *quota_lines(pool.quotas)]


def quota_lines(quotas: "Sequence[QuotaView]") -> list[str]:
    """Write limits and what is used of them, where there are any."""
    rows = [(each.resource, amount_text(each.max), amount_text(each.used)) for each in quotas]
    return ["", table(("quota", "limit", "used"), rows)] if rows else []


def capacity_lines(capacity: "PoolCapacity") -> list[str]:
    """Write what is free for the next hour, with the largest request that fits beside each sum."""
    rows = [
        (each.class_, "unknown" if each.free is None else each.free, largest_text(each))
        for each in capacity.free
    ]
    lines = ["", table(("free for an hour", "in all", "largest request"), rows)] if rows else []
    if capacity.stale_since is not None:
        who = unheard(capacity.stale_nodes, capacity.stale_gpus, capacity.stale_since)
        lines += ["", f"not heard of, and not counted as free: {who}"]
    return lines


def largest_text(free: "LargestRequest") -> str:
    """Write the largest request of a class that has room."""
    if free.class_ == "gpu.mig":
        return free.largest_profile or "none"
    if free.class_ == "gpu":
        return f"{free.largest_count} on one node" if free.largest_count else "none"
    return f"{free.largest_units} of one GPU" if free.largest_units else "none"


def offer_row(offer: "OfferView") -> Sequence[object]:
    """Give an offer's row below OFFER_HEADERS."""
    return (
        offer.tenant_id,
        offer.priority,
        "yes" if offer.include_descendants else "no",
        _quotas_used(offer.quotas),
        short_time(offer.created_at),
    )


def offer_lines(pool: "PoolView", offer: "OfferView") -> list[str]:
    """Write what is offered to whom."""
    whom = f"{offer.tenant_id} and all below it" if offer.include_descendants else offer.tenant_id
    title = f"{pool.name} is offered to {whom}, priority {offer.priority}"
    return [title, *quota_lines(offer.quotas)]


def _quotas_used(quotas: "Sequence[QuotaView]") -> str:
    used = [f"{each.resource} {_used(each)}" for each in quotas if each.resource in ATOM_CLASSES]
    return ", ".join(used) or "none"


def _used(quota: "QuotaView") -> str:
    used = amount_text(quota.used)
    return used if quota.max in UNLIMITED else f"{used} of {amount_text(quota.max)}"


def _sharing(pool: "PoolView") -> str:
    caps = split_capabilities(pool)
    if caps.slots_per_gpu is not None:
        return f"{pool.sharing}, {caps.slots_per_gpu} slots"
    if caps.shares_per_gpu is not None:
        return f"{pool.sharing}, {caps.shares_per_gpu} shares"
    return pool.sharing
