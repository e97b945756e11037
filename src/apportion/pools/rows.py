"""Rows of pools, and how pools and quotas are shown.

Whoever changes a pool, its offers or its limits holds the pool's row first, so that an archive, an
offer and an update of one pool come one after the other; charges do not wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from apportion.authority.service import Caller, PoolFacts, authorize
from apportion.errors import ConflictError, NotFoundError
from apportion.pools.amounts import show_amount, show_limit, subtract
from apportion.pools.gates import close_gates
from apportion.pools.policy import PoolPolicy, read_stored
from apportion.pools.schemas import PoolView, QuotaView
from apportion.store.connections import Connection
from apportion.store.errors import guards, register
from apportion.store.sql import load

QUERIES: Final = load("apportion.pools")

Row = Mapping[str, Any]

_EVERYTHING: Final[Mapping[str, object]] = {
    "id": None,
    "after": "",
    "limit": 1,
    "name": None,
    "model": None,
    "sharing": None,
    "class": None,
    "site_id": None,
    "owned": None,
    "archived": None,
}


def name_taken(name: str | None = None) -> ConflictError:
    """Return the refusal of a name that another pool of the tenant has."""
    return ConflictError("this tenant has a pool of that name", field="name", given=name)


register(
    {
        "pools_name_key": lambda _: name_taken(),
        **guards(
            "pools_terms_key",
            "pools_class_known",
            "pools_sharing_known",
            "pools_provider_account",
            "pools_provider_agent",
            "pools_replicas_range",
            "pools_shares_fixed",
            "pools_split",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool as other rooms need it, its policy read.

    ``tenant_id`` is the owner, ``quota_tenant_id`` whose quota is charged when the caller uses it:
    the owner's, the offered tenant's, or that of a tenant above the caller that has the offer.
    ``priority`` is that of the offer, and 0 for the owner.
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
    priority: int = 0
    archived: bool = False
    agent: str = "none"

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


def record_of(row: Row) -> PoolRecord:
    """Return a pool as other rooms need it."""
    return PoolRecord(
        id=row["id"],
        tenant_id=row["tenant_id"],
        quota_tenant_id=row["quota_tenant_id"],
        region=row["region"],
        name=row["name"],
        cls=row["class"],
        gpu_model=row["gpu_model"],
        sharing=row["sharing"],
        policy=read_stored(row["policy"]),
        priority=row["priority"],
        archived=row["archived"],
        agent=row["agent"],
    )


def facts_of(row: Row) -> PoolFacts:
    """Return what access policies see of a pool."""
    return PoolFacts(
        id=row["id"],
        owner=row["tenant_id"],
        gpu_model=row["gpu_model"],
        cls=row["class"],
        sharing=row["sharing"],
        region=row["region"],
    )


async def find_own(connection: Connection, caller: Caller, pool_id: str) -> Row:
    """Return a pool of the caller; NotFoundError for any other, also one that is offered to it."""
    return await _own(connection, "find_own", caller, pool_id)


async def may(connection: Connection, caller: Caller, action: str, pool_id: str) -> Row:
    """Return a pool of the caller, which it may do this to; ForbiddenError if it may not.

    Locks nothing: who may not touch a pool must not hold it up either.
    """
    row = await find_own(connection, caller, pool_id)
    authorize(caller, action, facts_of(row))
    return row


async def hold_own(connection: Connection, caller: Caller, pool_id: str) -> Row:
    """Lock a pool of the caller to change it, and return it as it is then."""
    return await _own(connection, "hold_own", caller, pool_id)


async def hold_closed(connection: Connection, caller: Caller, action: str, pool_id: str) -> Row:
    """Lock a pool that the caller may do this to, while nobody places in it (see `gates`)."""
    await may(connection, caller, action, pool_id)
    await close_gates(connection, [pool_id])
    return await hold_own(connection, caller, pool_id)


async def _own(connection: Connection, query: str, caller: Caller, pool_id: str) -> Row:
    cursor = await connection.execute(
        QUERIES[query], {"id": pool_id, "tenant_id": caller.tenant_id}
    )
    row = await cursor.fetchone()
    if row is None:
        raise no_pool(pool_id)
    return row


async def select_pools(
    connection: Connection, caller: Caller, filters: Mapping[str, object]
) -> list[PoolView]:
    """Return the pools that the caller owns or is offered, by id, in one query."""
    cursor = await connection.execute(
        QUERIES["select"],
        {
            **_EVERYTHING,
            **filters,
            "tenant_id": caller.tenant_id,
            "lineage": list(caller.lineage),
        },
    )
    return [_view(caller, row) for row in await cursor.fetchall()]


async def select_pool(connection: Connection, caller: Caller, pool_id: str) -> PoolView:
    """Return one pool that the caller owns or is offered; NotFoundError for any other."""
    found = await select_pools(connection, caller, {"id": pool_id})
    if not found:
        raise no_pool(pool_id)
    return found[0]


def _view(caller: Caller, row: Row) -> PoolView:
    owned = row["tenant_id"] == caller.tenant_id
    quotas = [quota_view(row["quota_tenant_id"], row["id"], quota) for quota in row["quotas"]]
    return PoolView.model_validate(
        {
            **{key: row[key] for key in PoolView.model_fields if key in row},
            "class": row["class"],
            "owner_tenant_id": row["tenant_id"],
            # The account is between the owner and its provider.
            "provider_account_id": row["provider_account_id"] if owned else None,
            "owned": owned,
            "quotas": quotas,
        }
    )


def quota_view(tenant_id: str, pool_id: str, quota: Row) -> QuotaView:
    """Show a quota row whose numbers came as text."""
    resource = quota["resource"]
    limit = None if quota["max"] is None else Decimal(quota["max"])
    used = Decimal(quota["used"])
    return QuotaView(
        tenant_id=tenant_id,
        pool_id=pool_id,
        resource=resource,
        max=show_limit(resource, limit),
        used=show_amount(resource, used),
        available=show_limit(resource, None if limit is None else subtract(limit, used)),
    )


def no_pool(pool_id: str) -> NotFoundError:
    """Return the refusal of a pool that does not exist for the caller."""
    return NotFoundError("no such pool", field="pool_id", given=pool_id)
