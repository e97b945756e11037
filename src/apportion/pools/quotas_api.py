"""Routes of quotas."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from apportion.doors.paging import Cursor, Filter, Limit, Page, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.doors.schemas import TenantId
from apportion.pools import service
from apportion.pools.schemas import QuotaResource, QuotaSet, QuotaView

router = APIRouter(route_class=Door, tags=["pools"])


class QuotaPage(Page[QuotaView]):
    """Quotas by pool, tenant and resource."""


@router.get("/v1/quotas", summary="List the tenant's quotas, and all quotas on its pools")
async def list_quotas(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    tenant_id: Filter = None,
    resource: Annotated[QuotaResource | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> QuotaPage:
    pool, tenant, named = decode_cursor("list_quotas", cursor, "", "", "")
    found = await service.list_quotas(
        runtime,
        caller,
        after=(pool, tenant, named),
        limit=limit + 1,
        pool_id=pool_id,
        tenant_id=tenant_id,
        resource=resource,
    )
    items, following = cut(
        "list_quotas", found, limit, lambda each: [each.pool_id, each.tenant_id, each.resource]
    )
    return QuotaPage(items=items, next_cursor=following)


@router.put("/v1/quotas", summary="Set a limit; one below what is used stops new work")
async def set_quota(runtime: TheRuntime, caller: TheCaller, request: QuotaSet) -> QuotaView:
    return await service.set_quota(runtime, caller, request)


@router.get(
    "/v1/pools/{pool_id}/quotas/{tenant_id}/{resource}",
    summary="Show what a tenant may use of a pool, and uses",
)
async def get_quota(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: Annotated[str, Path()],
    tenant_id: Annotated[TenantId, Path()],
    resource: Annotated[QuotaResource, Path()],
) -> QuotaView:
    return await service.get_quota(runtime, caller, pool_id, tenant_id, resource)
