"""What the server would refuse of a plan, found out before anything is done."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from apportion.authority.service import check_policy
from apportion.errors import ApportionError, InvalidInputError
from apportion.fleet.documents import Path
from apportion.fleet.reading import FleetFile
from apportion.fleet.steps import Plan, Step
from apportion.fleet.there import Server, There
from apportion.fleet.values import sent

_FIELDS: Final[Mapping[str, str]] = {"site_id": "site"}


def judge(plan: Plan, file: FleetFile, there: There, server: Server) -> None:
    """Add to a plan what the server would refuse of it: a dry run for each pool, policies too."""
    for step in plan.steps:
        if step.kind == "pool" and step.action != "delete":
            found = [*_pool_problems(step, plan, there, server)]
        elif step.kind == "policy" and "text" in step.body:
            found = [*_policy_problems(step)]
        else:
            continue
        plan.refusals += [file.refusal((*step.path, *where), error) for where, error in found]


def _pool_problems(
    step: Step, plan: Plan, there: There, server: Server
) -> Iterator[tuple[Path, ApportionError]]:
    try:
        body = sent(step.body)
    except InvalidInputError as error:
        yield error.details.get("path", ()), error  # pyright: ignore[reportReturnType] - ours
        return
    changing = {
        "pool_id": step.id,
        "update": {**body, "version": step.version},
    }
    site = there.sites.get((step.tenant, step.site or ""))
    creating = {"create": {**body, "site_id": None if site is None else site.id}}
    # A tenant that is not there yet cannot be asked; its pool's own fields are judged all the same.
    is_there = step.tenant in there.tenants
    client = server.acting(step.tenant if is_there else there.acting)
    answer = client.validate_pool(changing if step.action == "update" else creating)
    ignored = _ignored(step, plan, knows_site=site is not None, knows_tenant=is_there)
    for problem in answer.problems:
        if problem.field not in ignored:
            error = InvalidInputError(
                problem.detail.removeprefix(f"{problem.field}: "),
                given=problem.given,
                allowed=problem.allowed,
                hint=problem.hint,
            )
            yield _path(problem.field), error


def _ignored(step: Step, plan: Plan, *, knows_site: bool, knows_tenant: bool) -> set[str | None]:
    """Return the fields that are judged wrongly before earlier steps are done."""
    if step.action == "create":
        return {*(() if knows_site else ("site_id",)), *(() if knows_tenant else ("name",))}
    takes_back = any(
        each.kind == "offer" and each.action == "delete" and each.id == step.id
        for each in plan.steps
    )
    return {"policy.singleTenant"} if takes_back else set()


def _policy_problems(step: Step) -> Iterator[tuple[Path, ApportionError]]:
    try:
        check_policy(step.body["text"], field="text")
    except InvalidInputError as error:
        yield ("text",), error


def _path(field: str | None) -> Path:
    """Return the path of a field as the API names it: ``policy.acceptance[0].kind``."""
    steps: list[Any] = []
    for part in (field or "").replace("[", ".[").split("."):
        index = part.removeprefix("[").removesuffix("]")
        steps.append(int(index) if part != index and index.isdigit() else _FIELDS.get(part, part))
    return tuple(steps) if field else ()
