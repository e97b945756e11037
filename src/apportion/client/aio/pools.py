"""Sites, pools, offers and quotas."""

from apportion.client.aio.asking import AsyncAsking
from apportion.client.aio.page import AsyncListing
from apportion.client.requests import Document, Query, body_of, keyed, path_of
from apportion.pools.schemas import (
    OfferPut,
    OfferRemoved,
    OfferView,
    PoolClass,
    PoolCreate,
    PoolUpdate,
    PoolValidate,
    PoolView,
    QuotaResource,
    QuotaSet,
    QuotaView,
    Sharing,
    SiteCreate,
    SiteDeleted,
    SiteUpdate,
    SiteView,
    Validation,
)


class AsyncPools(AsyncAsking):
    """What the API offers about pools, where they are and who may use them."""

    async def create_site(self, request: SiteCreate | Document) -> SiteView:
        """Create a site."""
        return await self._send("POST", path_of("sites"), SiteView, keyed(request))

    def list_sites(self, *, limit: int = 100, cursor: str | None = None) -> AsyncListing[SiteView]:
        """List sites by id."""
        return self._list(path_of("sites"), SiteView, {"limit": limit}, cursor)

    async def get_site(self, site_id: str) -> SiteView:
        """Show a site."""
        return await self._send("GET", path_of("sites", site_id), SiteView)

    async def update_site(self, site_id: str, request: SiteUpdate | Document) -> SiteView:
        """Change a site's name, its region, or both."""
        return await self._send("PATCH", path_of("sites", site_id), SiteView, body_of(request))

    async def delete_site(self, site_id: str) -> SiteDeleted:
        """Remove a site that no pool is in."""
        return await self._send("DELETE", path_of("sites", site_id), SiteDeleted)

    async def create_pool(self, request: PoolCreate | Document) -> PoolView:
        """Create a pool."""
        return await self._send("POST", path_of("pools"), PoolView, keyed(request))

    async def validate_pool(self, request: PoolValidate | Document) -> Validation:
        """Tell all that a create or an update would refuse, and change nothing."""
        return await self._send("POST", path_of("pools", "validate"), Validation, body_of(request))

    def list_pools(
        self,
        *,
        name: str | None = None,
        gpu_model: str | None = None,
        sharing: Sharing | None = None,
        class_: PoolClass | None = None,
        site_id: str | None = None,
        owned: bool | None = None,
        archived: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[PoolView]:
        """List pools by id: the tenant's own, and those that are offered to it."""
        query: Query = {
            "name": name,
            "gpu_model": gpu_model,
            "sharing": sharing,
            "class": class_,
            "site_id": site_id,
            "owned": owned,
            "archived": archived,
            "limit": limit,
        }
        return self._list(path_of("pools"), PoolView, query, cursor)

    async def get_pool(self, pool_id: str) -> PoolView:
        """Show a pool and its quotas."""
        return await self._send("GET", path_of("pools", pool_id), PoolView)

    async def update_pool(self, pool_id: str, request: PoolUpdate | Document) -> PoolView:
        """Replace the policy, change the GPU model, or both, of the version that was read."""
        return await self._update("PATCH", path_of("pools", pool_id), PoolView, request)

    async def archive_pool(self, pool_id: str) -> PoolView:
        """Retire a pool: its offers end, what runs runs on, nothing new is placed."""
        return await self._send("POST", path_of("pools", pool_id, "archive"), PoolView)

    def list_offers(
        self, pool_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> AsyncListing[OfferView]:
        """List to whom a pool is offered, with their quotas."""
        return self._list(path_of("pools", pool_id, "offers"), OfferView, {"limit": limit}, cursor)

    async def offer_pool(
        self, pool_id: str, tenant_id: str, request: OfferPut | Document
    ) -> OfferView:
        """Offer a pool to a tenant, or change the offer and its quota."""
        path = path_of("pools", pool_id, "offers", tenant_id)
        return await self._send("PUT", path, OfferView, body_of(request))

    async def unoffer_pool(self, pool_id: str, tenant_id: str) -> OfferRemoved:
        """Withdraw an offer: what runs runs on, nothing new fits."""
        path = path_of("pools", pool_id, "offers", tenant_id)
        return await self._send("DELETE", path, OfferRemoved)

    def list_quotas(
        self,
        *,
        pool_id: str | None = None,
        tenant_id: str | None = None,
        resource: QuotaResource | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[QuotaView]:
        """List quotas by pool and resource."""
        query = {"pool_id": pool_id, "tenant_id": tenant_id, "resource": resource, "limit": limit}
        return self._list(path_of("quotas"), QuotaView, query, cursor)

    async def get_quota(self, pool_id: str, tenant_id: str, resource: QuotaResource) -> QuotaView:
        """Show what a tenant may use of a pool, and uses."""
        path = path_of("pools", pool_id, "quotas", tenant_id, resource)
        return await self._send("GET", path, QuotaView)

    async def set_quota(self, request: QuotaSet | Document) -> QuotaView:
        """Set a limit; one below what is used stops new work."""
        return await self._send("PUT", path_of("quotas"), QuotaView, body_of(request))
