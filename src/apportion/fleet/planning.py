"""The difference between a fleet file and a server: what to do, in order, and what cannot be.

Tenants come first, parents before those below them, then sites, pools, limits and offers, and
access policies last: one that forbids changes must not forbid those that the file asks for. Offers
are taken back before pools change, because a singleTenant pool has room for one; all other removals
come at the end.
"""

from collections.abc import Iterator
from typing import Any, Final

from apportion.errors import ApportionError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.fleet.planning_pools import plan_pools
from apportion.fleet.reading import FleetFile, sections
from apportion.fleet.removing import plan_removals
from apportion.fleet.schemas import Owned, Site, Tenant
from apportion.fleet.steps import Change, Plan, Step
from apportion.fleet.there import There
from apportion.fleet.tree import Tree

DEPTH_MAX: Final = 10
ROOT: Final = "root"


def make_plan(file: FleetFile, there: There, *, prune: bool) -> Plan:
    """Return what turns what is there into what the file says.

    With ``prune``, what is there and not in the file is removed, of the sections that it has.
    """
    plan = Plan()
    tree = Tree(file.fleet, there)
    _plan_tenants(plan, file, there, tree)
    _check_owners(plan, file, tree)
    _plan_sites(plan, file, there, tree)
    removals = plan_removals(file, there, tree, plan) if prune else []
    plan.steps += [step for step in removals if step.kind == "offer"]
    plan_pools(plan, file, there, tree, prune=prune)
    _plan_policies(plan, file, there)
    plan.steps += [step for step in removals if step.kind != "offer"]
    return plan


def _plan_tenants(plan: Plan, file: FleetFile, there: There, tree: Tree) -> None:
    made: list[tuple[int, Step]] = []
    renamed: list[Step] = []
    for at, tenant in enumerate(file.fleet.tenants or []):
        path = ("tenants", at)
        found = [*_tenant_refusals(tenant, there, tree)]
        plan.refusals += [file.refusal((*path, field), error) for field, error in found]
        if found:
            continue
        view = there.tenants.get(tenant.id)
        if view is None:
            parent = tenant.parent or there.acting
            body = {"id": tenant.id, "name": tenant.name, "parent_id": parent}
            step = Step("create", "tenant", there.acting, tenant.id, body=body, path=path)
            made.append((tree.depth(tenant.id), step))
        elif view.name != tenant.name:
            renamed.append(
                Step(
                    "update",
                    "tenant",
                    there.acting,
                    tenant.id,
                    id=tenant.id,
                    body={"name": tenant.name},
                    changes=(Change("name", view.name, tenant.name),),
                    path=path,
                )
            )
    made.sort(key=lambda each: (each[0], each[1].name))
    plan.steps += [*(step for _, step in made), *renamed]


def _tenant_refusals(
    tenant: Tenant, there: There, tree: Tree
) -> Iterator[tuple[str, ApportionError]]:
    parent = tenant.parent or there.acting
    view = there.tenants.get(tenant.id)
    if tenant.id in (there.acting, ROOT):
        yield (
            "id",
            InvalidInputError(
                "is there before any file" if tenant.id == ROOT else "is the tenant that acts",
                given=tenant.id,
                hint="Leave it out: a file names the tenants below the one that applies it",
            ),
        )
    elif tenant.id in there.deleted:
        words = "is deleted, and ids of deleted tenants stay taken"
        yield "id", InvalidStateError(words, given=tenant.id, hint="Choose another id")
    elif view is not None and view.parent_id != parent:
        yield (
            "parent",
            InvalidStateError(
                "never changes",
                given=parent,
                allowed=view.parent_id,
                hint="Create another tenant there",
            ),
        )
    elif view is None and not tree.has(parent):
        words = "no such tenant below the one that acts, nor in the file"
        yield "parent", NotFoundError(words, given=parent)
    elif view is None and tree.depth(tenant.id) > DEPTH_MAX:
        words = "is too deep in the tree, or above itself"
        yield "parent", InvalidInputError(words, given=parent, allowed=f"{DEPTH_MAX} levels")


def _check_owners(plan: Plan, file: FleetFile, tree: Tree) -> None:
    for kind, objects in sections(file.fleet).items():
        for at, each in enumerate(objects):
            if isinstance(each, Owned) and each.tenant and not tree.has(each.tenant):
                words = "no such tenant below the one that acts, nor in the file"
                error = NotFoundError(words, given=each.tenant)
                plan.refusals.append(file.refusal((kind, at, "tenant"), error))


def _plan_sites(plan: Plan, file: FleetFile, there: There, tree: Tree) -> None:
    for at, site in enumerate(file.fleet.sites or []):
        tenant = site.tenant or there.acting
        path = ("sites", at)
        view = there.sites.get((tenant, site.name))
        if not tree.has(tenant):
            continue
        if view is None:
            if error := _kind_refusal(tenant, site):
                plan.refusals.append(file.refusal((*path, "kind"), error))
            body = {"name": site.name, "region": site.region, "kind": site.kind}
            plan.steps.append(Step("create", "site", tenant, site.name, body=body, path=path))
            continue
        if site.kind is not None and site.kind != view.kind:
            error = InvalidStateError("never changes", given=site.kind, allowed=view.kind)
            plan.refusals.append(file.refusal((*path, "kind"), error))
        if site.region != view.region:
            plan.steps.append(
                Step(
                    "update",
                    "site",
                    tenant,
                    site.name,
                    id=view.id,
                    body={"region": site.region},
                    changes=(Change("region", view.region, site.region),),
                    path=path,
                )
            )


def _kind_refusal(tenant: str, site: Site) -> ApportionError | None:
    kinds = ("shared", "dedicated") if tenant == ROOT else ("custom",)
    if site.kind is None or site.kind in kinds:
        return None
    words = f"is no kind that sites of {tenant} have"
    return InvalidInputError(words, given=site.kind, allowed=" or ".join(kinds))


def _plan_policies(plan: Plan, file: FleetFile, there: There) -> None:
    for at, policy in enumerate(file.fleet.policies or []):
        tenant = policy.tenant or there.acting
        view = there.policies.get((tenant, policy.name))
        said: dict[str, Any] = {"text": policy.text}
        if policy.description is not None:
            said["description"] = policy.description
        if view is None:
            body = {"name": policy.name, **said}
            plan.steps.append(
                Step("create", "policy", tenant, policy.name, body=body, path=("policies", at))
            )
            continue
        changes = tuple(
            Change(field, getattr(view, field), value)
            for field, value in said.items()
            if getattr(view, field) != value
        )
        if changes:
            plan.steps.append(
                Step(
                    "update",
                    "policy",
                    tenant,
                    policy.name,
                    id=view.id,
                    version=view.version,
                    body={each.field: each.after for each in changes},
                    changes=changes,
                    path=("policies", at),
                )
            )
