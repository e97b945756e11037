"""The outbox: events are appended in the transaction of the change that they tell of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.events.schemas import AuditView, EventView
from apportion.store.batches import as_rows
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.events")

SOURCE: Final = "/apportion"
"""The ``source`` of every event: the control plane, as a URI reference."""
START: Final = "0.0"
"""The position before the first event."""
END: Final = f"{2**63 - 1}.{2**63 - 1}"
"""The position after every event."""


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
    await append_all(connection, now, [(caller, event) for event in events])


async def append_all(
    connection: Connection, now: datetime, events: Sequence[tuple[Caller, Event]]
) -> None:
    """Do as `append`, for events of several callers, each with who did it."""
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
        for caller, event in events
    ]
    await connection.execute(_QUERIES["append"], {"rows": as_rows(rows), "now": now})


async def list_events(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = START,
    before: int | None = None,
    limit: int = 100,
    subject: str | None = None,
    type_prefix: str | None = None,
) -> list[StoredEvent]:
    """Return the caller's events after a position, in the order of their transactions.

    Transactions commit out of order, so only what can no longer be overtaken is shown: events of
    transactions older than all that still run, or than ``before``, a horizon that was read earlier.
    A reader that keeps its position misses none.
    """
    xid, number = read_position(after, field="cursor")
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["list"],
            {
                "tenant_id": caller.tenant_id,
                "xid": str(xid),
                "id": number,
                "before": None if before is None else str(before),
                "limit": limit,
                "subject": subject,
                "type_prefix": type_prefix,
            },
        )
        return [StoredEvent(**row) for row in await cursor.fetchall()]


async def list_audit(
    runtime: Runtime,
    caller: Caller,
    *,
    before: str = END,
    limit: int = 100,
    subject: str | None = None,
    actor: str | None = None,
    action_prefix: str | None = None,
    request_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[AuditView]:
    """Return who did what in the caller's tenant before a position, newest first.

    Like the list of events it shows what can no longer be overtaken, so that one walk sees all.
    """
    xid, number = read_position(before, field="cursor")
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["audit"],
            {
                "tenant_id": caller.tenant_id,
                "xid": str(xid),
                "id": number,
                "limit": limit,
                "subject": subject,
                "actor": actor,
                "action_prefix": action_prefix,
                "request_id": request_id,
                "since": since,
                "until": until,
            },
        )
        return [AuditView(**row) for row in await cursor.fetchall()]


async def read_horizon(connection: Connection) -> int:
    """Return the oldest transaction that may still run: events before it are all there."""
    cursor = await connection.execute(_QUERIES["horizon"])
    row = await cursor.fetchone()
    return 0 if row is None else int(row["horizon"])


def read_position(text: str, *, field: str) -> tuple[int, int]:
    """Return the transaction and the number in it that a position in the events names."""
    xid, _, number = text.partition(".")
    if not (_is_count(xid) and _is_count(number)):
        raise InvalidInputError(
            "is not a position in the events",
            field=field,
            given=text,
            allowed="the id of an event, such as 731.12",
        )
    return int(xid), int(number)


def view_of(event: StoredEvent) -> EventView:
    """Return an event as it is shown: a CloudEvent."""
    return EventView(
        id=event.position,
        source=SOURCE,
        type=event.type,
        subject=event.subject,
        time=event.occurred_at,
        tenantid=event.tenant_id,
        actor=event.actor,
        requestid=event.request_id,
        data=dict(event.data),
    )


def _is_count(text: str) -> bool:
    """Tell a whole number that a bigint holds."""
    return (
        text.isascii() and text.isdigit() and len(text) < len(str(2**63)) + 1 and int(text) < 2**63
    )
