"""Policies that operators add to a tenant, and how a decision is explained.

They hold for the tenant and all below it, from the next request on: each request reads them when it
is authenticated.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apportion.authority.actions import ACTIONS, GRANTS, ROLES
from apportion.authority.service import BUILT_IN, Caller, check_policy, effect_of, no_tenant
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.events.service import Event, append
from apportion.quantities.ids import derive_id
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load
from apportion.tenants.schemas import Deleted, PolicyCreate, PolicyUpdate, PolicyView, RoleView

_QUERIES: Final = load("apportion.tenants")

POLICIES_MAX: Final = 100
"""The most policies of one tenant: all of them are evaluated at each request."""

register(
    {
        "access_policies_name_key": lambda violation: ConflictError(
            "this tenant has a policy of that name", field="name", details={"key": violation.detail}
        ),
        **guards("access_policies_text_length"),
    }
)


async def create_policy(runtime: Runtime, caller: Caller, request: PolicyCreate) -> PolicyView:
    """Add a policy to the caller's tenant, or return the one that the same key added.

    Raises InvalidInputError for a text that is not one valid policy, ConflictError for a name that
    is taken or a key that added another one, InvalidStateError for one too many.
    """
    check_policy(request.text, field="text")
    key = request.idempotency_key
    policy_id = runtime.new_id("pol")
    if key is not None:
        policy_id = derive_id("pol", caller.tenant_id, caller.actor, key)
    row = {
        "id": policy_id,
        "tenant_id": caller.tenant_id,
        "name": request.name,
        "description": request.description,
        "text": request.text,
        "now": runtime.now(),
    }
    async with transaction(runtime.db) as connection:
        await _queue(connection, caller, policy_id)
        cursor = await connection.execute(_QUERIES["insert_policy"], row)
        inserted = await cursor.fetchone()
        if inserted is None:
            return _same(await _find(connection, "find_policy", caller, policy_id), request)
        view = _view(inserted)
        after = view.model_dump(mode="json")
        data = {"name": view.name, "effect": view.effect, "version": view.version}
        event = Event("policy.created", caller.tenant_id, view.id, data, before=None, after=after)
        await append(connection, caller, runtime.now(), [event])
    return view


async def list_policies(
    runtime: Runtime, caller: Caller, *, after: str = "", limit: int = 100
) -> list[PolicyView]:
    """Return the policies of the caller's tenant by id, not those that it inherits."""
    parameters = {"tenant_id": caller.tenant_id, "after": after, "limit": limit}
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(_QUERIES["list_policies"], parameters)
        return [_view(row) for row in await cursor.fetchall()]


async def get_policy(runtime: Runtime, caller: Caller, policy_id: str) -> PolicyView:
    """Return one policy of the caller's tenant; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return await _find(connection, "find_policy", caller, policy_id)


async def update_policy(
    runtime: Runtime, caller: Caller, policy_id: str, request: PolicyUpdate
) -> PolicyView:
    """Replace a policy's text, description or both.

    Raises ConflictError where somebody changed it since ``version`` was read.
    """
    if request.text is None and request.description is None:
        raise InvalidInputError("is missing", field="text", allowed="text, description or both")
    if request.text is not None:
        check_policy(request.text, field="text")
    async with transaction(runtime.db) as connection:
        before = await _find(connection, "lock_policy", caller, policy_id)
        if before.version != request.version:
            raise ConflictError(
                "the policy was changed since it was read",
                field="version",
                given=request.version,
                allowed=str(before.version),
                hint="Read it again and decide anew",
                details={"given": request.version, "current": before.version},
            )
        parameters = {
            "id": policy_id,
            "text": before.text if request.text is None else request.text,
            "description": before.description
            if request.description is None
            else request.description,
            "now": runtime.now(),
        }
        cursor = await connection.execute(_QUERIES["update_policy"], parameters)
        view = _view(await cursor.fetchone())
        event = Event(
            "policy.updated",
            caller.tenant_id,
            policy_id,
            {"name": view.name, "effect": view.effect, "version": view.version},
            before=before.model_dump(mode="json"),
            after=view.model_dump(mode="json"),
        )
        await append(connection, caller, runtime.now(), [event])
    return view


async def delete_policy(runtime: Runtime, caller: Caller, policy_id: str) -> Deleted:
    """Remove a policy of the caller's tenant, where there is one."""
    async with transaction(runtime.db) as connection:
        try:
            before = await _find(connection, "lock_policy", caller, policy_id)
        except NotFoundError:
            return Deleted(removed=False)
        await connection.execute(_QUERIES["delete_policy"], {"id": policy_id})
        await append(connection, caller, runtime.now(), [_removed(before, "deleted")])
    return Deleted(removed=True)


async def delete_all(
    connection: Connection, caller: Caller, tenant_id: str, now: datetime
) -> Mapping[str, Sequence[str] | int]:
    """Remove all policies of a tenant that is deleted."""
    cursor = await connection.execute(_QUERIES["delete_policies"], {"tenant_id": tenant_id})
    removed = [_view(row) for row in await cursor.fetchall()]
    await append(connection, caller, now, [_removed(each, "tenant deleted") for each in removed])
    return {}


def list_roles() -> list[RoleView]:
    """Return the built-in roles by name."""
    texts = {policy.id: policy.text for policy in BUILT_IN}
    return [
        RoleView(
            role=role,
            actions=sorted(name for name, each in ACTIONS.items() if each.group in GRANTS[role]),
            text=texts[role],
        )
        for role in sorted(ROLES)
    ]


async def _queue(connection: Connection, caller: Caller, policy_id: str) -> None:
    """Wait for others who add to this tenant, and refuse one policy too many."""
    parameters = {"tenant_id": caller.tenant_id, "id": policy_id}
    cursor = await connection.execute(_QUERIES["queue_for_policies"], parameters)
    if await cursor.fetchone() is None:
        raise no_tenant(caller.tenant_id)
    cursor = await connection.execute(_QUERIES["count_policies"], parameters)
    row = await cursor.fetchone()
    if row is not None and row["count"] >= POLICIES_MAX:
        raise InvalidStateError(
            f"the tenant has {row['count']} other policies",
            allowed=f"up to {POLICIES_MAX}",
            hint='One policy can name several actions: `action in [Action::"…", …]`',
        )


def _same(existing: PolicyView, request: PolicyCreate) -> PolicyView:
    if (existing.name, existing.text) != (request.name, request.text):
        raise ConflictError(
            "the same key added another policy",
            field="idempotency_key",
            details={"policy_id": existing.id, "name": existing.name},
        )
    return existing


def _removed(before: PolicyView, reason: str) -> Event:
    return Event(
        "policy.deleted",
        before.tenant_id,
        before.id,
        {"name": before.name, "reason": reason},
        before=before.model_dump(mode="json"),
        after=None,
    )


async def _find(connection: Connection, query: str, caller: Caller, policy_id: str) -> PolicyView:
    parameters = {"tenant_id": caller.tenant_id, "id": policy_id}
    cursor = await connection.execute(_QUERIES[query], parameters)
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError("no such policy", field="policy_id", given=policy_id)
    return _view(row)


def _view(row: Mapping[str, Any] | None) -> PolicyView:
    row = row or {}
    return PolicyView.model_validate({**row, "effect": effect_of(row["text"])})
