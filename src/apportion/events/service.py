"""The outbox: events are appended in the transaction of the change that they tell of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.store.batches import as_rows
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.events")

SOURCE: Final = "/apportion"
"""The ``source`` of every event: the control plane, as a URI reference."""
START: Final = "0.0"
"""The position before the first event."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: ``type`` (``reservation.placed``), the object's id, and facts.

    ``tenant_id`` is who is told; who did it comes with the append. ``before`` and ``after`` are the
    object as it was and became: with one of them the event is an audit record of that tenant too.
    An event that tells one tenant of what another one did has neither, and names as ``actor`` the
    tenant that did it: its tokens are nobody else's business.
    """

    type: str
    tenant_id: str
    subject: str
    data: Mapping[str, object]
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it is read back; ``position`` is where to go on reading after it."""

    position: str
    id: int
    type: str
    tenant_id: str
    subject: str
    actor: str
    request_id: str | None
    data: Mapping[str, Any]
    occurred_at: datetime


async def append(
    connection: Connection, caller: Caller, now: datetime, events: Sequence[Event]
) -> None:
    """Write events into the current transaction, in order, in one statement."""
    if not events:
        return
    rows = [
        {
            "tenant_id": event.tenant_id,
            "type": event.type,
            "subject": event.subject,
            "data": event.data,
            "before": event.before,
            "after": event.after,
            "actor": event.actor or caller.actor,
            "request_id": None if event.actor else caller.request_id,
        }
        for event in events
    ]
    await connection.execute(
        _QUERIES["append"],
        {
            "rows": as_rows(rows),
            "now": now,
        },
    )


async def list_events(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = START,
    limit: int = 100,
    subject: str | None = None,
    type_prefix: str | None = None,
) -> list[StoredEvent]:
    """Return the caller's events after a position, in the order of their transactions.

    Transactions commit out of order, so only what can no longer be overtaken is shown: events of
    transactions older than all that still run. A reader that keeps its position misses none.
    """
    xid, _, number = after.partition(".")
    if not (_is_count(xid) and _is_count(number)):
        raise InvalidInputError(
            "not a position in the events",
            field="cursor",
            given=after,
            allowed="the next_cursor of an earlier answer",
        )
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["list"],
            {
                "tenant_id": caller.tenant_id,
                "xid": xid,
                "id": int(number),
                "limit": limit,
                "subject": subject,
                "type_prefix": type_prefix,
            },
        )
        return [StoredEvent(**row) for row in await cursor.fetchall()]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19  # noqa: PLR2004 - fits a bigint
