"""A plan: steps of one API call each, in the order in which they can be done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from apportion.fleet.documents import Path
from apportion.fleet.reading import Refusal

Kind = Literal["tenant", "site", "pool", "quota", "offer", "policy"]
Action = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """A field that becomes another; None is one that is not there."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, by the tenant whose it is.

    ``name`` is the object's (a tenant's id), of a quota and an offer the pool's; ``to`` is whom the
    pool is offered to, or whose resource the quota is of. ``id`` and ``version`` are as they were
    read; ``path`` is where the file asks for it.
    """

    action: Action
    kind: Kind
    tenant: str
    name: str
    to: str | None = None
    id: str | None = None
    version: int | None = None
    site: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: tuple[Change, ...] = ()
    also: tuple[str, ...] = ()
    """What it does besides, for a person to know before."""
    path: Path = ()


@dataclass(slots=True)
class Plan:
    """What is to be done, what of it cannot be, and what is left as it is, each with the reason."""

    steps: list[Step] = field(default_factory=list[Step])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    left: list[str] = field(default_factory=list[str])


def data_of(plan: Plan) -> dict[str, Any]:
    """Return a plan for programs."""
    return {
        "steps": [_step_data(step) for step in plan.steps],
        "refusals": [
            {
                "place": each.place,
                "message": each.error.message,
                "given": each.error.given,
                "allowed": each.error.allowed,
                "hint": each.error.hint,
            }
            for each in plan.refusals
        ],
        "left": plan.left,
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "action": step.action,
        "kind": step.kind,
        "tenant": step.tenant,
        "name": step.name,
        "to": step.to,
        "id": step.id,
        "changes": [
            {"field": each.field, "before": each.before, "after": each.after}
            for each in step.changes
        ],
        "also": list(step.also),
    }
