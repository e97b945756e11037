"""Archiving pools, and what becomes of the pools of a tenant that is deleted.

Either is one transaction, whatever the number of pools: pools are held in the order of their ids,
offers go, and the quotas, which bookings wait for, come last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apportion.authority.service import Caller
from apportion.events.service import Event, append
from apportion.pools.offers import shown, withdraw
from apportion.pools.quotas import lower_to_used
from apportion.pools.rows import QUERIES, Row, hold_closed, select_pool
from apportion.pools.schemas import OfferView, PoolView
from apportion.store.connections import Connection, retrying
from apportion.store.runtime import Runtime
from apportion.tenants.service import on_delete

TENANT_DELETED: Final = "tenant deleted"


@dataclass(frozen=True, slots=True)
class _Retired:
    """A pool as it was, and the offers that it lost."""

    before: PoolView
    offers: Sequence[OfferView]


async def archive_pool(runtime: Runtime, caller: Caller, pool_id: str) -> PoolView:
    """Retire a pool: no offer and no new work; what runs on it runs on. Again, it changes nothing.

    All that were offered it lose it, and their quotas fall to what is in use.
    """

    async def work(connection: Connection) -> PoolView:
        row = await hold_closed(connection, caller, "compute:pools:manage", pool_id)
        if not row["archived"]:
            now = runtime.now()
            retired = await _retire(connection, row, now)
            await lower_to_used(connection, _quotas_of(retired.offers))
            await append(connection, caller, now, await _archived(connection, retired, {}))
        return await select_pool(connection, caller, pool_id)

    return await retrying(runtime.db, work)


async def _tear_down(
    connection: Connection, caller: Caller, tenant_id: str, now: datetime
) -> Mapping[str, Sequence[str] | int]:
    """Archive the pools of a tenant, and take those back that it was offered."""
    cursor = await connection.execute(QUERIES["hold_pools_around"], {"tenant_id": tenant_id})
    rows = await cursor.fetchall()
    retired = [await _retire(connection, row, now) for row in rows if row["tenant_id"] == tenant_id]
    withdrawn: list[tuple[Row, OfferView]] = []
    for row in rows:
        if row["tenant_id"] != tenant_id:
            withdrawn += [(row, each) for each in await withdraw(connection, row["id"], tenant_id)]
            await connection.execute(QUERIES["touch"], {"id": row["id"]})
    cursor = await connection.execute(QUERIES["pools_with_quota"], {"tenant_id": tenant_id})
    own = [(tenant_id, row["pool_id"]) for row in await cursor.fetchall()]
    lost = [pair for each in retired for pair in _quotas_of(each.offers)]
    await lower_to_used(connection, [*own, *lost])
    why = {"reason": TENANT_DELETED}
    events = [event for each in retired for event in await _archived(connection, each, why)]
    events += [_unoffered(caller, row, offer, why) for row, offer in withdrawn]
    await append(connection, caller, now, events)
    return {
        "archived_pools": [each.before.id for each in retired],
        "withdrawn_offers": [row["id"] for row, _ in withdrawn],
    }


# After the reservations of the tenant have ended, so that its quotas fall to what others still use.
on_delete(20, _tear_down)


async def _retire(connection: Connection, row: Row, now: datetime) -> _Retired:
    before = await select_pool(connection, _owner(row["tenant_id"]), row["id"])
    # Before the pool is archived: the schema has no offer of an archived pool.
    offers = await withdraw(connection, row["id"])
    await connection.execute(QUERIES["archive"], {"id": row["id"], "now": now})
    return _Retired(before, offers)


def _quotas_of(offers: Sequence[OfferView]) -> list[tuple[str, str]]:
    return [(offer.tenant_id, offer.pool_id) for offer in offers]


async def _archived(
    connection: Connection, retired: _Retired, why: Mapping[str, str]
) -> list[Event]:
    """Tell the owner who lost the pool, and each of those that it is gone."""
    pool = retired.before
    owner = pool.owner_tenant_id
    after = await select_pool(connection, _owner(owner), pool.id)
    unoffered = [offer.tenant_id for offer in retired.offers]
    own = Event(
        "pool.archived",
        owner,
        pool.id,
        {"unoffered": unoffered, **why},
        before=_told(pool, retired.offers),
        after=_told(after, ()),
    )
    return [
        own,
        *(Event("pool.archived", each, pool.id, {**why}, actor=owner) for each in unoffered),
    ]


def _unoffered(caller: Caller, row: Row, offer: OfferView, why: Mapping[str, str]) -> Event:
    owner = row["tenant_id"]
    return Event(
        "pool.unoffered",
        owner,
        offer.pool_id,
        {"tenant_id": offer.tenant_id, **why},
        before=shown(offer),
        # Who deleted the tenant is a token of somebody else, unless the owner did it.
        actor=None if owner == caller.tenant_id else caller.tenant_id,
    )


def _told(pool: PoolView, offers: Sequence[OfferView]) -> dict[str, object]:
    return {
        **pool.model_dump(mode="json", by_alias=True),
        "offers": [shown(offer) for offer in offers],
    }


def _owner(tenant_id: str) -> Caller:
    """Return who sees a pool as its owner does, whoever acts."""
    return Caller(tenant_id, tenant_id)
