"""Routes of sites, pools and quotas."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.pools import service
from apportion.pools.schemas import PoolCreate, PoolView, QuotaSet, QuotaView, Sharing, SiteView

router = APIRouter(route_class=Door, tags=["pools"])


class SitePage(Page[SiteView]):
    """Sites by id."""


class PoolPage(Page[PoolView]):
    """Pools by id."""


class QuotaPage(Page[QuotaView]):
    """Quotas by pool and resource."""


@router.get("/v1/sites", summary="List sites")
async def list_sites(
    runtime: TheRuntime, caller: TheCaller, limit: Limit = 100, cursor: Cursor = None
) -> SitePage:
    [after] = decode_cursor("list_sites", cursor, "")
    found = await service.list_sites(runtime, caller, after=after, limit=limit + 1)
    items, following = cut("list_sites", found, limit, lambda site: [site.id])
    return SitePage(items=items, next_cursor=following)


@router.post("/v1/pools", status_code=201, summary="Create a pool")
async def create_pool(
    runtime: TheRuntime, caller: TheCaller, request: PoolCreate, key: KeyHeader = None
) -> PoolView:
    return await service.create_pool(runtime, caller, one_key(request, key))


@router.get("/v1/pools", summary="List pools")
async def list_pools(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    name: Filter = None,
    gpu_model: Filter = None,
    sharing: Annotated[Sharing | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PoolPage:
    [after] = decode_cursor("list_pools", cursor, "")
    found = await service.list_pools(
        runtime,
        caller,
        after=after,
        limit=limit + 1,
        name=name,
        gpu_model=gpu_model,
        sharing=sharing,
    )
    items, following = cut("list_pools", found, limit, lambda pool: [pool.id])
    return PoolPage(items=items, next_cursor=following)


@router.get("/v1/pools/{pool_id}", summary="Show a pool and its quotas")
async def get_pool(
    runtime: TheRuntime, caller: TheCaller, pool_id: Annotated[str, Path()]
) -> PoolView:
    return await service.get_pool(runtime, caller, pool_id)


@router.get("/v1/quotas", summary="List quotas")
async def list_quotas(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> QuotaPage:
    pool, resource = decode_cursor("list_quotas", cursor, "", "")
    found = await service.list_quotas(
        runtime, caller, after=(pool, resource), limit=limit + 1, pool_id=pool_id
    )
    items, following = cut("list_quotas", found, limit, lambda each: [each.pool_id, each.resource])
    return QuotaPage(items=items, next_cursor=following)


@router.put("/v1/quotas", summary="Set a limit; one below what is used stops new work")
async def set_quota(runtime: TheRuntime, caller: TheCaller, request: QuotaSet) -> QuotaView:
    return await service.set_quota(runtime, caller, request)
