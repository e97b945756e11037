"""Webhooks: made, changed, rotated and removed by tenants; what could not be delivered."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from apportion.authority.service import Caller
from apportion.errors import ConflictError, InvalidStateError, NotFoundError
from apportion.events.service import Event, append
from apportion.quantities.ids import derive_id
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.tenants.service import on_delete
from apportion.webhooks.dispatcher import Dispatcher
from apportion.webhooks.rows import (
    QUERIES,
    change,
    delivery_view,
    lock_webhook,
    no_webhook,
    shown,
    webhook_view,
)
from apportion.webhooks.schemas import (
    DeliveryView,
    WebhookCreate,
    WebhookIssued,
    WebhookUpdate,
    WebhookView,
)
from apportion.webhooks.signing import secret_of
from apportion.webhooks.targets import Network, check_url

__all__ = [
    "Dispatcher",
    "Network",
    "create_webhook",
    "delete_webhook",
    "get_webhook",
    "list_deliveries",
    "list_webhooks",
    "resend_delivery",
    "rotate_secret",
    "update_webhook",
]

WEBHOOKS_MAX: Final = 20
"""The most webhooks of one tenant."""

register(
    {
        "webhooks_name_key": lambda _: ConflictError(
            "this tenant has a webhook of that name", field="name"
        ),
        **guards("deliveries_event_key", "deliveries_state_known", "deliveries_dead_has_error"),
    }
)


async def create_webhook(
    runtime: Runtime, caller: Caller, request: WebhookCreate, networks: Sequence[Network] = ()
) -> WebhookIssued:
    """Make a webhook and return it with its secret; a retry with the same key returns the same.

    Raises InvalidInputError for a URL that can never be sent to, ConflictError for a taken name or
    a key that made another webhook, InvalidStateError where the tenant has as many as it may.
    """
    check_url(request.url, networks)
    row = {
        "id": _new_id(runtime, caller, request.idempotency_key),
        "tenant_id": caller.tenant_id,
        "name": request.name,
        "url": request.url,
        "types": request.types,
        "enabled": request.enabled,
        "secret_version": 1,
    }
    now = runtime.now()
    async with transaction(runtime.db) as connection:
        await _make_room(connection, caller, row["id"])
        cursor = await connection.execute(QUERIES["insert"], {**row, "now": now})
        if await cursor.fetchone() is None:
            return await _made_before(runtime, connection, caller, row)
        # Without the URL, which may hold a secret: more tokens may read events than webhooks.
        facts = {key: row[key] for key in ("name", "types", "enabled")}
        event = Event("webhook.created", caller.tenant_id, str(row["id"]), facts, after=shown(row))
        await append(connection, caller, now, [event])
        return await _issue(runtime, connection, caller, str(row["id"]))


async def get_webhook(runtime: Runtime, caller: Caller, webhook_id: str) -> WebhookView:
    """Return one webhook of the caller; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return await _get(connection, caller, webhook_id)


async def list_webhooks(
    runtime: Runtime, caller: Caller, *, after: str = "", limit: int = 100
) -> list[WebhookView]:
    """Return the caller's webhooks by id."""
    async with transaction(runtime.db) as connection:
        return await _select(connection, caller, after=after, limit=limit)


async def update_webhook(
    runtime: Runtime,
    caller: Caller,
    webhook_id: str,
    request: WebhookUpdate,
    networks: Sequence[Network] = (),
) -> WebhookView:
    """Change what is given of a webhook; what changes nothing leaves its version.

    Raises ConflictError when somebody else has changed it since it was read.
    """
    if request.url is not None:
        check_url(request.url, networks)
    given = {key: getattr(request, key) for key in ("url", "types", "enabled")}
    async with transaction(runtime.db) as connection:
        row = await lock_webhook(connection, caller.tenant_id, webhook_id)
        if row["version"] != request.version:
            raise ConflictError(
                "was changed since it was read",
                field="version",
                given=request.version,
                hint="Read it again, and decide anew",
                details={"there": row["version"], "asked": request.version},
            )
        changes = {
            key: value for key, value in given.items() if value is not None and value != row[key]
        }
        if changes:
            await change(connection, caller, row, runtime.now(), **changes)
        return await _get(connection, caller, webhook_id)


async def rotate_secret(runtime: Runtime, caller: Caller, webhook_id: str) -> WebhookIssued:
    """Give a webhook another secret, with which the next attempt is signed; return it."""
    async with transaction(runtime.db) as connection:
        row = await lock_webhook(connection, caller.tenant_id, webhook_id)
        version = row["secret_version"] + 1
        await change(connection, caller, row, runtime.now(), secret_version=version)
        return await _issue(runtime, connection, caller, webhook_id)


async def delete_webhook(runtime: Runtime, caller: Caller, webhook_id: str) -> None:
    """Remove a webhook and what was on its way to it; NotFoundError where there is none."""
    async with transaction(runtime.db) as connection:
        row = await lock_webhook(connection, caller.tenant_id, webhook_id)
        await connection.execute(QUERIES["delete"], {"id": webhook_id})
        event = Event(
            "webhook.deleted",
            caller.tenant_id,
            webhook_id,
            {"name": row["name"]},
            before=shown(row),
        )
        await append(connection, caller, runtime.now(), [event])


async def list_deliveries(
    runtime: Runtime,
    caller: Caller,
    webhook_id: str,
    *,
    after: int = 0,
    limit: int = 100,
    state: Literal["pending", "dead"] | None = None,
) -> list[DeliveryView]:
    """Return what is on its way to a webhook, or dead, oldest first."""
    async with transaction(runtime.db) as connection:
        await _get(connection, caller, webhook_id)
        return await _deliveries(connection, webhook_id, after=after, limit=limit, state=state)


async def resend_delivery(
    runtime: Runtime, caller: Caller, webhook_id: str, delivery_id: str
) -> DeliveryView:
    """Send a dead delivery again, as if it were new.

    Raises InvalidStateError for one that is not dead: it is sent again by itself.
    """
    now = runtime.now()
    number = _number(delivery_id)
    async with transaction(runtime.db) as connection:
        await lock_webhook(connection, caller.tenant_id, webhook_id)
        there = await _deliveries(connection, webhook_id, number=number) if number else []
        if not there:
            raise NotFoundError("no such delivery", field="delivery_id", given=delivery_id)
        parameters = {"id": number, "webhook_id": webhook_id, "now": now}
        cursor = await connection.execute(QUERIES["resend"], parameters)
        if await cursor.fetchone() is None:
            raise InvalidStateError(
                "is on its way: it is tried again at next_at",
                field="delivery_id",
                given=delivery_id,
                allowed="a dead delivery",
                details={"next_at": there[0].next_at.isoformat()},
            )
        [sent] = await _deliveries(connection, webhook_id, number=number)
        facts = {"delivery_id": sent.id, "event_id": sent.event.id, "type": sent.event.type}
        event = Event(
            "webhook.resent",
            caller.tenant_id,
            webhook_id,
            facts,
            before={"delivery": sent.id, "state": "dead"},
            after={"delivery": sent.id, "state": "pending"},
        )
        await append(connection, caller, now, [event])
        return sent


async def _tenant_deleted(
    connection: Connection, caller: Caller, tenant_id: str, now: datetime
) -> Mapping[str, int]:
    """Stop telling a tenant that is no more, and forget what was on its way to it."""
    cursor = await connection.execute(QUERIES["lock_all"], {"tenant_id": tenant_id})
    for row in await cursor.fetchall():
        if row["enabled"]:
            await change(connection, caller, row, now, enabled=False)
    await connection.execute(QUERIES["clear_pending"], {"tenant_id": tenant_id})
    return {}


on_delete(30, _tenant_deleted)


def _new_id(runtime: Runtime, caller: Caller, key: str | None) -> str:
    if key is None:
        return runtime.new_id("whk")
    return derive_id("whk", caller.tenant_id, caller.actor, key)


async def _make_room(connection: Connection, caller: Caller, webhook_id: object) -> None:
    cursor = await connection.execute(QUERIES["lock_tenant"], {"tenant_id": caller.tenant_id})
    if await cursor.fetchone() is None:
        raise NotFoundError("no such tenant", field="tenant_id", given=caller.tenant_id)
    there = await _select(connection, caller, limit=WEBHOOKS_MAX)
    if len(there) == WEBHOOKS_MAX and all(each.id != webhook_id for each in there):
        raise InvalidStateError(
            f"the tenant has {WEBHOOKS_MAX} webhooks, as many as it may",
            hint="Delete one that is not needed, or let one of them take more types",
        )


async def _made_before(
    runtime: Runtime, connection: Connection, caller: Caller, row: Mapping[str, object]
) -> WebhookIssued:
    """Answer a retry: with the secret, for the first answer may have been lost."""
    there = await lock_webhook(connection, caller.tenant_id, str(row["id"]))
    fields = ("name", "url", "types") if there["version"] == 1 else ("name", "secret_version")
    for field in fields:
        if there[field] != row[field]:
            raise ConflictError(
                f"the same key made a webhook with another {field}",
                field="idempotency_key",
                hint="A lost secret is replaced by rotating it",
                details={"webhook_id": row["id"], "there": there[field], "asked": row[field]},
            )
    return await _issue(runtime, connection, caller, str(row["id"]))


async def _issue(
    runtime: Runtime, connection: Connection, caller: Caller, webhook_id: str
) -> WebhookIssued:
    row = await lock_webhook(connection, caller.tenant_id, webhook_id)
    return WebhookIssued(
        secret=secret_of(runtime.key, webhook_id, row["secret_version"]),
        webhook=await _get(connection, caller, webhook_id),
    )


async def _get(connection: Connection, caller: Caller, webhook_id: str) -> WebhookView:
    found = await _select(connection, caller, webhook_id=webhook_id)
    if not found:
        raise no_webhook(webhook_id)
    return found[0]


async def _select(
    connection: Connection,
    caller: Caller,
    *,
    webhook_id: str | None = None,
    after: str = "",
    limit: int = 1,
) -> list[WebhookView]:
    parameters = {"tenant_id": caller.tenant_id, "id": webhook_id, "after": after, "limit": limit}
    cursor = await connection.execute(QUERIES["select"], parameters)
    return [webhook_view(row) for row in await cursor.fetchall()]


async def _deliveries(
    connection: Connection,
    webhook_id: str,
    *,
    number: int | None = None,
    after: int = 0,
    limit: int = 1,
    state: str | None = None,
) -> list[DeliveryView]:
    cursor = await connection.execute(
        QUERIES["deliveries"],
        {"webhook_id": webhook_id, "id": number, "after": after, "limit": limit, "state": state},
    )
    return [delivery_view(row) for row in await cursor.fetchall()]


def _number(text: str) -> int | None:
    """Return a delivery's number; None for a text that names none."""
    if text.isascii() and text.isdigit() and len(text) < len(str(2**63)):
        return int(text)
    return None
