"""The tree of tenants as it will be: those that are there, and those that the file adds."""

from collections.abc import Mapping

from apportion.fleet.schemas import Fleet
from apportion.fleet.there import There

_ENDLESS = 1000


class Tree:
    """Tenants and what is above them, up to the one that acts."""

    def __init__(self, fleet: Fleet, there: There) -> None:
        self._there = there
        self._parents: Mapping[str, str | None] = {
            each.id: each.parent or there.acting for each in fleet.tenants or []
        } | {each.id: each.parent_id for each in there.tenants.values()}

    def has(self, tenant: str) -> bool:
        """Tell whether there will be such a tenant."""
        return tenant in self._parents

    def way(self, tenant: str) -> list[str]:
        """Return a tenant and those above it, nearest first, up to the one that acts."""
        way = [tenant]
        while way[-1] != self._there.acting and len(way) < _ENDLESS:
            parent = self._parents.get(way[-1])
            if parent is None:
                break
            way.append(parent)
        return way

    def is_above(self, tenant: str, other: str) -> bool:
        """Tell whether one tenant is above another."""
        return tenant in self.way(other)[1:]

    def depth(self, tenant: str) -> int:
        """Return how many tenants are on the way from root, both ends counted."""
        way = self.way(tenant)
        above = self._there.tenants[self._there.acting].ancestors
        return len(above) + len(way) - 1
