"""What `--prune` removes: what is on the server and nowhere in the file, of the sections it has."""

from collections.abc import Iterator

from apportion.fleet.reading import FleetFile, by_owner
from apportion.fleet.steps import Plan, Step
from apportion.fleet.there import There
from apportion.fleet.tree import Tree


def plan_removals(file: FleetFile, there: There, tree: Tree, plan: Plan) -> list[Step]:
    """Return the removals in order; what has to stay is told in the plan."""
    going = _going_tenants(file, there, tree)
    return [
        *_offers(file, there),
        *_policies(file, there, going),
        *_pools(file, there, going),
        *_sites(file, there, going, plan),
        *_tenants(there, going),
    ]


def _going_tenants(file: FleetFile, there: There, tree: Tree) -> list[str]:
    """Return the tenants that the file does not name, those below before those above."""
    fleet = file.fleet
    if fleet.tenants is None:
        return []
    named = {each.id for each in fleet.tenants} | {there.acting}
    for section in (fleet.sites, fleet.pools, fleet.policies):
        named |= {each.tenant for each in section or [] if each.tenant is not None}
    for pool in fleet.pools or []:
        named |= {*(pool.offers or {})}
    kept = {above for each in named if tree.has(each) for above in tree.way(each)}
    return sorted(there.tenants.keys() - kept, key=lambda each: (-tree.depth(each), each))


def _offers(file: FleetFile, there: There) -> Iterator[Step]:
    for (tenant, name), at in by_owner(file.fleet.pools, there.acting).items():
        said = (file.fleet.pools or [])[at].offers
        known = there.pools.get((tenant, name))
        if said is not None and known is not None:
            for other in sorted(known.offers.keys() - said.keys()):
                yield Step("delete", "offer", tenant, name, to=other, id=known.view.id)


def _policies(file: FleetFile, there: There, going: list[str]) -> Iterator[Step]:
    if file.fleet.policies is None:
        return
    said = by_owner(file.fleet.policies, there.acting)
    for (tenant, name), policy in sorted(there.policies.items()):
        if (tenant, name) not in said and tenant not in going:
            yield Step("delete", "policy", tenant, name, id=policy.id)


def _pools(file: FleetFile, there: There, going: list[str]) -> Iterator[Step]:
    if file.fleet.pools is None:
        return
    said = by_owner(file.fleet.pools, there.acting)
    for (tenant, name), pool in sorted(there.living_pools().items()):
        if (tenant, name) not in said and tenant not in going:
            lost = tuple(f"{other} loses it" for other in sorted(pool.offers))
            yield Step("delete", "pool", tenant, name, id=pool.view.id, also=lost)


def _sites(file: FleetFile, there: There, going: list[str], plan: Plan) -> Iterator[Step]:
    if file.fleet.sites is None:
        return
    said = {*by_owner(file.fleet.sites, there.acting)}
    said |= {(each.tenant or there.acting, each.site) for each in file.fleet.pools or []}
    for (tenant, name), site in sorted(there.sites.items()):
        if (tenant, name) in said or tenant in going:
            continue
        pools = sorted(
            pool.view.name for pool in there.pools.values() if pool.view.site_id == site.id
        )
        if pools:
            plan.left.append(
                f"site {name} of {tenant} stays: a site is kept while pools are in it, archived "
                f"ones too ({', '.join(pools)})"
            )
        else:
            yield Step("delete", "site", tenant, name, id=site.id)


def _tenants(there: There, going: list[str]) -> Iterator[Step]:
    for tenant in going:
        pools = sorted(name for owner, name in there.living_pools() if owner == tenant)
        also = [f"pool {name} is archived" for name in pools]
        also += [
            f"policy {name} is deleted" for owner, name in sorted(there.policies) if owner == tenant
        ]
        also.append("its tokens stop, its reservations end, offers to it are taken back")
        yield Step("delete", "tenant", there.acting, tenant, id=tenant, also=tuple(also))
