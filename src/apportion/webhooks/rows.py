"""A webhook's row: how it is locked, changed, told of and shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import NotFoundError
from apportion.events.service import Event, StoredEvent, append, view_of
from apportion.store.connections import Connection
from apportion.store.sql import load
from apportion.webhooks.schemas import DeliveryView, WebhookView

QUERIES: Final = load("apportion.webhooks")

_EVENT: Final = (
    "position",
    "type",
    "tenant_id",
    "subject",
    "actor",
    "request_id",
    "data",
    "occurred_at",
)


async def lock_webhook(connection: Connection, tenant_id: str, webhook_id: str) -> dict[str, Any]:
    """Return a webhook of a tenant, locked; NotFoundError where it has none of that id."""
    cursor = await connection.execute(QUERIES["lock"], {"id": webhook_id, "tenant_id": tenant_id})
    row = await cursor.fetchone()
    if row is None:
        raise no_webhook(webhook_id)
    return row


async def change(
    connection: Connection, caller: Caller, row: Mapping[str, Any], now: datetime, **changes: object
) -> None:
    """Write a locked webhook's new fields, and tell of it."""
    after = {**row, **changes}
    await connection.execute(QUERIES["update"], {**after, "now": now})
    facts = {"name": row["name"], "changed": sorted(changes)}
    event = Event(
        "webhook.updated", row["tenant_id"], row["id"], facts, before=shown(row), after=shown(after)
    )
    await append(connection, caller, now, [event])


def shown(row: Mapping[str, Any]) -> dict[str, object]:
    """Return what an audit keeps of a webhook."""
    return {key: row[key] for key in ("name", "url", "types", "enabled", "secret_version")}


def webhook_view(row: Mapping[str, Any]) -> WebhookView:
    """Return a webhook as it is shown."""
    return WebhookView.model_validate({key: row[key] for key in WebhookView.model_fields})


def delivery_view(row: Mapping[str, Any]) -> DeliveryView:
    """Return a delivery as it is shown, with its event."""
    event = event_of(row, row["event_id"])
    own = {key: row[key] for key in DeliveryView.model_fields if key in row}
    return DeliveryView.model_validate({**own, "id": str(row["id"]), "event": view_of(event)})


def event_of(row: Mapping[str, Any], number: int) -> StoredEvent:
    """Return the event that stands in a delivery's row."""
    return StoredEvent(id=number, **{key: row[key] for key in _EVENT})


def no_webhook(webhook_id: str) -> NotFoundError:
    """Return the refusal of a webhook that does not exist for the caller."""
    return NotFoundError("no such webhook", field="webhook_id", given=webhook_id)
