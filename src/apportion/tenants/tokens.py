"""Tokens of a tenant: made, shown without their secret, given another one, revoked.

Nobody gives away more than they have: a token's role, its action scope and its end are bounded by
those of the token that makes it, or that gives it a new secret to read.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from apportion.authority.actions import ACTIONS, GRANTS, ROLES, Role, covers
from apportion.authority.service import (
    Caller,
    hash_token,
    hold_tenant,
    issue_token,
    key_id,
    new_secret,
)
from apportion.errors import ForbiddenError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.events.service import Event, append
from apportion.quantities.ids import derive_id
from apportion.quantities.windows import LONGEST, format_duration, format_instant, parse_duration
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load
from apportion.tenants.schemas import TokenCreate, TokenIssued, TokenRotate, TokenView

_QUERIES: Final = load("apportion.tenants")

OVERLAP_MAX: Final = timedelta(days=30)
"""How long two secrets of one token may both work."""


async def create_token(runtime: Runtime, caller: Caller, request: TokenCreate) -> TokenIssued:
    """Create a token of the caller's tenant and return it with its secret, this once.

    Raises ForbiddenError for more than the caller has, ConflictError for a key that was used: what
    it made cannot be shown again.
    """
    now = runtime.now()
    _check_known(request.actions)
    expires_at = _end_of(request, now)
    if expires_at is None and caller.authority is not None:
        expires_at = caller.authority.expires_at
    _check_reach(caller, request.role, request.actions, expires_at)
    key = request.idempotency_key
    async with transaction(runtime.db) as connection:
        await hold_tenant(connection, caller.tenant_id)
        issued = await issue_token(
            runtime,
            connection,
            tenant_id=caller.tenant_id,
            name=request.name,
            role=request.role,
            actions=list(dict.fromkeys(request.actions)),
            expires_at=expires_at,
            created_by=caller.actor,
            token_id=key and derive_id("tok", caller.tenant_id, caller.actor, key),
        )
        view = await _find(connection, "find_token", caller, issued.id, now)
        data = {"name": view.name, "role": view.role, "actions": view.actions}
        after = view.model_dump(mode="json")
        event = Event("token.created", caller.tenant_id, view.id, data, before=None, after=after)
        await append(connection, caller, now, [event])
    return TokenIssued(token=issued.token, record=view)


async def list_tokens(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    state: str | None = None,
    role: str | None = None,
) -> list[TokenView]:
    """Return the tokens of the caller's tenant by id."""
    parameters = {
        "tenant_id": caller.tenant_id,
        "after": after,
        "limit": limit,
        "state": state,
        "role": role,
        "now": runtime.now(),
    }
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(_QUERIES["list_tokens"], parameters)
        return [_view(row, runtime.now()) for row in await cursor.fetchall()]


async def get_token(runtime: Runtime, caller: Caller, token_id: str) -> TokenView:
    """Return one token of the caller's tenant; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return await _find(connection, "find_token", caller, token_id, runtime.now())


async def rotate_token(
    runtime: Runtime, caller: Caller, token_id: str, request: TokenRotate
) -> TokenIssued:
    """Give a token another secret; the one before goes on working for the overlap, if there is one.

    Raises InvalidStateError for a token that works no more, ForbiddenError for one that may do more
    than the caller: whoever reads its secret is it.
    """
    now = runtime.now()
    until = None if request.overlap is None else now + _overlap(request.overlap)
    async with transaction(runtime.db) as connection:
        before = await _find(connection, "lock_token", caller, token_id, now)
        if before.state != "active":
            raise InvalidStateError(
                f"the token is {before.state}", field="token_id", given=token_id
            )
        _check_reach(caller, before.role, before.actions, before.expires_at)
        secret = new_secret(runtime)
        cursor = await connection.execute(
            _QUERIES["rotate_token"],
            {
                "id": token_id,
                "hash": hash_token(runtime.key, secret),
                "key_id": key_id(runtime.key),
                "until": until,
            },
        )
        view = _view(await cursor.fetchone(), now)
        event = Event(
            "token.rotated",
            caller.tenant_id,
            token_id,
            {"previous_until": None if until is None else format_instant(until)},
            before=before.model_dump(mode="json"),
            after=view.model_dump(mode="json"),
        )
        await append(connection, caller, now, [event])
    return TokenIssued(token=secret, record=view)


async def revoke_token(runtime: Runtime, caller: Caller, token_id: str) -> TokenView:
    """End a token from now on, the caller's own too; one that is revoked stays as it is."""
    now = runtime.now()
    async with transaction(runtime.db) as connection:
        before = await _find(connection, "lock_token", caller, token_id, now)
        if before.revoked_at is not None:
            return before
        parameters = {"id": token_id, "now": now}
        cursor = await connection.execute(_QUERIES["revoke_token"], parameters)
        view = _view(await cursor.fetchone(), now)
        await append(connection, caller, now, [_revoked(before, view, "revoked")])
    return view


async def revoke_all(
    connection: Connection, caller: Caller, tenant_id: str, now: datetime
) -> Mapping[str, Sequence[str] | int]:
    """Revoke all tokens of a tenant that is deleted."""
    parameters = {"tenant_id": tenant_id, "now": now}
    cursor = await connection.execute(_QUERIES["revoke_tokens"], parameters)
    after = [_view(row, now) for row in await cursor.fetchall()]
    events = [
        _revoked(_view({**view.model_dump(), "revoked_at": None}, now), view, "tenant deleted")
        for view in after
    ]
    await append(connection, caller, now, events)
    return {"revoked_tokens": len(after)}


def _revoked(before: TokenView, after: TokenView, reason: str) -> Event:
    return Event(
        "token.revoked",
        after.tenant_id,
        after.id,
        {"name": after.name, "reason": reason},
        before=before.model_dump(mode="json"),
        after=after.model_dump(mode="json"),
    )


async def _find(
    connection: Connection, query: str, caller: Caller, token_id: str, now: datetime
) -> TokenView:
    parameters = {"tenant_id": caller.tenant_id, "id": token_id}
    cursor = await connection.execute(_QUERIES[query], parameters)
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError("no such token", field="token_id", given=token_id)
    return _view(row, now)


def _view(row: Mapping[str, Any] | None, now: datetime) -> TokenView:
    """Show a row without its hashes."""
    row = row or {}
    if row.get("revoked_at") is not None:
        state = "revoked"
    elif row.get("expires_at") is not None and row["expires_at"] <= now:
        state = "expired"
    else:
        state = "active"
    return TokenView.model_validate({**row, "state": state})


def _end_of(request: TokenCreate, now: datetime) -> datetime | None:
    if request.expires_in is not None:
        if request.expires_at is not None:
            raise InvalidInputError(
                "is given beside expires_at",
                field="expires_in",
                given=request.expires_in,
                allowed="one of the two",
            )
        return now + parse_duration(request.expires_in, field="expires_in")
    if request.expires_at is not None and not now < request.expires_at <= now + LONGEST:
        raise InvalidInputError(
            "is out of range",
            field="expires_at",
            given=request.expires_at.isoformat(),
            allowed=f"after now ({format_instant(now)}), within ten years",
        )
    return request.expires_at


def _overlap(text: str) -> timedelta:
    overlap = parse_duration(text, field="overlap")
    if overlap > OVERLAP_MAX:
        raise InvalidInputError(
            "is too long for two secrets that both work",
            field="overlap",
            given=text,
            allowed=f"up to {format_duration(OVERLAP_MAX)}",
        )
    return overlap


def _check_known(actions: Sequence[str]) -> None:
    """Refuse what covers no action at all: the token would do less than was meant, in silence."""
    for at, pattern in enumerate(actions):
        if not any(covers(pattern, action) for action in ACTIONS):
            raise InvalidInputError(
                "covers no action",
                field=f"actions[{at}]",
                given=pattern,
                allowed=f"{', '.join(ACTIONS)}, a family such as compute:pools:*, or *",
            )


def _check_reach(
    caller: Caller, role: Role, actions: Sequence[str], expires_at: datetime | None
) -> None:
    own = caller.authority
    if own is None:
        return
    if not set(GRANTS[role]) <= set(GRANTS[own.role]):
        roles = [each for each in ROLES if set(GRANTS[each]) <= set(GRANTS[own.role])]
        raise _too_much("role", role, ", ".join(roles))
    for at, pattern in enumerate(actions):
        if not any(covers(each, pattern) for each in own.actions):
            raise _too_much(f"actions[{at}]", pattern, ", ".join(own.actions))
    if own.expires_at is not None and (expires_at is None or expires_at > own.expires_at):
        given = None if expires_at is None else format_instant(expires_at)
        raise _too_much("expires_at", given, f"up to {format_instant(own.expires_at)}")


def _too_much(field: str, given: str | None, allowed: str) -> ForbiddenError:
    return ForbiddenError(
        "is more than the token has that asks for it", field=field, given=given, allowed=allowed
    )
