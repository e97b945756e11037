"""Decisions by Cedar: the roles' own policies and those that operators add, in one evaluation.

What no policy permits is denied, and one that forbids beats all that permit. Policies are checked
against a schema made from the table of actions, so that a misspelt attribute is refused when it is
written and cannot silently never match.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any, Final, Literal, cast

import cedarpy

from apportion.authority.actions import ACTIONS, ATTRIBUTES, GRANTS, ROLES, Action, Role
from apportion.errors import InvalidInputError

Value = str | int | bool
Uid = Mapping[str, str]
Effect = Literal["permit", "forbid"]

PARTS_MAX: Final = 200
"""The most brackets, dots and operators of one policy: deep nesting ends the engine's process."""

_TEMPLATE: Final = "a policy with slots (?principal, ?resource) is a template"
_NAMES: Final = tuple(ATTRIBUTES["reservation"])
# Strings and comments exactly as Cedar's own lexer takes them, so that nothing hides in them.
_QUIET: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n\r]*')
_PART: Final = re.compile(r"[(\[{.+\-*!]|&&|\|\||\bif\b")
_MISSING: Final = re.compile(r"attribute `(\w+)` in context for Action::\"([^\"]+)\" not found.*")
_NUMBER: Final = re.compile(r"(?<=while evaluating policy `)policy(\d+)(?=`)")
_OF_POLICY: Final = re.compile(r"^for policy `policy0`[:,] ")


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

    def __hash__(self) -> int:
        """Hash what tells questions apart most, the context by its items."""
        return hash((self.token, self.action, self.tenants, self.pool, *self.context.items()))


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
    """Decide a question by the roles' policies and the added ones.

    One that cannot be evaluated does not permit; if it forbids, it forbids: an overflow in its
    condition must not open what it closes. The answer depends on what is given and on nothing else,
    so one that is asked again is remembered.
    """
    return _decide(question, tuple(added))


@lru_cache(maxsize=1024)
def _decide(question: Question, added: tuple[Policy, ...]) -> Ruling:
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
    made_by = {int(name.removeprefix("policy")) for name in result.diagnostics.reasons}
    errors = [str(error) for error in result.diagnostics.errors]
    failed = {int(number) for error in errors for number in _NUMBER.findall(error)}
    closed = {number for number in failed if effect_of(policies[number].text) == "forbid"}
    allowed = result.allowed and not closed
    return Ruling(
        allowed,
        tuple(policies[each] for each in sorted(made_by if allowed == result.allowed else closed)),
        tuple(_NUMBER.sub(lambda found: policies[int(found[1])].name, each) for each in errors),
    )


def check_policy(text: str, *, field: str) -> None:
    """Refuse with InvalidInputError what is not one valid policy on the known actions."""
    if len(_PART.findall(_QUIET.sub(" ", text))) > PARTS_MAX:
        raise _invalid(text, field, f"has more than {PARTS_MAX} brackets, dots and operators")
    try:
        parsed = json.loads(cedarpy.policies_to_json_str(text))
    except (ValueError, RecursionError) as error:
        raise _invalid(text, field, f"is no Cedar policy: {error}") from None
    if parsed.get("templates"):
        raise _invalid(text, field, _TEMPLATE)
    count = len(parsed.get("staticPolicies", {}))
    if count != 1:
        raise _invalid(text, field, f"has {count} policies")
    # Cedar takes a guard for an attribute that no action has, and the policy would never match.
    for name in _guarded(parsed):
        if name not in _NAMES:
            raise _invalid(text, field, _no_attribute(name))
    result = cedarpy.validate_policies(  # pyright: ignore[reportUnknownMemberType] - the same
        text, schema_text()
    )
    if not result.validation_passed:
        raise _invalid(
            text, field, _told([_OF_POLICY.sub("", error.error) for error in result.errors])
        )


@lru_cache(maxsize=1024)
def effect_of(text: str) -> Effect:
    """Tell whether the one policy of a text permits or forbids."""
    [parsed] = json.loads(cedarpy.policies_to_json_str(text))["staticPolicies"].values()
    return parsed["effect"]


def _guarded(node: object) -> Iterator[str]:
    """Give each attribute that a parsed policy tests with ``has``."""
    if isinstance(node, dict):
        found = cast("dict[str, Any]", node)
        if "has" in found:
            yield str(found["has"]["attr"])
        for each in found.values():
            yield from _guarded(each)
    elif isinstance(node, list):
        for each in cast("list[object]", node):
            yield from _guarded(each)


def _told(errors: Sequence[str]) -> str:
    """Put the engine's refusals in few words: it repeats one slip for every action."""
    without: dict[str, list[str]] = {}
    others: set[str] = set()
    for error in errors:
        if match := _MISSING.fullmatch(error):
            without.setdefault(match[1], []).append(match[2])
        else:
            others.add(error)
    told = [
        f"not every action that it is about has {name}: {min(actions)} has not"
        if name in _NAMES
        else _no_attribute(name)
        for name, actions in sorted(without.items())
    ]
    return "; ".join([*told, *sorted(others)])


def _no_attribute(name: str) -> str:
    near = get_close_matches(name, _NAMES, n=1)
    return f"there is no attribute {name}" + (f"; did you mean {near[0]}?" if near else "")


@cache
def schema_text() -> str:
    """Return the Cedar schema of all actions, as it is shown in the reference."""
    lines = [
        "entity Tenant in [Tenant];",
        f"entity Role enum {json.dumps(ROLES)};",
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


def _invalid(text: str, field: str, told: str) -> InvalidInputError:
    return InvalidInputError(
        told,
        field=field,
        given=text,
        allowed="one Cedar policy on the documented actions and attributes",
        hint="Name the action, or guard what not every action has: `context has gpuCount && …`",
    )


@cache
def _schema() -> cedarpy.Schema:
    return cedarpy.Schema.from_str(schema_text())


@lru_cache(maxsize=256)
def _parsed(texts: tuple[str, ...]) -> cedarpy.PolicySet:
    return cedarpy.PolicySet.from_str("\n".join(texts))


def _entities(question: Question) -> cedarpy.Entities:
    return _known(question.token, question.role, question.home, question.tenants, question.pool)


@lru_cache(maxsize=1024)
def _known(
    token: str, role: Role, home: str, tenants: tuple[str, ...], pool: tuple[str, str] | None
) -> cedarpy.Entities:
    """Return what Cedar is to know of a token, its tenants and a pool: half the cost, so kept."""
    found = [
        _entity(_uid("Tenant", tenant), [_uid("Tenant", tenants[at - 1])] if at else [])
        for at, tenant in enumerate(tenants)
    ]
    parents = [_uid("Role", role), _uid("Tenant", home)]
    found += [_entity(_uid("Role", role), []), _entity(_uid("Token", token), parents)]
    if pool is not None:
        pool_id, owner = pool
        found.append(_entity(_uid("Pool", pool_id), [_uid("Tenant", owner)]))
    return cedarpy.Entities.from_json_str(  # pyright: ignore[reportUnknownMemberType] - the same
        json.dumps(found), _schema()
    )


def _resource(question: Question) -> Uid:
    if question.pool is None:
        return _uid("Tenant", question.tenants[-1])
    return _uid("Pool", question.pool[0])


def _entity(uid: Uid, parents: Sequence[Uid]) -> dict[str, object]:
    return {"uid": uid, "attrs": {}, "parents": list(parents)}


def _uid(kind: str, name: str) -> Uid:
    return {"type": kind, "id": name}
