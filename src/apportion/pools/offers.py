"""Offers: what makes a pool exist for other tenants, with a quota for each.

An offer and its quota are written and taken away in one transaction. The rules of who may be
offered what are constraints of the schema; here they get their words, and are looked at first.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller, hold_tenant, no_tenant
from apportion.errors import ApportionError, InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.pools.gates import close_gates
from apportion.pools.quotas import counting_equivalents, lower_to_used, read_limits, set_limits
from apportion.pools.rows import QUERIES, Row, find_own, hold_own, may, quota_view
from apportion.pools.schemas import OfferPut, OfferRemoved, OfferView
from apportion.pools.validators import PoolChange, register_validator
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.errors import register
from apportion.store.runtime import Runtime

_RULES: Final[Mapping[str, str]] = {
    "offers_not_archived": "the pool is archived, and an archived pool is offered to nobody",
    "offers_isolated": "a timeslice or mps pool keeps no workload apart from another, so it is "
    "offered to nobody but its owner",
    "offers_platform_nodes": "a pool that holds tenant-owned nodes is offered to nobody but its "
    "owner",
    "offers_single_tenant_alone": "a singleTenant pool is offered to one tenant, never with its "
    "descendants",
    "offers_single_tenant_one": "a singleTenant pool is offered to one tenant besides its owner",
}

# What an offer repeats of its pool, and the schema keeps equal.
_REPEATED: Final = ("sharing", "single_tenant", "holds_tenant_nodes", "archived")


def refusal(rule: str, **facts: Any) -> InvalidStateError:
    """Return the refusal that a rule of offers stands for; ``facts`` name the field."""
    return InvalidStateError(_RULES[rule], **facts)


def _to_owner(tenant_id: str | None = None) -> InvalidInputError:
    return InvalidInputError(
        "owns the pool, which needs no offer and cannot be taken away from it",
        field="tenant_id",
        given=tenant_id,
        allowed="another tenant",
    )


register(
    {
        "offers_not_archived": lambda _: refusal("offers_not_archived"),
        "offers_isolated": lambda _: refusal("offers_isolated"),
        "offers_platform_nodes": lambda _: refusal("offers_platform_nodes"),
        "offers_single_tenant_alone": lambda _: refusal("offers_single_tenant_alone"),
        "offers_single_tenant_one": lambda _: refusal("offers_single_tenant_one"),
        "offers_not_to_owner": lambda _: _to_owner(),
        "offers_priority_range": lambda _: InvalidInputError(
            "out of range", field="priority", allowed="-1000 to 1000"
        ),
    }
)


async def list_offers(
    runtime: Runtime, caller: Caller, pool_id: str, *, after: str = "", limit: int = 100
) -> list[OfferView]:
    """Return to whom a pool of the caller is offered, by tenant."""
    async with transaction(runtime.db) as connection:
        await find_own(connection, caller, pool_id)
        return await select_offers(connection, pool_id, after=after, limit=limit)


async def offer_pool(
    runtime: Runtime, caller: Caller, pool_id: str, tenant_id: str, request: OfferPut
) -> OfferView:
    """Offer a pool of the caller to a tenant below it, or change the offer and its quota.

    Raises NotFoundError for a pool of somebody else and for a tenant that the caller is not above
    of, InvalidInputError for the owner itself, InvalidStateError where the pool may not be offered.
    """

    async def work(connection: Connection) -> OfferView:
        await _enter(connection, caller, pool_id, tenant_id)
        if caller.tenant_id not in await hold_tenant(connection, tenant_id):
            raise no_tenant(tenant_id)
        pool = await hold_own(connection, caller, pool_id)
        offers = {each.tenant_id: each for each in await select_offers(connection, pool_id)}
        before = offers.pop(tenant_id, None)
        _check_offer(pool, request, others=offers)
        now = runtime.now()
        after = await _write(connection, pool, tenant_id, request, now=now, again=bool(before))
        if _terms(before) != _terms(after):
            await append(connection, caller, now, _offered(caller, pool, before, after))
        return after

    return await retrying(runtime.db, work)


async def unoffer_pool(
    runtime: Runtime, caller: Caller, pool_id: str, tenant_id: str
) -> OfferRemoved:
    """Take a pool back from a tenant: its quotas fall to what is in use, which goes on.

    Raises InvalidInputError for the owner itself; where there is no offer nothing is removed.
    """

    async def work(connection: Connection) -> OfferRemoved:
        await _enter(connection, caller, pool_id, tenant_id)
        await hold_own(connection, caller, pool_id)
        offers = await withdraw(connection, pool_id, tenant_id)
        if not offers:
            return OfferRemoved(removed=False)
        await connection.execute(QUERIES["touch"], {"id": pool_id})
        limits = await lower_to_used(connection, [(tenant_id, pool_id)])
        data: dict[str, object] = {"tenant_id": tenant_id, "quota": limits[tenant_id, pool_id]}
        events = [
            Event("pool.unoffered", caller.tenant_id, pool_id, data, before=shown(offers[0])),
            Event("pool.unoffered", tenant_id, pool_id, data, actor=caller.tenant_id),
        ]
        await append(connection, caller, runtime.now(), events)
        return OfferRemoved(removed=True)

    return await retrying(runtime.db, work)


async def select_offers(
    connection: Connection,
    pool_id: str,
    *,
    tenant_id: str | None = None,
    after: str = "",
    limit: int | None = None,
) -> list[OfferView]:
    """Return a pool's offers by tenant."""
    cursor = await connection.execute(
        QUERIES["select_offers"],
        {"pool_id": pool_id, "tenant_id": tenant_id, "after": after, "limit": limit},
    )
    return [_view(row) for row in await cursor.fetchall()]


async def withdraw(
    connection: Connection, pool_id: str, tenant_id: str | None = None
) -> list[OfferView]:
    """Delete the offer to a tenant, or every offer, and return what there was.

    The pool is held. The quotas are the caller's to lower: they are locked last.
    """
    offers = await select_offers(connection, pool_id, tenant_id=tenant_id)
    if offers:
        await connection.execute(
            QUERIES["delete_offers"],
            {"pool_id": pool_id, "tenant_ids": [each.tenant_id for each in offers]},
        )
    return offers


def shown(offer: OfferView) -> dict[str, object]:
    """Return an offer as events tell it."""
    return offer.model_dump(mode="json")


async def _enter(connection: Connection, caller: Caller, pool_id: str, tenant_id: str) -> None:
    """Let the caller share its pool with another, while nobody places in it."""
    await may(connection, caller, "compute:pools:share", pool_id)
    if tenant_id == caller.tenant_id:
        raise _to_owner(tenant_id)
    await close_gates(connection, [pool_id])


def _check_offer(pool: Row, request: OfferPut, *, others: Collection[str]) -> None:
    if pool["archived"]:
        raise refusal("offers_not_archived", field="pool_id", given=pool["id"])
    if pool["sharing"] in ("timeslice", "mps"):
        raise refusal("offers_isolated", details={"sharing": pool["sharing"]})
    if pool["holds_tenant_nodes"]:
        raise refusal("offers_platform_nodes", field="pool_id", given=pool["id"])
    if pool["single_tenant"] and request.include_descendants:
        raise refusal(
            "offers_single_tenant_alone", field="include_descendants", given=True, allowed="false"
        )
    if pool["single_tenant"] and others:
        raise refusal("offers_single_tenant_one", details={"offered_to": sorted(others)})


async def _write(
    connection: Connection,
    pool: Row,
    tenant_id: str,
    request: OfferPut,
    *,
    now: datetime,
    again: bool,
) -> OfferView:
    # What an earlier offer left behind must not keep this one from being counted.
    quota = request.quota if again else counting_equivalents(request.quota)
    limits = read_limits(quota, field="quota")
    await connection.execute(
        QUERIES["upsert_offer"],
        {
            **{key: pool[key] for key in _REPEATED},
            "pool_id": pool["id"],
            "owner_tenant_id": pool["tenant_id"],
            "tenant_id": tenant_id,
            "priority": request.priority,
            "include_descendants": request.include_descendants,
            "now": now,
        },
    )
    await connection.execute(QUERIES["touch"], {"id": pool["id"]})
    await set_limits(connection, tenant_id, pool["id"], limits)
    [after] = await select_offers(connection, pool["id"], tenant_id=tenant_id)
    return after


def _terms(offer: OfferView | None) -> object:
    """Return what an offer grants: not what is used of it, nor when it was written."""
    if offer is None:
        return None
    limits = {quota.resource: quota.max for quota in offer.quotas}
    return offer.priority, offer.include_descendants, limits


def _offered(
    caller: Caller, pool: Row, before: OfferView | None, after: OfferView
) -> Sequence[Event]:
    data: dict[str, object] = {
        "owner_tenant_id": pool["tenant_id"],
        "tenant_id": after.tenant_id,
        "name": pool["name"],
        "gpu_model": pool["gpu_model"],
        "sharing": pool["sharing"],
        "priority": after.priority,
        "include_descendants": after.include_descendants,
        "quota": {quota.resource: quota.max for quota in after.quotas},
    }
    return [
        Event(
            "pool.offered",
            caller.tenant_id,
            after.pool_id,
            data,
            before=None if before is None else shown(before),
            after=shown(after),
        ),
        Event("pool.offered", after.tenant_id, after.pool_id, data, actor=caller.tenant_id),
    ]


def _view(row: Row) -> OfferView:
    quotas = [quota_view(row["tenant_id"], row["pool_id"], quota) for quota in row["quotas"]]
    return OfferView.model_validate({**row, "quotas": quotas})


async def _stays_offerable(connection: Connection, change: PoolChange) -> list[ApportionError]:
    """Refuse to make a pool singleTenant that is offered in a way which that rules out."""
    if change.pool_id is None or change.policy.get("singleTenant") is not True:
        return []
    offers = await select_offers(connection, change.pool_id)
    field: dict[str, Any] = {"field": "policy.singleTenant", "given": True}
    told = {"offered_to": [offer.tenant_id for offer in offers]}
    found: list[ApportionError] = []
    if len(offers) > 1:
        found.append(refusal("offers_single_tenant_one", **field, details=told))
    if any(offer.include_descendants for offer in offers):
        found.append(refusal("offers_single_tenant_alone", **field, details=told))
    return found


register_validator("offers", _stays_offerable)
