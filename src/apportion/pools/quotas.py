"""Quotas: what a tenant may use of a pool, and what it uses of it.

Limits change while the pool's row is held; what is used changes with each booking and waits for no
limit but its own row, which is the last lock of all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from apportion.authority.service import Caller, no_tenant
from apportion.errors import InvalidInputError, InvalidStateError, NotFoundError, QuotaExceededError
from apportion.events.service import Event, append
from apportion.pools.amounts import EQUIVALENTS, read_limit, show_limit, subtract
from apportion.pools.rows import QUERIES, Row, hold_own, may, quota_view
from apportion.pools.schemas import Limit, Quantity, QuotaSet, QuotaView
from apportion.store.connections import Connection, Cursor, retrying, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime

register(
    guards(
        "quotas_resource_known",
        "quotas_equivalents_whole",
        "quotas_max_not_negative",
        "quotas_used_not_negative",
    )
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


async def list_quotas(
    runtime: Runtime,
    caller: Caller,
    *,
    after: tuple[str, str, str] = ("", "", ""),
    limit: int = 100,
    pool_id: str | None = None,
    tenant_id: str | None = None,
    resource: str | None = None,
) -> list[QuotaView]:
    """Return quotas by pool, tenant and resource.

    They are the caller's own, all on its pools, and those of tenants above it that serve it.
    """
    parameters = {
        "caller": caller.tenant_id,
        "lineage": list(caller.lineage),
        "after_pool": after[0],
        "after_tenant": after[1],
        "after_resource": after[2],
        "limit": limit,
        "pool_id": pool_id,
        "tenant_id": tenant_id,
        "resource": resource,
    }
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(QUERIES["list_quotas"], parameters)
        return [_shown(row) for row in await cursor.fetchall()]


async def get_quota(
    runtime: Runtime, caller: Caller, pool_id: str, tenant_id: str, resource: str
) -> QuotaView:
    """Return one quota, to its tenant, to those above it, to whom it serves, and to the owner.

    Raises NotFoundError for one that the caller may not see, as for one that is not there.
    """
    async with transaction(runtime.db) as connection:
        return await find_quota(
            connection, caller, (tenant_id, pool_id, resource), lineage=caller.lineage
        )


async def find_quota(
    connection: Connection, caller: Caller, key: QuotaKey, *, lineage: Sequence[str] = ()
) -> QuotaView:
    """Return one quota, to its tenant, to those above it, to the owner of the pool.

    It is shown to those too whose ``lineage`` the pool is offered to with all below it.
    """
    tenant_id, pool_id, resource = key
    parameters = {
        "caller": caller.tenant_id,
        "lineage": list(lineage),
        "pool_id": pool_id,
        "tenant_id": tenant_id,
        "resource": resource,
    }
    cursor = await connection.execute(QUERIES["find_quota"], parameters)
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError(
            "no such quota",
            field="resource",
            given=resource,
            hint="What has no row grants 0",
        )
    return _shown(row)


async def set_quota(runtime: Runtime, caller: Caller, request: QuotaSet) -> QuotaView:
    """Set the limit of the caller or of a tenant that its pool is offered to.

    What is left to a tenant from an offer that was taken back can be lowered only. Raises
    NotFoundError for a pool of somebody else and for a tenant that never had a quota on it,
    InvalidStateError for an archived pool and for a limit raised without an offer.
    """

    async def work(connection: Connection) -> QuotaView:
        await may(connection, caller, "compute:quotas:set", request.pool_id)
        pool = await hold_own(connection, caller, request.pool_id)
        tenant_id = request.tenant_id or caller.tenant_id
        if pool["archived"]:
            raise InvalidStateError(
                "the pool is archived: its limits are what is in use",
                field="pool_id",
                given=pool["id"],
            )
        limits = {request.resource: read_limit(request.resource, request.max, field="max")}
        await _check_user(connection, pool, tenant_id, limits)
        key = {"tenant_id": tenant_id, "pool_id": pool["id"], "resource": request.resource}
        before = await _find(connection, key)
        await set_limits(connection, tenant_id, pool["id"], limits)
        after = await _find(connection, key)
        assert after is not None  # noqa: S101 - just written
        if before is None or before.max != after.max:
            events = _events(caller, before, after)
            await append(connection, caller, runtime.now(), events)
        return after

    return await retrying(runtime.db, work)


async def read_quotas(
    connection: Connection, tenant_ids: Collection[str], pool_ids: Collection[str]
) -> dict[QuotaKey, Quota]:
    """Return all quota rows of some tenants on some pools."""
    cursor = await connection.execute(
        QUERIES["quotas"], {"tenant_ids": list(tenant_ids), "pool_ids": list(pool_ids)}
    )
    return quotas_by_key(await cursor.fetchall())


def quotas_by_key(rows: Iterable[Row]) -> dict[QuotaKey, Quota]:
    """Return rows of quotas by tenant, pool and resource."""
    return {
        (row["tenant_id"], row["pool_id"], row["resource"]): Quota(row["max"], row["used"])
        for row in rows
    }


async def charge(connection: Connection, amounts: Mapping[QuotaKey, Decimal]) -> None:
    """Charge (or with negative amounts give back) in the current transaction, its last lock.

    Raises QuotaExceededError when a limit does not cover a charge; nothing must be kept then.
    """
    await (await ask_to_charge(connection, amounts)).check()


@dataclass(frozen=True, slots=True)
class AskedToCharge:
    """What was asked for in a pipeline, whose answer is there when that is done."""

    _wanted: Mapping[QuotaKey, Decimal]
    _charged: Cursor | None

    async def check(self) -> None:
        """Raise QuotaExceededError where a limit does not cover a charge."""
        if self._charged is None:
            return
        rows = await self._charged.fetchall()
        charged = {(row["tenant_id"], row["pool_id"], row["resource"]) for row in rows}
        # What is given back to a quota that was taken away is nobody's any more.
        missing = [
            (key, amount)
            for key, amount in self._wanted.items()
            if amount > 0 and key not in charged
        ]
        if missing:
            (tenant, pool, resource), amount = missing[0]
            raise QuotaExceededError(
                f"the quota of {tenant} on {pool} does not cover this much {resource}",
                details={"pool_id": pool, "resource": resource, "asked": str(amount)},
            )


async def ask_to_charge(
    connection: Connection, amounts: Mapping[QuotaKey, Decimal]
) -> AskedToCharge:
    """Do as `charge` in a pipeline; whether the limits cover it is to be checked after it."""
    wanted = {key: amount for key, amount in sorted(amounts.items()) if amount}
    if not wanted:
        return AskedToCharge(wanted, None)
    parameters = {
        "tenants": [key[0] for key in wanted],
        "pools": [key[1] for key in wanted],
        "resources": [key[2] for key in wanted],
        "amounts": list(wanted.values()),
    }
    # Locked in one order first: two charges of several rows would deadlock in different orders.
    await connection.execute(QUERIES["lock_quotas"], parameters)
    return AskedToCharge(wanted, await connection.execute(QUERIES["charge"], parameters))


def read_limits(limits: Mapping[Any, Limit], *, field: str) -> dict[str, Decimal | None]:
    """Return limits as they are stored, None for ``"unlimited"``; ``field`` holds them."""
    return {
        resource: read_limit(resource, limit, field=f"{field}.{resource}")
        for resource, limit in limits.items()
    }


def limit_problems(limits: Mapping[Any, Limit], *, field: str) -> list[InvalidInputError]:
    """Return what is wrong with each limit."""
    found: list[InvalidInputError] = []
    for resource, limit in limits.items():
        try:
            read_limits({resource: limit}, field=field)
        except InvalidInputError as error:
            found.append(error)
    return found


def counting_equivalents(limits: Mapping[Any, Limit]) -> dict[str, Limit]:
    """Add gpuEquivalents without a limit where none is given: they are always counted."""
    return {EQUIVALENTS: "unlimited", **limits}


async def set_limits(
    connection: Connection, tenant_id: str, pool_id: str, limits: Mapping[str, Decimal | None]
) -> None:
    """Write limits of a tenant on a pool; those that are not named stay as they are."""
    await connection.execute(
        QUERIES["set_quotas"],
        {
            "tenant_id": tenant_id,
            "pool_id": pool_id,
            "resources": list(limits),
            "limits": list(limits.values()),
        },
    )


async def lower_to_used(
    connection: Connection, of: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Quantity]]:
    """Lower all limits of some (tenant, pool) to what is in use, and return them as shown.

    A limit that is below what is used stays: taking a pool away must not raise it.
    """
    parameters = {"tenants": [each[0] for each in of], "pools": [each[1] for each in of]}
    await connection.execute(QUERIES["lock_quotas_of"], parameters)
    cursor = await connection.execute(QUERIES["lower_quotas"], parameters)
    lowered: dict[tuple[str, str], dict[str, Quantity]] = {each: {} for each in of}
    for row in await cursor.fetchall():
        limits = lowered[row["tenant_id"], row["pool_id"]]
        limits[row["resource"]] = show_limit(row["resource"], row["max"])
    return lowered


async def _check_user(
    connection: Connection, pool: Row, tenant_id: str, limits: Mapping[str, Decimal | None]
) -> None:
    key = {"pool_id": pool["id"], "tenant_id": tenant_id}
    cursor = await connection.execute(QUERIES["is_offered"], key)
    if tenant_id == pool["tenant_id"] or await cursor.fetchone() is not None:
        return
    there = {
        resource: quota.max
        for (_, _, resource), quota in (
            await read_quotas(connection, [tenant_id], [pool["id"]])
        ).items()
    }
    if not there:
        raise no_tenant(tenant_id)
    for resource, wanted in limits.items():
        most = there.get(resource, Decimal(0))
        if wanted is None or (most is not None and wanted > most):
            raise InvalidStateError(
                "the pool is not offered to the tenant, so its limit can be lowered only",
                field="max",
                given=show_limit(resource, wanted),
                allowed=f"at most {show_limit(resource, most)}",
            )


async def _find(connection: Connection, key: Mapping[str, str]) -> QuotaView | None:
    cursor = await connection.execute(QUERIES["quota"], key)
    row = await cursor.fetchone()
    return None if row is None else _shown(row)


def _shown(row: Row) -> QuotaView:
    return quota_view(row["tenant_id"], row["pool_id"], row)


def _events(caller: Caller, before: QuotaView | None, after: QuotaView) -> list[Event]:
    data: dict[str, object] = {
        "tenant_id": after.tenant_id,
        "resource": after.resource,
        "max": after.max,
        "previous": None if before is None else before.max,
    }
    events = [
        Event(
            "quota.updated",
            caller.tenant_id,
            after.pool_id,
            data,
            before=None if before is None else before.model_dump(mode="json"),
            after=after.model_dump(mode="json"),
        )
    ]
    if after.tenant_id != caller.tenant_id:
        events.append(
            Event("quota.updated", after.tenant_id, after.pool_id, data, actor=caller.tenant_id)
        )
    return events
