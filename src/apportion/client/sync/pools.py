# Made from client/aio/pools.py by tools/unasync.py: change that one.
"""Sites, pools, offers and quotas."""

from apportion.client.requests import Document, Query, body_of, keyed, path_of
from apportion.client.sync.asking import Asking
from apportion.client.sync.page import Page
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


class Pools(Asking):
    """What the API offers about pools, where they are and who may use them."""

    def create_site(self, request: SiteCreate | Document) -> SiteView:
        """Create a site."""
        return self._send("POST", path_of("sites"), SiteView, keyed(request))

    def list_sites(self, *, limit: int = 100, cursor: str | None = None) -> Page[SiteView]:
        """List sites by id."""
        return self._list(path_of("sites"), SiteView, {"limit": limit}, cursor)

    def get_site(self, site_id: str) -> SiteView:
        """Show a site."""
        return self._send("GET", path_of("sites", site_id), SiteView)

    def update_site(self, site_id: str, request: SiteUpdate | Document) -> SiteView:
        """Change a site's name, its region, or both."""
        return self._send("PATCH", path_of("sites", site_id), SiteView, body_of(request))

    def delete_site(self, site_id: str) -> SiteDeleted:
        """Remove a site that no pool is in."""
        return self._send("DELETE", path_of("sites", site_id), SiteDeleted)

    def create_pool(self, request: PoolCreate | Document) -> PoolView:
        """Create a pool."""
        return self._send("POST", path_of("pools"), PoolView, keyed(request))

    def validate_pool(self, request: PoolValidate | Document) -> Validation:
        """Tell all that a create or an update would refuse, and change nothing."""
        return self._send("POST", path_of("pools", "validate"), Validation, body_of(request))

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
    ) -> Page[PoolView]:
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

    def get_pool(self, pool_id: str) -> PoolView:
        """Show a pool and its quotas."""
        return self._send("GET", path_of("pools", pool_id), PoolView)

    def update_pool(self, pool_id: str, request: PoolUpdate | Document) -> PoolView:
        """Replace the policy, change the GPU model, or both, of the version that was read."""
        return self._update("PATCH", path_of("pools", pool_id), PoolView, request)

    def archive_pool(self, pool_id: str) -> PoolView:
        """Retire a pool: its offers end, what runs runs on, nothing new is placed."""
        return self._send("POST", path_of("pools", pool_id, "archive"), PoolView)

    def list_offers(
        self, pool_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> Page[OfferView]:
        """List to whom a pool is offered, with their quotas."""
        return self._list(path_of("pools", pool_id, "offers"), OfferView, {"limit": limit}, cursor)

    def offer_pool(self, pool_id: str, tenant_id: str, request: OfferPut | Document) -> OfferView:
        """Offer a pool to a tenant, or change the offer and its quota."""
        path = path_of("pools", pool_id, "offers", tenant_id)
        return self._send("PUT", path, OfferView, body_of(request))

    def unoffer_pool(self, pool_id: str, tenant_id: str) -> OfferRemoved:
        """Withdraw an offer: what runs runs on, nothing new fits."""
        path = path_of("pools", pool_id, "offers", tenant_id)
        return self._send("DELETE", path, OfferRemoved)

    def list_quotas(
        self,
        *,
        pool_id: str | None = None,
        tenant_id: str | None = None,
        resource: QuotaResource | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[QuotaView]:
        """List quotas by pool and resource."""
        query = {"pool_id": pool_id, "tenant_id": tenant_id, "resource": resource, "limit": limit}
        return self._list(path_of("quotas"), QuotaView, query, cursor)

    def get_quota(self, pool_id: str, tenant_id: str, resource: QuotaResource) -> QuotaView:
        """Show what a tenant may use of a pool, and uses."""
        path = path_of("pools", pool_id, "quotas", tenant_id, resource)
        return self._send("GET", path, QuotaView)

    def set_quota(self, request: QuotaSet | Document) -> QuotaView:
        """Set a limit; one below what is used stops new work."""
        return self._send("PUT", path_of("quotas"), QuotaView, body_of(request))
