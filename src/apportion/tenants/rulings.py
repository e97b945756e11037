"""How a decision comes about: asked of the same engine that decides, told in words."""

from difflib import get_close_matches
from typing import Final

from apportion.authority.actions import ACTIONS, Action, covers
from apportion.authority.service import (
    EVERYTHING,
    ROOT,
    Authority,
    Caller,
    Policy,
    PoolFacts,
    Ruling,
    Value,
    effect_of,
    ruling,
)
from apportion.errors import InvalidInputError
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load
from apportion.tenants import tokens
from apportion.tenants.schemas import (
    AskContext,
    PolicyCheck,
    PolicyReason,
    PolicyRuling,
    PoolContext,
    TokenView,
)

_QUERIES: Final = load("apportion.tenants")


async def check(runtime: Runtime, caller: Caller, request: PolicyCheck) -> PolicyRuling:
    """Explain how what a token asks in the caller's tenant is decided, without doing it.

    Raises InvalidInputError for an unknown action and for a pool that is missing or too much,
    NotFoundError for a token that is not of the tenant.
    """
    action = _action(request.action)
    _check_given(action, request)
    if request.token_id is not None and request.role is not None:
        raise InvalidInputError(
            "is given beside token_id", field="role", given=request.role, allowed="one of the two"
        )
    token = None
    if request.token_id is not None:
        token = await tokens.get_token(runtime, caller, request.token_id)
    authority = await _authority(runtime, caller, request, token)
    facts = None if request.pool is None else _facts(caller, request.pool)
    ask: dict[str, Value] = request.ask.model_dump(by_alias=True)
    found = ruling(
        caller, authority, request.action, facts, ask if action.kind == "reservation" else {}
    )
    in_scope = any(covers(pattern, request.action) for pattern in authority.actions)
    works = token is None or token.state == "active"
    return PolicyRuling(
        allowed=found.allowed and in_scope and works,
        action=request.action,
        scope=in_scope,
        role=authority.role,
        tenant_id=caller.tenant_id,
        policies=[_reason(caller, policy) for policy in found.policies],
        errors=list(found.errors),
        message=_message(request.action, authority, found, token),
    )


def _action(name: str) -> Action:
    found = ACTIONS.get(name)
    if found is None:
        near = get_close_matches(name, ACTIONS, n=3)
        raise InvalidInputError(
            "is no action",
            field="action",
            given=name,
            allowed=", ".join(ACTIONS),
            hint=f"Did you mean {' or '.join(near)}?" if near else None,
        )
    return found


def _check_given(action: Action, request: PolicyCheck) -> None:
    if action.kind == "tenant" and request.pool is not None:
        raise InvalidInputError(
            f"{request.action} is decided on the tenant alone", field="pool", allowed="no pool"
        )
    if action.kind != "tenant" and request.pool is None:
        raise InvalidInputError(
            f"{request.action} is decided on a pool",
            field="pool",
            allowed="gpuModel, class, sharing, region and owned of a pool",
        )
    if action.kind != "reservation" and request.ask != AskContext():
        raise InvalidInputError(
            f"{request.action} asks for no GPUs", field="ask", allowed="no ask, or one of 0"
        )


async def _authority(
    runtime: Runtime, caller: Caller, request: PolicyCheck, token: TokenView | None
) -> Authority:
    """Return what is asked about: the token, one of the role, or the caller itself."""
    own = caller.authority
    if own is not None and token is None and request.role is None:
        return own
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["policies_in_effect"], {"tenants": list(caller.lineage)}
        )
        added = tuple(Policy(**row) for row in await cursor.fetchall())
    if token is not None:
        return Authority(
            token_id=token.id,
            role=token.role,
            home=token.tenant_id,
            actions=tuple(token.actions),
            expires_at=token.expires_at,
            policies=added,
        )
    return Authority(
        token_id="",
        role=request.role or "owner",
        home=caller.tenant_id,
        actions=EVERYTHING,
        expires_at=None,
        policies=added,
    )


def _facts(caller: Caller, pool: PoolContext) -> PoolFacts:
    """Take a pool that is not the tenant's own for one of the platform's."""
    return PoolFacts(
        id=pool.id or "",
        owner=caller.tenant_id if pool.owned else ROOT,
        gpu_model=pool.gpu_model,
        cls=pool.class_,
        sharing=pool.sharing,
        region=pool.region,
    )


def _reason(caller: Caller, policy: Policy) -> PolicyReason:
    return PolicyReason(
        id=policy.id,
        name=policy.name,
        tenant_id=policy.tenant_id,
        builtin=policy.tenant_id is None,
        effect=effect_of(policy.text),
        text=policy.text if _is_shown(caller, policy) else "",
    )


def _is_shown(caller: Caller, policy: Policy) -> bool:
    """Tell whether the caller sees the tenant that a policy is of: its text may name others."""
    if policy.tenant_id is None or caller.authority is None:
        return True
    above_home = caller.ancestors[: caller.ancestors.index(caller.authority.home)]
    return policy.tenant_id not in above_home


def _message(action: str, authority: Authority, found: Ruling, token: TokenView | None) -> str:
    if token is not None and token.state != "active":
        return f"the token is {token.state}: it can do nothing"
    if not any(covers(pattern, action) for pattern in authority.actions):
        return f"the token's action scope ({', '.join(authority.actions)}) does not cover {action}"
    named = ", ".join(_named(policy) for policy in found.policies)
    if found.allowed:
        return f"{action} is allowed by {named}"
    if named:
        return f"{action} is forbidden by {named}"
    return f"nothing permits {action}: the role {authority.role} does not, and no added policy does"


def _named(policy: Policy) -> str:
    if policy.tenant_id is None:
        return f"the {policy.name}"
    return f"the policy {policy.name} of {policy.tenant_id} ({policy.id})"
