# Made from client/aio/events.py by tools/unasync.py: change that one.
"""Events: listed, streamed, sent to webhooks, and kept as an audit."""

from collections.abc import Generator
from datetime import datetime
from typing import Literal

from apportion.client.requests import Document, Query, instant_of, keyed, path_of
from apportion.client.sync.asking import Asking
from apportion.client.sync.page import Page
from apportion.client.sync.stream import follow
from apportion.events.schemas import AuditView, EventView
from apportion.webhooks.schemas import (
    DeliveryView,
    WebhookCreate,
    WebhookDeleted,
    WebhookIssued,
    WebhookUpdate,
    WebhookView,
)


class Events(Asking):
    """What the API offers about what happened."""

    def list_events(
        self,
        *,
        subject: str | None = None,
        type_prefix: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[EventView]:
        """List what happened, in order; the last page has a next_cursor too, for what comes."""
        query = {"subject": subject, "type": type_prefix, "limit": limit}
        return self._list(path_of("events"), EventView, query, cursor)

    def stream_events(
        self,
        *,
        subject: str | None = None,
        type_prefix: str | None = None,
        from_: Literal["now", "start"] | None = None,
        cursor: str | None = None,
        last_event_id: str | None = None,
    ) -> Generator[EventView]:
        """Give each event as it happens, without an end: ``list_events`` gives those until now.

        It begins now, or at the first event (``from_="start"``), after a list's ``cursor``, or
        after the event of an id. A connection that breaks is opened again after the last event
        that came: none is lost and none comes twice. What ends it is that it is closed, that the
        token may no longer, or that no server answers for about half a minute.
        """
        query = {"subject": subject, "type": type_prefix, "from": from_, "cursor": cursor}
        return follow(self._connection, path_of("events", "stream"), query, last_event_id)

    def list_audit(
        self,
        *,
        subject: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        request_id: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AuditView]:
        """List who did what to which object, newest first, with the object before and after."""
        query: Query = {
            "subject": subject,
            "actor": actor,
            "action": action,
            "request_id": request_id,
            "since": instant_of(since),
            "until": instant_of(until),
            "limit": limit,
        }
        return self._list(path_of("audit"), AuditView, query, cursor)

    def create_webhook(self, request: WebhookCreate | Document) -> WebhookIssued:
        """Have events sent to a URL; the signing secret is in this answer and not shown again."""
        return self._send("POST", path_of("webhooks"), WebhookIssued, keyed(request))

    def list_webhooks(self, *, limit: int = 100, cursor: str | None = None) -> Page[WebhookView]:
        """List webhooks by id."""
        return self._list(path_of("webhooks"), WebhookView, {"limit": limit}, cursor)

    def get_webhook(self, webhook_id: str) -> WebhookView:
        """Show a webhook."""
        return self._send("GET", path_of("webhooks", webhook_id), WebhookView)

    def update_webhook(self, webhook_id: str, request: WebhookUpdate | Document) -> WebhookView:
        """Change the version of a webhook that was read."""
        return self._update("PATCH", path_of("webhooks", webhook_id), WebhookView, request)

    def delete_webhook(self, webhook_id: str) -> WebhookDeleted:
        """Remove a webhook and what waits for it."""
        return self._send("DELETE", path_of("webhooks", webhook_id), WebhookDeleted)

    def rotate_webhook_secret(self, webhook_id: str) -> WebhookIssued:
        """Give a webhook a new signing secret, which is in this answer alone."""
        path = path_of("webhooks", webhook_id, "rotate")
        return self._send("POST", path, WebhookIssued, repeat="unsent")

    def list_deliveries(
        self,
        webhook_id: str,
        *,
        state: Literal["pending", "dead"] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[DeliveryView]:
        """List events that are on their way to a webhook, and those that never got there."""
        path = path_of("webhooks", webhook_id, "deliveries")
        return self._list(path, DeliveryView, {"state": state, "limit": limit}, cursor)

    def resend_delivery(self, webhook_id: str, delivery_id: str) -> DeliveryView:
        """Try a dead delivery again."""
        path = path_of("webhooks", webhook_id, "deliveries", delivery_id, "resend")
        return self._send("POST", path, DeliveryView, repeat="unsent")
