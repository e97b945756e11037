"""What is on the server: one tenant and those below it, with all that a fleet file can name."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from apportion.client import Client
from apportion.fleet.reading import Key
from apportion.fleet.values import Limits, granted_by
from apportion.pools.schemas import OfferView, PoolView, QuotaView, SiteView
from apportion.tenants.schemas import PolicyView, TenantView

PAGE: Final = 1000
_OPEN_MAX: Final = 16
"""How many clients stay connected: there may be more tenants than a process may have sockets."""


class Server:
    """A server, asked for one tenant or for those below it.

    ``connect`` returns a client that acts for a tenant; for None, for the token's own or whichever
    the environment names.
    """

    def __init__(self, connect: Callable[[str | None], Client]) -> None:
        self._connect = connect
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self.own = connect(None)
        caller = self.own.get_caller()
        self.tenant_id = caller.tenant_id
        self.token_id = caller.token_id

    def acting(self, tenant_id: str) -> Client:
        """Return a client that acts for a tenant."""
        if tenant_id == self.tenant_id:
            return self.own
        if tenant_id not in self._clients:
            self._clients[tenant_id] = self._connect(tenant_id)
            if len(self._clients) > _OPEN_MAX:
                self._clients.popitem(last=False)[1].close()
        self._clients.move_to_end(tenant_id)
        return self._clients[tenant_id]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in (self.own, *self._clients.values()):
            client.close()


@dataclass(frozen=True, slots=True)
class PoolThere:
    """A pool of the server; ``remains`` are limits that tenants have without an offer by now."""

    view: PoolView
    site: str
    offers: Mapping[str, OfferView]
    remains: Mapping[str, Limits]


@dataclass(slots=True)
class There:
    """What is there. ``tenants`` are those that live, the acting one included."""

    acting: str
    tenants: dict[str, TenantView]
    deleted: frozenset[str]
    sites: dict[Key, SiteView] = field(default_factory=dict[Key, SiteView])
    pools: dict[Key, PoolThere] = field(default_factory=dict[Key, PoolThere])
    policies: dict[Key, PolicyView] = field(default_factory=dict[Key, PolicyView])

    def living_pools(self) -> dict[Key, PoolThere]:
        """Return the pools that are not archived."""
        return {key: pool for key, pool in self.pools.items() if not pool.view.archived}


def read_there(server: Server, of: Collection[str] | None = None) -> There:
    """Read the tree, and what these tenants have; all of them where none are named."""
    tenants = list(server.own.list_tenants(include_deleted=True, limit=PAGE).all())
    there = There(
        acting=server.tenant_id,
        tenants={each.id: each for each in tenants if each.deleted_at is None},
        deleted=frozenset(each.id for each in tenants if each.deleted_at is not None),
    )
    for tenant_id in sorted(there.tenants if of is None else there.tenants.keys() & set(of)):
        _read_tenant(server.acting(tenant_id), tenant_id, there)
    return there


def _read_tenant(client: Client, tenant_id: str, there: There) -> None:
    sites = list(client.list_sites(limit=PAGE).all())
    there.sites |= {(tenant_id, site.name): site for site in sites}
    names = {site.id: site.name for site in sites}
    pools = [
        pool
        for archived in (False, True)
        for pool in client.list_pools(owned=True, archived=archived, limit=PAGE).all()
    ]
    limits: dict[Key, Limits] = _limits_of_others(client, tenant_id) if pools else {}
    for pool in pools:
        offers = {} if pool.archived else _offers(client, pool)
        there.pools[tenant_id, pool.name] = PoolThere(
            pool,
            names[pool.site_id],
            offers,
            {
                tenant: each
                for (pool_id, tenant), each in limits.items()
                if pool_id == pool.id and tenant not in offers
            },
        )
    policies = client.list_policies(limit=PAGE).all()
    there.policies |= {(tenant_id, policy.name): policy for policy in policies}


def _offers(client: Client, pool: PoolView) -> dict[str, OfferView]:
    return {offer.tenant_id: offer for offer in client.list_offers(pool.id, limit=PAGE).all()}


def _limits_of_others(client: Client, tenant_id: str) -> dict[Key, Limits]:
    """Return what is granted to other tenants, by pool and tenant."""
    rows: defaultdict[Key, list[QuotaView]] = defaultdict(list)
    for row in client.list_quotas(limit=PAGE).all():
        if row.tenant_id != tenant_id:
            rows[row.pool_id, row.tenant_id].append(row)
    return {key: granted_by(each) for key, each in rows.items()}
