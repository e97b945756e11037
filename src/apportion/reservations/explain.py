"""By which live reservations a quota is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from apportion.authority.service import Caller
from apportion.pools.schemas import Quantity, QuotaView
from apportion.pools.service import QuotaKey, find_quota, show_amount
from apportion.reservations import rows
from apportion.reservations.schemas import QuotaUse
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Explanation:
    """A quota, some of the reservations that use it, and how much all of them take."""

    quota: QuotaView
    uses: Sequence[QuotaUse]
    accounted: Quantity


async def explain_quota(
    runtime: Runtime, caller: Caller, key: QuotaKey, *, after: str = "", limit: int = 100
) -> Explanation:
    """Explain a quota to its tenant, to those above it, and to the owner of the pool.

    Those who merely use what was offered to a tenant above them do not see what others have there.
    Raises NotFoundError for whom may not see it, as for a quota that is not there.
    """
    tenant_id, pool_id, resource = key
    parameters = {
        "tenant_id": tenant_id,
        "pool_id": pool_id,
        "resource": resource,
        "after": after,
        "limit": limit,
    }
    async with transaction(runtime.db) as connection:
        # One picture of all: what is used and by whom would else be of two moments.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        quota = await find_quota(connection, caller, key)
        cursor = await connection.execute(rows.QUERIES["uses"], parameters)
        uses = [_use(row, resource) for row in await cursor.fetchall()]
        cursor = await connection.execute(rows.QUERIES["accounted"], parameters)
        total = await cursor.fetchone()
    accounted = Decimal(0) if total is None else total["amount"]
    return Explanation(quota, uses, show_amount(resource, accounted))


def _use(row: Mapping[str, Any], resource: str) -> QuotaUse:
    return QuotaUse.model_validate({**row, "amount": show_amount(resource, row["amount"])})
