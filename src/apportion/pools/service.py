"""Pools and the quotas on them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller, PoolFacts
from apportion.errors import ConflictError, InvalidInputError, NotFoundError, QuotaExceededError
from apportion.events.service import Event, append
from apportion.pools.amounts import (
    EQUIVALENTS,
    read_limit,
    show_amount,
    show_limit,
    subtract,
)
from apportion.pools.gates import close_gates, close_gates_of, enter_gates
from apportion.pools.policy import PoolPolicy, read_policy
from apportion.pools.schemas import PoolCreate, PoolView, QuotaSet, QuotaView, SiteView
from apportion.quantities.ids import derive_id
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load

__all__ = ["EQUIVALENTS", "close_gates", "close_gates_of", "show_amount", "show_limit"]

_QUERIES: Final = load("apportion.pools")

# What a retry with the same idempotency key must agree on; the rest of the first request stands.
_IDENTITY: Final = ("site_id", "class", "sharing", "agent", "provider_account_id", "gpu_model")

register(
    {
        "pools_name_key": lambda violation: ConflictError(
            "this tenant has a pool of that name", field="name", details={"key": violation.detail}
        ),
        **guards(
            "sites_name_key",
            "pools_class_known",
            "pools_sharing_known",
            "pools_provider_account",
            "pools_provider_agent",
            "pools_replicas_range",
            "pools_shares_fixed",
            "pools_split",
            "quotas_resource_known",
            "quotas_max_not_negative",
            "quotas_used_not_negative",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool as other rooms need it, its policy read.

    ``tenant_id`` is the owner, ``quota_tenant_id`` whose quota is charged when the caller uses it:
    the owner's, the offered tenant's, or that of a tenant above the caller that has the offer.
    """

    id: str
    tenant_id: str
    quota_tenant_id: str
    name: str
    cls: str
    gpu_model: str
    sharing: str
    region: str
    policy: PoolPolicy

    @property
    def facts(self) -> PoolFacts:
        """What access policies see of it."""
        return PoolFacts(
            id=self.id,
            owner=self.tenant_id,
            gpu_model=self.gpu_model,
            cls=self.cls,
            sharing=self.sharing,
            region=self.region,
        )


QuotaKey = tuple[str, str, str]
"""(tenant, pool, resource)."""


@dataclass(slots=True)
class Quota:
    """A limit and what is used of it; ``max`` None is unlimited."""

    max: Decimal | None
    used: Decimal

    def covers(self, amount: Decimal) -> bool:
        """Tell whether this much more may be charged."""
        return self.max is None or self.used + amount <= self.max

    @property
    def left(self) -> Decimal | None:
        """What may still be charged; None is unlimited."""
        return None if self.max is None else subtract(self.max, self.used)


async def create_pool(runtime: Runtime, caller: Caller, request: PoolCreate) -> PoolView:
    """Create a pool with its owner's quota, or return the one that the same key created.

    Raises InvalidInputError for what can never be, NotFoundError for a site that the tenant does
    not own, ConflictError for a taken name or a key that was used for another pool.
    """
    policy = read_policy(request.policy, request.sharing)
    _check_provider(request)
    async with transaction(runtime.db) as connection:
        row = await _new_row(runtime, connection, caller, request, policy)
        cursor = await connection.execute(
            _QUERIES["insert"], {**row, "policy": Jsonb(request.policy)}
        )
        if await cursor.fetchone() is None:
            return _same(await _get(connection, caller, row["id"]), row)
        # Exact GPU equivalents are always counted, whether anybody limits them or not.
        limits = {EQUIVALENTS: "unlimited", **request.owner_quota}
        await _set_quotas(connection, caller.tenant_id, row["id"], limits)
        data = {key: row[key] for key in ("name", "site_id", "class", "gpu_model", "sharing")}
        event = Event("pool.created", caller.tenant_id, row["id"], data)
        await append(connection, caller, runtime.now(), [event])
        return await _get(connection, caller, row["id"])


async def get_pool(runtime: Runtime, caller: Caller, pool_id: str) -> PoolView:
    """Return one pool of the caller; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return await _get(connection, caller, pool_id)


async def list_pools(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    name: str | None = None,
    gpu_model: str | None = None,
    sharing: str | None = None,
) -> list[PoolView]:
    """Return the caller's pools by id, one query whatever their number."""
    async with transaction(runtime.db) as connection:
        return await _select(
            connection,
            caller,
            {"after": after, "limit": limit, "name": name, "model": gpu_model, "sharing": sharing},
        )


async def list_sites(
    runtime: Runtime, caller: Caller, *, after: str = "", limit: int = 100
) -> list[SiteView]:
    """Return the caller's sites by id."""
    parameters = {"tenant_id": caller.tenant_id, "after": after, "limit": limit}
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(_QUERIES["list_sites"], parameters)
        return [SiteView(**row) for row in await cursor.fetchall()]


async def list_quotas(
    runtime: Runtime,
    caller: Caller,
    *,
    after: tuple[str, str] = ("", ""),
    limit: int = 100,
    pool_id: str | None = None,
) -> list[QuotaView]:
    """Return the caller's quotas by pool and resource, those after one of them."""
    parameters = {
        "tenant_id": caller.tenant_id,
        "after_pool": after[0],
        "after_resource": after[1],
        "limit": limit,
        "pool_id": pool_id,
    }
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(_QUERIES["list_quotas"], parameters)
        return [_quota_view(caller, row["pool_id"], row) for row in await cursor.fetchall()]


async def set_quota(runtime: Runtime, caller: Caller, request: QuotaSet) -> QuotaView:
    """Set the caller's own limit on a pool that it owns."""
    async with transaction(runtime.db) as connection:
        await _get(connection, caller, request.pool_id)
        limits = {request.resource: request.max}
        await _set_quotas(connection, caller.tenant_id, request.pool_id, limits)
        event = Event(
            "quota.updated",
            caller.tenant_id,
            request.pool_id,
            {"tenant_id": caller.tenant_id, "resource": request.resource, "max": request.max},
        )
        await append(connection, caller, runtime.now(), [event])
        pool = await _get(connection, caller, request.pool_id)
    return next(quota for quota in pool.quotas if quota.resource == request.resource)


async def find_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use and that take new work, by id."""
    cursor = await connection.execute(
        _QUERIES["records"],
        {
            "tenant_id": caller.tenant_id,
            "lineage": list(caller.lineage),
            "ids": list(pool_ids),
        },
    )
    return {row["id"]: _record(row) for row in await cursor.fetchall()}


async def hold_records(
    connection: Connection, caller: Caller, pool_ids: Collection[str]
) -> dict[str, PoolRecord]:
    """Return those of some pools that the caller may use, to place in them in this transaction.

    Who may use them stays as it is until the transaction ends (see `gates`).
    """
    await enter_gates(connection, [caller.tenant_id, *pool_ids])
    return await find_records(connection, caller, pool_ids)


async def archived_pools(connection: Connection, pool_ids: Collection[str]) -> set[str]:
    """Return those of some pools that are archived."""
    cursor = await connection.execute(_QUERIES["archived"], {"ids": list(pool_ids)})
    return {row["id"] for row in await cursor.fetchall()}


async def load_record(connection: Connection, caller: Caller, pool_id: str) -> PoolRecord:
    """Return one pool that the caller may use; NotFoundError for any other."""
    found = await find_records(connection, caller, [pool_id])
    if pool_id not in found:
        raise _no_pool(pool_id)
    return found[pool_id]


async def changed_pools(connection: Connection, since: str) -> list[str]:
    """Return the pools whose users or policy may have changed since a transaction id."""
    cursor = await connection.execute(_QUERIES["changed"], {"since": since})
    return [row["id"] for row in await cursor.fetchall()]


async def gpu_models(connection: Connection, pool_ids: Sequence[str]) -> dict[str, str]:
    """Return the GPU model of some pools, archived ones too: what they were used for is billed."""
    cursor = await connection.execute(_QUERIES["models"], {"ids": list(pool_ids)})
    return {row["id"]: row["gpu_model"] for row in await cursor.fetchall()}


async def read_quotas(
    connection: Connection, tenant_ids: Collection[str], pool_ids: Collection[str]
) -> dict[QuotaKey, Quota]:
    """Return all quota rows of some tenants on some pools."""
    cursor = await connection.execute(
        _QUERIES["quotas"], {"tenant_ids": list(tenant_ids), "pool_ids": list(pool_ids)}
    )
    return {
        (row["tenant_id"], row["pool_id"], row["resource"]): Quota(row["max"], row["used"])
        for row in await cursor.fetchall()
    }


async def charge(connection: Connection, amounts: Mapping[QuotaKey, Decimal]) -> None:
    """Charge (or with negative amounts give back) in the current transaction, its last lock.

    Raises QuotaExceededError when a limit does not cover a charge; nothing must be kept then.
    """
    wanted = {key: amount for key, amount in sorted(amounts.items()) if amount}
    if not wanted:
        return
    parameters = {
        "tenants": [key[0] for key in wanted],
        "pools": [key[1] for key in wanted],
        "resources": [key[2] for key in wanted],
        "amounts": list(wanted.values()),
    }
    # Locked in one order first: two charges of several rows would deadlock in different orders.
    await connection.execute(_QUERIES["lock_quotas"], parameters)
    cursor = await connection.execute(_QUERIES["charge"], parameters)
    charged = {(r["tenant_id"], r["pool_id"], r["resource"]) for r in await cursor.fetchall()}
    # What is given back to a quota that was taken away is nobody's any more.
    missing = [key for key, amount in wanted.items() if amount > 0 and key not in charged]
    if missing:
        tenant, pool, resource = missing[0]
        raise QuotaExceededError(
            f"the quota of {tenant} on {pool} does not cover this much {resource}",
            details={"pool_id": pool, "resource": resource, "asked": str(wanted[missing[0]])},
        )


async def _new_row(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    request: PoolCreate,
    policy: PoolPolicy,
) -> dict[str, Any]:
    key = request.idempotency_key
    pool_id = (
        runtime.new_id("pool")
        if key is None
        else derive_id("pool", caller.tenant_id, caller.actor, key)
    )
    return {
        "id": pool_id,
        "tenant_id": caller.tenant_id,
        "site_id": await _site(connection, caller, request.site_id),
        "name": request.name,
        "class": request.class_,
        "gpu_model": request.gpu_model,
        "sharing": request.sharing,
        "agent": "none",
        "provider_account_id": request.provider_account_id,
        "replicas": policy.replicas,
        "shares": policy.shares,
        "now": runtime.now(),
    }


def _check_provider(request: PoolCreate) -> None:
    is_provider = request.class_ == "provider"
    if is_provider != (request.provider_account_id is not None):
        raise InvalidInputError(
            "a provider pool needs it" if is_provider else f"a {request.class_} pool has none",
            field="provider_account_id",
            given=request.provider_account_id,
        )


async def _site(connection: Connection, caller: Caller, site_id: str | None) -> str:
    cursor = await connection.execute(_QUERIES["sites"], {"tenant_id": caller.tenant_id})
    sites = [row["id"] for row in await cursor.fetchall()]
    if site_id is not None:
        if site_id in sites:
            return site_id
        raise NotFoundError("no such site", field="site_id", given=site_id)
    if len(sites) != 1:
        raise InvalidInputError(
            "needed, because the tenant does not have exactly one site",
            field="site_id",
            allowed=", ".join(sites) or None,
        )
    return sites[0]


async def _set_quotas(
    connection: Connection, tenant_id: str, pool_id: str, limits: Mapping[Any, int | str]
) -> None:
    await connection.execute(
        _QUERIES["set_quotas"],
        {
            "tenant_id": tenant_id,
            "pool_id": pool_id,
            "resources": list(limits),
            "limits": [
                read_limit(resource, limit, field=f"quota.{resource}")
                for resource, limit in limits.items()
            ],
        },
    )


async def _get(connection: Connection, caller: Caller, pool_id: str) -> PoolView:
    pools = await _select(connection, caller, {"id": pool_id, "limit": 1})
    if not pools:
        raise _no_pool(pool_id)
    return pools[0]


async def _select(
    connection: Connection, caller: Caller, filters: Mapping[str, object]
) -> list[PoolView]:
    everything = {"id": None, "after": "", "name": None, "model": None, "sharing": None}
    cursor = await connection.execute(
        _QUERIES["select"], {**everything, **filters, "tenant_id": caller.tenant_id}
    )
    return [_view(caller, row) for row in await cursor.fetchall()]


def _view(caller: Caller, row: Mapping[str, Any]) -> PoolView:
    quotas = [_quota_view(caller, row["id"], quota) for quota in row["quotas"]]
    return PoolView.model_validate(
        {
            **{key: row[key] for key in PoolView.model_fields if key in row},
            "class": row["class"],
            "owner_tenant_id": row["tenant_id"],
            "owned": row["tenant_id"] == caller.tenant_id,
            "archived": row["archived_at"] is not None,
            "quotas": quotas,
        }
    )


def _quota_view(caller: Caller, pool_id: str, quota: Mapping[str, Any]) -> QuotaView:
    resource = quota["resource"]
    limit = None if quota["max"] is None else Decimal(quota["max"])
    used = Decimal(quota["used"])
    return QuotaView(
        tenant_id=caller.tenant_id,
        pool_id=pool_id,
        resource=resource,
        max=show_limit(resource, limit),
        used=show_amount(resource, used),
        available=show_limit(resource, None if limit is None else subtract(limit, used)),
    )


def _same(existing: PoolView, row: Mapping[str, Any]) -> PoolView:
    there = existing.model_dump(by_alias=True)
    for field in _IDENTITY:
        if there[field] != row[field]:
            raise ConflictError(
                f"the same key created a pool with another {field}",
                field="idempotency_key",
                details={"pool_id": existing.id, "there": there[field], "asked": row[field]},
            )
    return existing


def _record(row: Mapping[str, Any]) -> PoolRecord:
    return PoolRecord(
        id=row["id"],
        tenant_id=row["tenant_id"],
        quota_tenant_id=row["quota_tenant_id"],
        region=row["region"],
        name=row["name"],
        cls=row["class"],
        gpu_model=row["gpu_model"],
        sharing=row["sharing"],
        policy=read_policy(row["policy"], row["sharing"]),
    )


def _no_pool(pool_id: str) -> NotFoundError:
    return NotFoundError("no such pool", field="pool_id", given=pool_id)
