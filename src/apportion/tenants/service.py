"""The tenant tree: made under a parent, renamed, deleted with all that is theirs.

A caller sees the tenant that it acts for and those below; any other does not exist for it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import ROOT, Caller, hold_tenant, no_tenant
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load
from apportion.tenants import policies, tokens
from apportion.tenants.schemas import TenantCreate, TenantDeleted, TenantUpdate, TenantView

_QUERIES: Final = load("apportion.tenants")

DEPTH_MAX: Final = 10
"""The most tenants on the way from root to one, both counted."""

Teardown = Callable[
    [Connection, Caller, str, datetime], Awaitable[Mapping[str, Sequence[str] | int]]
]
"""What a room does when a tenant is deleted, in the transaction of the deletion.

It is given who deletes, the tenant's id and the time; it returns fields of `TenantDeleted`.
"""

_TENANT: Final = 5
"""Where in the order of a deletion the tenant's own row is locked."""

_teardowns: Final[list[tuple[int, Teardown]]] = []

register(
    {
        "tenants_pkey": lambda _: _taken(),
        **guards(
            "tenants_id_form",
            "tenants_one_root",
            "tenants_ancestors_end",
            "tenants_depth",
            "tenants_root_stays",
        ),
    }
)


def on_delete(order: int, teardown: Teardown) -> None:
    """Register what a room does when a tenant is deleted; lower orders come first.

    The order is that of locks: gates (0), the tenant itself (5), reservations (10), pools and their
    quotas (20), tokens and policies (30). What belongs to the tenant is final from 5 on.
    """
    _teardowns.append((order, teardown))
    _teardowns.sort(key=lambda each: each[0])


async def find_ancestors(
    connection: Connection, tenant_ids: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the way from root to each of some tenants, itself included; deleted ones left out."""
    cursor = await connection.execute(_QUERIES["ancestors"], {"ids": sorted(set(tenant_ids))})
    return {row["id"]: tuple(row["ancestors"]) for row in await cursor.fetchall()}


async def create_tenant(runtime: Runtime, caller: Caller, request: TenantCreate) -> TenantView:
    """Create a tenant under the caller's or one below it.

    Raises ConflictError for an id that is taken, wherever in the tree and even if deleted;
    NotFoundError for a parent that the caller does not see; InvalidInputError for one too deep.
    """
    parent_id = request.parent_id or caller.tenant_id
    if request.id == ROOT:
        raise _taken()
    async with transaction(runtime.db) as connection:
        above = await hold_tenant(connection, parent_id, field="parent_id")
        if caller.tenant_id not in above:
            raise no_tenant(parent_id, field="parent_id")
        if len(above) >= DEPTH_MAX:
            raise InvalidInputError(
                "is too deep in the tree for another tenant below it",
                field="parent_id",
                given=parent_id,
                allowed=f"at most {DEPTH_MAX} tenants on the way from root, both ends counted",
            )
        row = {
            "id": request.id,
            "parent_id": parent_id,
            "ancestors": [*above, request.id],
            "name": request.name,
            "now": runtime.now(),
        }
        cursor = await connection.execute(_QUERIES["insert_tenant"], row)
        view = TenantView.model_validate(await cursor.fetchone())
        after = view.model_dump(mode="json")
        event = Event(
            "tenant.created", caller.tenant_id, view.id, _facts(view), before=None, after=after
        )
        await append(connection, caller, runtime.now(), _told(event, parent_id, view.id))
    return view


async def get_tenant(runtime: Runtime, caller: Caller, tenant_id: str) -> TenantView:
    """Return a tenant that the caller sees, deleted ones too."""
    async with transaction(runtime.db) as connection:
        return await _find(connection, "find_tenant", caller, tenant_id)


async def list_tenants(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    parent_id: str | None = None,
    name: str | None = None,
    include_deleted: bool = False,
) -> list[TenantView]:
    """Return the caller's tenant and those below it by id; deleted ones only where asked for."""
    parameters = {
        "above": caller.tenant_id,
        "after": after,
        "limit": limit,
        "parent_id": parent_id,
        "name": name,
        "include_deleted": include_deleted,
    }
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(_QUERIES["list_tenants"], parameters)
        return [TenantView.model_validate(row) for row in await cursor.fetchall()]


async def update_tenant(
    runtime: Runtime, caller: Caller, tenant_id: str, request: TenantUpdate
) -> TenantView:
    """Give a tenant another name; a deleted one is InvalidStateError."""
    async with transaction(runtime.db) as connection:
        before = await _find(connection, "lock_tenant", caller, tenant_id)
        if before.deleted_at is not None:
            raise InvalidStateError("the tenant is deleted", field="tenant_id", given=tenant_id)
        parameters = {"id": tenant_id, "name": request.name}
        cursor = await connection.execute(_QUERIES["rename_tenant"], parameters)
        view = TenantView.model_validate(await cursor.fetchone())
        event = Event(
            "tenant.updated",
            caller.tenant_id,
            tenant_id,
            _facts(view),
            before=before.model_dump(mode="json"),
            after=view.model_dump(mode="json"),
        )
        await append(connection, caller, runtime.now(), _told(event, view.parent_id, tenant_id))
    return view


async def delete_tenant(runtime: Runtime, caller: Caller, tenant_id: str) -> TenantDeleted:
    """Delete a tenant: what it has ends or is withdrawn, its tokens stop; all of it or nothing.

    Deleting again changes nothing and returns the same tenant. Raises InvalidStateError for root
    and for a tenant with others below it that live.
    """

    async def work(connection: Connection) -> TenantDeleted:
        before = await _find(connection, "find_tenant", caller, tenant_id)
        if tenant_id == ROOT:
            raise InvalidStateError("root stays", field="tenant_id", given=ROOT)
        now = runtime.now()
        done: dict[str, Any] = {}
        for order, teardown in _teardowns:
            if order < _TENANT and before.deleted_at is None:
                done |= await teardown(connection, caller, tenant_id, now)
        before = await _close(connection, caller, tenant_id)
        if before.deleted_at is not None:
            return _deleted(before, {})
        for order, teardown in _teardowns:
            if order > _TENANT:
                done |= await teardown(connection, caller, tenant_id, now)
        parameters = {"id": tenant_id, "now": now}
        cursor = await connection.execute(_QUERIES["delete_tenant"], parameters)
        deleted = _deleted(TenantView.model_validate(await cursor.fetchone()), done)
        event = Event(
            "tenant.deleted",
            caller.tenant_id,
            tenant_id,
            _counts(deleted),
            before=before.model_dump(mode="json"),
            after=deleted.tenant.model_dump(mode="json"),
        )
        await append(connection, caller, now, _told(event, before.parent_id))
        return deleted

    return await retrying(runtime.db, work)


async def _close(connection: Connection, caller: Caller, tenant_id: str) -> TenantView:
    """Wait for what others make for the tenant, keep them out, and see that none is below it."""
    tenant = await _find(connection, "close_tenant", caller, tenant_id)
    cursor = await connection.execute(_QUERIES["living_children"], {"id": tenant_id})
    children = await cursor.fetchone()
    if children is not None and children["count"]:
        count, first = children["count"], children["first"]
        more = "" if count == len(first) else f" and {count - len(first)} more"
        raise InvalidStateError(
            f"has {count} tenant{'' if count == 1 else 's'} below it: {', '.join(first)}{more}",
            field="tenant_id",
            given=tenant_id,
            allowed="a tenant with none below it",
            hint="Delete those first",
            details={"children": first, "count": count},
        )
    return tenant


on_delete(30, tokens.revoke_all)
on_delete(30, policies.delete_all)


def _taken() -> ConflictError:
    return ConflictError("this id is taken", field="id", hint="Ids of deleted tenants stay taken")


async def _find(connection: Connection, query: str, caller: Caller, tenant_id: str) -> TenantView:
    parameters = {"id": tenant_id, "above": caller.tenant_id}
    cursor = await connection.execute(_QUERIES[query], parameters)
    row = await cursor.fetchone()
    if row is None:
        raise no_tenant(tenant_id)
    return TenantView.model_validate(row)


def _deleted(tenant: TenantView, done: Mapping[str, Any]) -> TenantDeleted:
    nothing: dict[str, Any] = {
        "archived_pools": [],
        "withdrawn_offers": [],
        "ended_reservations": 0,
        "revoked_tokens": 0,
    }
    return TenantDeleted(tenant=tenant, **{**nothing, **done})


def _facts(tenant: TenantView) -> dict[str, object]:
    return {"name": tenant.name, "parent_id": tenant.parent_id}


def _counts(deleted: TenantDeleted) -> dict[str, object]:
    return {
        **_facts(deleted.tenant),
        "archived_pools": len(deleted.archived_pools),
        "withdrawn_offers": len(deleted.withdrawn_offers),
        "ended_reservations": deleted.ended_reservations,
        "revoked_tokens": deleted.revoked_tokens,
    }


def _told(event: Event, *others: str | None) -> list[Event]:
    """Tell those others too whom it concerns, each once, and not by whose token it was done."""
    return [
        event,
        *(
            replace(event, tenant_id=each, before=None, after=None, actor=event.tenant_id)
            for each in dict.fromkeys(others)
            if each is not None and each != event.tenant_id
        ),
    ]
