"""Routes of sites, pools and offers."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, Truth, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.doors.schemas import TenantId
from apportion.pools import service
from apportion.pools.schemas import (
    OfferPut,
    OfferRemoved,
    OfferView,
    PoolClass,
    PoolCreate,
    PoolUpdate,
    PoolValidate,
    PoolView,
    Sharing,
    SiteCreate,
    SiteDeleted,
    SiteUpdate,
    SiteView,
    Validation,
)

router = APIRouter(route_class=Door, tags=["pools"])

PoolId = Annotated[str, Path()]
SiteId = Annotated[str, Path()]


class SitePage(Page[SiteView]):
    """Sites by id."""


class PoolPage(Page[PoolView]):
    """Pools by id."""


class OfferPage(Page[OfferView]):
    """Offers of one pool by tenant."""


@router.post("/v1/sites", status_code=201, summary="Create a site")
async def create_site(
    runtime: TheRuntime, caller: TheCaller, request: SiteCreate, key: KeyHeader = None
) -> SiteView:
    return await service.create_site(runtime, caller, one_key(request, key))


@router.get("/v1/sites", summary="List sites")
async def list_sites(
    runtime: TheRuntime, caller: TheCaller, limit: Limit = 100, cursor: Cursor = None
) -> SitePage:
    [after] = decode_cursor("list_sites", cursor, "")
    found = await service.list_sites(runtime, caller, after=after, limit=limit + 1)
    items, following = cut("list_sites", found, limit, lambda site: [site.id])
    return SitePage(items=items, next_cursor=following)


@router.get("/v1/sites/{site_id}", summary="Show a site")
async def get_site(runtime: TheRuntime, caller: TheCaller, site_id: SiteId) -> SiteView:
    return await service.get_site(runtime, caller, site_id)


@router.patch("/v1/sites/{site_id}", summary="Give a site another name or region")
async def update_site(
    runtime: TheRuntime, caller: TheCaller, site_id: SiteId, request: SiteUpdate
) -> SiteView:
    return await service.update_site(runtime, caller, site_id, request)


@router.delete("/v1/sites/{site_id}", summary="Delete a site that has no pools")
async def delete_site(runtime: TheRuntime, caller: TheCaller, site_id: SiteId) -> SiteDeleted:
    return await service.delete_site(runtime, caller, site_id)


@router.post("/v1/pools", status_code=201, summary="Create a pool")
async def create_pool(
    runtime: TheRuntime, caller: TheCaller, request: PoolCreate, key: KeyHeader = None
) -> PoolView:
    return await service.create_pool(runtime, caller, one_key(request, key))


@router.post("/v1/pools/validate", summary="Show what create or update would refuse")
async def validate_pool(
    runtime: TheRuntime, caller: TheCaller, request: PoolValidate
) -> Validation:
    return await service.validate_pool(runtime, caller, request)


@router.get("/v1/pools", summary="List the pools that the tenant owns or is offered")
async def list_pools(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    name: Filter = None,
    gpu_model: Filter = None,
    sharing: Annotated[Sharing | None, Query()] = None,
    cls: Annotated[PoolClass | None, Query(alias="class")] = None,
    site_id: Filter = None,
    owned: Truth = None,
    archived: Truth = None,
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
        cls=cls,
        site_id=site_id,
        owned=owned,
        archived=bool(archived),
    )
    items, following = cut("list_pools", found, limit, lambda pool: [pool.id])
    return PoolPage(items=items, next_cursor=following)


@router.get("/v1/pools/{pool_id}", summary="Show a pool and the quotas that count for the tenant")
async def get_pool(runtime: TheRuntime, caller: TheCaller, pool_id: PoolId) -> PoolView:
    return await service.get_pool(runtime, caller, pool_id)


@router.patch("/v1/pools/{pool_id}", summary="Replace a pool's policy, or its GPU model")
async def update_pool(
    runtime: TheRuntime, caller: TheCaller, pool_id: PoolId, request: PoolUpdate
) -> PoolView:
    return await service.update_pool(runtime, caller, pool_id, request)


@router.post("/v1/pools/{pool_id}/archive", summary="Retire a pool; what runs on it runs on")
async def archive_pool(runtime: TheRuntime, caller: TheCaller, pool_id: PoolId) -> PoolView:
    return await service.archive_pool(runtime, caller, pool_id)


@router.get("/v1/pools/{pool_id}/offers", summary="List to whom a pool is offered")
async def list_offers(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: PoolId,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> OfferPage:
    [after] = decode_cursor("list_offers", cursor, "")
    found = await service.list_offers(runtime, caller, pool_id, after=after, limit=limit + 1)
    items, following = cut("list_offers", found, limit, lambda offer: [offer.tenant_id])
    return OfferPage(items=items, next_cursor=following)


@router.put("/v1/pools/{pool_id}/offers/{tenant_id}", summary="Offer a pool, or change the offer")
async def offer_pool(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: PoolId,
    tenant_id: Annotated[TenantId, Path()],
    request: OfferPut,
) -> OfferView:
    return await service.offer_pool(runtime, caller, pool_id, tenant_id, request)


@router.delete("/v1/pools/{pool_id}/offers/{tenant_id}", summary="Take a pool back from a tenant")
async def unoffer_pool(
    runtime: TheRuntime, caller: TheCaller, pool_id: PoolId, tenant_id: Annotated[TenantId, Path()]
) -> OfferRemoved:
    return await service.unoffer_pool(runtime, caller, pool_id, tenant_id)
