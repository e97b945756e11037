"""Fleet as code, for the command line and for programs: export, plan, apply."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from apportion.errors import ApportionError, ConflictError
from apportion.fleet.applying import Applying, future_id
from apportion.fleet.exporting import export, to_yaml
from apportion.fleet.judging import judge
from apportion.fleet.planning import make_plan
from apportion.fleet.reading import FleetFile, read_fleet, refused, sections
from apportion.fleet.schemas import Owned, fleet_schema
from apportion.fleet.steps import Plan, Step, data_of
from apportion.fleet.there import Server, There, read_there

__all__ = [
    "FleetFile",
    "Plan",
    "Server",
    "apply_plan",
    "check_unchanged",
    "data_of",
    "export_fleet",
    "fleet_schema",
    "plan_fleet",
    "read_fleet",
    "refused",
    "to_yaml",
]


def export_fleet(server: Server) -> dict[str, Any]:
    """Return the fleet of the acting tenant and all below it as a file has it."""
    return export(read_there(server))


def plan_fleet(file: FleetFile, server: Server, *, prune: bool) -> tuple[Plan, There]:
    """Return what is to be done, and what it was compared with. Changes nothing.

    What cannot be done, or the server would refuse, stands in the plan, all of it.
    """
    there = read_there(server, None if prune else _owners(file, server.tenant_id))
    plan = make_plan(file, there, prune=prune)
    judge(plan, file, there, server)
    plan.steps = [_with_future_id(step, server) for step in plan.steps]
    return plan, there


def apply_plan(
    plan: Plan, there: There, server: Server, *, told: Callable[[int, Step], None]
) -> None:
    """Do a plan's steps in order; ``told`` hears of each when it is done.

    Raises InvalidInputError, before anything is done, for a plan with refusals; and what the server
    refuses a step with: what came before it stays done, and the next plan has the rest.
    """
    if plan.refusals:
        raise refused(plan.refusals)
    applying = Applying(server, there)
    for number, step in enumerate(plan.steps, 1):
        try:
            applying.do(step)
        except ApportionError as error:
            error.details["step"] = number
            raise
        told(number, step)


def check_unchanged(shown: Plan, now: Plan) -> None:
    """Refuse to do another plan than the one that a person said yes to."""
    if (shown.steps, shown.refusals) != (now.steps, now.refusals):
        raise ConflictError(
            "the server changed since the plan was shown, and nothing was done",
            hint="Look at the plan anew",
        )


def _owners(file: FleetFile, acting: str) -> set[str]:
    """Return the tenants whose things the file names."""
    objects = [each for section in sections(file.fleet).values() for each in section]
    return {each.tenant or acting for each in objects if isinstance(each, Owned)}


def _with_future_id(step: Step, server: Server) -> Step:
    if (step.kind, step.action) != ("pool", "create"):
        return step
    return replace(step, id=future_id(step, server.token_id))
