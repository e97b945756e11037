"""Decisions by Cedar: the roles' own policies and those that operators add, in one evaluation.

What no policy permits is denied, and one that forbids beats all that permit. Policies are checked
against a schema made from the table of actions, so that a misspelt attribute is refused when it is
written and cannot silently never match.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import cedarpy

from apportion.authority.actions import ACTIONS, ATTRIBUTES, GRANTS, Action, Role
from apportion.errors import InvalidInputError

Value = str | int | bool
Uid = Mapping[str, str]

_TEMPLATE: Final = "a policy with slots (?principal, ?resource) is a template"


@dataclass(frozen=True, slots=True)
class Policy:
    """One Cedar policy: a role's own (``tenant_id`` None, the role as id), or an added one."""

    id: str
    tenant_id: str | None
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision: the policies that made it (none: nothing permits), and what failed on the way."""

    allowed: bool
    policies: tuple[Policy, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be decided: may a token do this in a tenant, or to a pool.

    ``tenants`` is the way from root to the tenant that is acted for; ``home``, its own, lies on
    it. ``pool`` is the pool's id and its owner; ``context`` has what the action's kind says.
    """

    token: str
    role: Role
    home: str
    action: str
    tenants: tuple[str, ...]
    pool: tuple[str, str] | None
    context: Mapping[str, Value]


def _role_policy(role: Role) -> Policy:
    groups = ", ".join(f'Action::"{group}"' for group in GRANTS[role])
    return Policy(
        role,
        None,
        f"role {role}",
        f'permit(principal in Role::"{role}", action in [{groups}], resource);',
    )


BUILT_IN: Final = tuple(_role_policy(role) for role in GRANTS)
"""The roles as policies."""


def decide(question: Question, added: Sequence[Policy]) -> Ruling:
    """Decide a question by the roles' policies and the added ones."""
    policies = (*BUILT_IN, *added)
    result = cedarpy.is_authorized(  # pyright: ignore[reportUnknownMemberType] - bare dicts there
        {
            "principal": _uid("Token", question.token),
            "action": _uid("Action", question.action),
            "resource": _resource(question),
            "context": dict(question.context),
        },
        _parsed(tuple(policy.text for policy in policies)),
        _entities(question),
        _schema(),
    )
    # Policies are numbered in the order in which they are given.
    reasons = sorted(int(name.removeprefix("policy")) for name in result.diagnostics.reasons)
    return Ruling(
        result.allowed,
        tuple(policies[number] for number in reasons),
        tuple(str(error) for error in result.diagnostics.errors),
    )


def check_policy(text: str, *, field: str) -> None:
    """Refuse with InvalidInputError what is not one valid policy on the known actions."""
    try:
        parsed = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        raise _invalid(text, field, f"is no Cedar policy: {error}") from None
    if parsed.get("templates"):
        raise _invalid(text, field, _TEMPLATE)
    count = len(parsed.get("staticPolicies", {}))
    if count != 1:
        raise _invalid(text, field, f"has {count} policies")
    result = cedarpy.validate_policies(  # pyright: ignore[reportUnknownMemberType] - the same
        text, schema_text()
    )
    if not result.validation_passed:
        told = "; ".join(_plain(error.error) for error in result.errors)
        raise _invalid(text, field, told)


def is_permit(policy: Policy) -> bool:
    """Tell whether a policy permits; the other kind forbids."""
    [parsed] = json.loads(cedarpy.policies_to_json_str(policy.text))["staticPolicies"].values()
    return parsed["effect"] == "permit"


@cache
def schema_text() -> str:
    """Return the Cedar schema of all actions, as it is shown in the reference."""
    lines = [
        "entity Tenant in [Tenant];",
        "entity Role;",
        "entity Token in [Role, Tenant];",
        "entity Pool in [Tenant];",
        *(f'action "{group}";' for group in GRANTS["owner"]),
        *(_action_line(name, action) for name, action in ACTIONS.items()),
    ]
    return "\n".join(lines) + "\n"


def _action_line(name: str, action: Action) -> str:
    resource = "Tenant" if action.kind in ("tenant", "new_pool") else "Pool"
    context = ", ".join(f"{key}: {kind}" for key, kind in ATTRIBUTES[action.kind].items())
    return (
        f'action "{name}" in [Action::"{action.group}"] appliesTo '
        f"{{ principal: Token, resource: {resource}, context: {{{context}}} }};"
    )


def _plain(error: str) -> str:
    """Drop the engine's own number of the policy: there is one."""
    return error.removeprefix("for policy `policy0`, ")


def _invalid(text: str, field: str, told: str) -> InvalidInputError:
    return InvalidInputError(
        told,
        field=field,
        given=text,
        allowed="one Cedar policy on the documented actions and attributes",
        hint="Guard an attribute that not every action has: `context has gpuCount && …`",
    )


@cache
def _schema() -> cedarpy.Schema:
    return cedarpy.Schema.from_str(schema_text())


@lru_cache(maxsize=256)
def _parsed(texts: tuple[str, ...]) -> cedarpy.PolicySet:
    return cedarpy.PolicySet.from_str("\n".join(texts))


def _entities(question: Question) -> list[dict[str, object]]:
    tenants = question.tenants
    found = [
        _entity(_uid("Tenant", tenant), [_uid("Tenant", tenants[at - 1])] if at else [])
        for at, tenant in enumerate(tenants)
    ]
    role = _uid("Role", question.role)
    found.append(_entity(role, []))
    found.append(_entity(_uid("Token", question.token), [role, _uid("Tenant", question.home)]))
    if question.pool is not None:
        pool_id, owner = question.pool
        found.append(_entity(_uid("Pool", pool_id), [_uid("Tenant", owner)]))
    return found


def _resource(question: Question) -> Uid:
    if question.pool is None:
        return _uid("Tenant", question.tenants[-1])
    return _uid("Pool", question.pool[0])


def _entity(uid: Uid, parents: Sequence[Uid]) -> dict[str, object]:
    return {"uid": uid, "attrs": {}, "parents": list(parents)}


def _uid(kind: str, name: str) -> Uid:
    return {"type": kind, "id": name}
