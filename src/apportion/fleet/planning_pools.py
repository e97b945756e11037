"""What becomes of pools, their limits and their offers."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from apportion.errors import ApportionError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.fleet.documents import Path
from apportion.fleet.reading import FleetFile, by_owner
from apportion.fleet.schemas import Offer, Pool, Quota
from apportion.fleet.steps import Change, Plan, Step
from apportion.fleet.there import PoolThere, There
from apportion.fleet.tree import Tree
from apportion.fleet.values import (
    EQUIVALENTS,
    Limits,
    exact,
    granted,
    granted_by,
    limit_of,
    limits_to_set,
    same,
)

_NEVER: Final[Mapping[str, str]] = {
    "site": "site",
    "class_": "class",
    "sharing": "sharing",
    "agent": "agent",
    "provider_account_id": "provider_account_id",
}
"""What a pool never changes, and what the file calls it."""
_ANOTHER: Final = (
    "Create a pool of another name beside it, move the work there and archive this one"
)
_APART: Final = ("timeslice", "mps")


def plan_pools(plan: Plan, file: FleetFile, there: There, tree: Tree, *, prune: bool) -> None:
    """Add the steps for all pools of the file, then for their limits, then for their offers."""
    limits: list[Step] = []
    offers: list[Step] = []
    for at, pool in enumerate(file.fleet.pools or []):
        tenant = pool.tenant or there.acting
        path: Path = ("pools", at)
        known = there.pools.get((tenant, pool.name))
        if not tree.has(tenant):
            continue
        found = [
            *_pool_refusals(pool, tenant, known, file, there),
            *_offer_refusals(pool, tenant, known, tree, prune=prune),
        ]
        plan.refusals += [file.refusal((*path, *where), error) for where, error in found]
        if known is None:
            plan.steps.append(_created(pool, tenant, path))
        else:
            plan.steps += _changed(pool, tenant, known, path)
            limits += _limited(pool, tenant, known, path)
        offers += _offered(pool, tenant, known, path)
    plan.steps += [*limits, *offers]


def limits_said(quota: Quota) -> Limits:
    """Return what a quota of the file grants, in the form that the server shows."""
    return granted({resource: limit_of(resource, limit) for resource, limit in quota.items()})


def _pool_refusals(
    pool: Pool, tenant: str, known: PoolThere | None, file: FleetFile, there: There
) -> Iterator[tuple[Path, ApportionError]]:
    in_file = by_owner(file.fleet.sites, there.acting)
    if known is None:
        if (tenant, pool.site) not in {*there.sites, *in_file}:
            words = f"{tenant} has no such site, on the server or in the file"
            yield ("site",), NotFoundError(words, given=pool.site)
        return
    if known.view.archived:
        words = "is the name of an archived pool, which is never used again"
        yield (
            ("name",),
            InvalidStateError(words, given=pool.name, hint="Give the new pool another name"),
        )
        return
    for field, called in _NEVER.items():
        given = getattr(pool, field)
        is_now = known.site if field == "site" else getattr(known.view, field)
        if given is not None and given != is_now:
            yield (
                (called,),
                InvalidStateError("never changes", given=given, allowed=is_now, hint=_ANOTHER),
            )


def _offer_refusals(
    pool: Pool, tenant: str, known: PoolThere | None, tree: Tree, *, prune: bool
) -> Iterator[tuple[Path, ApportionError]]:
    said = pool.offers or {}
    for other in said:
        if other == tenant:
            yield ("offers", other), InvalidInputError("owns the pool, which needs no offer")
        elif not tree.is_above(tenant, other):
            words = f"no tenant below {tenant} has this id, on the server or in the file"
            yield ("offers", other), NotFoundError(words, given=other)
    if said and pool.sharing in _APART:
        words = f"a {pool.sharing} pool keeps no workload apart from another: its owner alone"
        yield ("offers",), InvalidStateError(words, allowed="no offers")
    if not _is_single_tenant(pool, known):
        return
    stays: set[str] = (
        set() if known is None or (prune and pool.offers is not None) else {*known.offers}
    )
    if said and len(stays | {*said}) > 1:
        words = "a singleTenant pool is offered to one tenant besides its owner"
        yield (
            ("offers",),
            InvalidStateError(words, given=", ".join(sorted(stays | {*said})), allowed="one"),
        )
    for other, offer in said.items():
        if offer.include_descendants:
            words = "a singleTenant pool is never offered with descendants"
            yield (
                ("offers", other, "include_descendants"),
                InvalidStateError(words, given=True, allowed="false"),
            )


def _is_single_tenant(pool: Pool, known: PoolThere | None) -> bool:
    there = {} if known is None else known.view.policy
    policy = there if pool.policy is None else pool.policy
    return policy.get("singleTenant") is True


def _created(pool: Pool, tenant: str, path: Path) -> Step:
    body: dict[str, Any] = {
        "name": pool.name,
        "class": pool.class_,
        "gpu_model": pool.gpu_model,
        "sharing": pool.sharing,
        "agent": pool.agent,
        "provider_account_id": pool.provider_account_id,
        "policy": exact(pool.policy or {}),
    }
    if pool.owner_quota is not None:
        body["owner_quota"] = limits_said(pool.owner_quota)
    return Step("create", "pool", tenant, pool.name, site=pool.site, body=body, path=path)


def _changed(pool: Pool, tenant: str, known: PoolThere, path: Path) -> Iterator[Step]:
    body: dict[str, Any] = {}
    changes: list[Change] = []
    if pool.gpu_model != known.view.gpu_model:
        body["gpu_model"] = pool.gpu_model
        changes.append(Change("gpu_model", known.view.gpu_model, pool.gpu_model))
    if pool.policy is not None and not same(pool.policy, known.view.policy):
        body["policy"] = exact(pool.policy)
        changes += _differences("policy", exact(known.view.policy), body["policy"])
    if body:
        yield Step(
            "update",
            "pool",
            tenant,
            pool.name,
            id=known.view.id,
            version=known.view.version,
            body=body,
            changes=tuple(changes),
            path=path,
        )


def _differences(path: str, before: Any, after: Any) -> Iterator[Change]:
    """Give the smallest fields that differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield Change(path, before, after)
        return
    one, other = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
    for name in sorted({*one, *other}):
        if not (name in one and name in other and same(one[name], other[name])):
            yield from _differences(f"{path}.{name}", one.get(name), other.get(name))


def _limited(pool: Pool, tenant: str, known: PoolThere, path: Path) -> Iterator[Step]:
    if pool.owner_quota is None:
        return
    is_now = granted_by(known.view.quotas)
    for resource, limit in limits_to_set(limits_said(pool.owner_quota), is_now).items():
        yield Step(
            "update",
            "quota",
            tenant,
            pool.name,
            to=resource,
            id=known.view.id,
            body={"resource": resource, "max": limit},
            changes=(Change(resource, _shown(is_now, resource), limit),),
            path=(*path, "owner_quota"),
        )


def _offered(pool: Pool, tenant: str, known: PoolThere | None, path: Path) -> Iterator[Step]:
    for other, offer in (pool.offers or {}).items():
        before = None if known is None else known.offers.get(other)
        body = {"priority": offer.priority, "include_descendants": offer.include_descendants}
        pool_id = None if known is None else known.view.id
        where = (*path, "offers", other)
        if before is None:
            # An earlier offer may have left limits behind; equivalents begin without one anyway.
            remains = dict({} if known is None else known.remains.get(other, {}))
            remains.pop(EQUIVALENTS, None)
            wanted = limits_said(offer.quota)
            quota = {**dict.fromkeys(remains, 0), **wanted}
            yield Step(
                "create",
                "offer",
                tenant,
                pool.name,
                to=other,
                id=pool_id,
                body={**body, "quota": quota},
                path=where,
            )
            continue
        is_now = granted_by(before.quotas)
        quota = limits_to_set(limits_said(offer.quota), is_now)
        changes = (
            *_terms_changed(before.priority, before.include_descendants, offer),
            *(Change(f"quota.{each}", _shown(is_now, each), quota[each]) for each in quota),
        )
        if changes:
            yield Step(
                "update",
                "offer",
                tenant,
                pool.name,
                to=other,
                id=pool_id,
                body={**body, "quota": quota},
                changes=changes,
                path=where,
            )


def _terms_changed(priority: int, include_descendants: bool, offer: Offer) -> Iterator[Change]:  # noqa: FBT001 - a value, not a switch
    if priority != offer.priority:
        yield Change("priority", priority, offer.priority)
    if include_descendants != offer.include_descendants:
        yield Change("include_descendants", include_descendants, offer.include_descendants)


def _shown(limits: Limits, resource: str) -> Any:
    return limits.get(resource, "unlimited" if resource == EQUIVALENTS else 0)
