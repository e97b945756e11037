"""Routes of events."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from apportion.doors.paging import Cursor, Filter, Limit, decode_cursor, encode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.events.schemas import EventView
from apportion.events.service import SOURCE, START, StoredEvent
from apportion.events.service import list_events as list_

router = APIRouter(route_class=Door, tags=["events"])


class EventPage(BaseModel):
    """Events in order. There is always a next_cursor: after the last one, for what comes later."""

    items: list[EventView]
    next_cursor: str


@router.get("/v1/events", summary="What happened, from the first event or a cursor on")
async def list_events(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    subject: Filter = None,
    type_prefix: Annotated[
        str | None,
        Query(alias="type", min_length=1, max_length=200, description="How the type begins."),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> EventPage:
    [after] = decode_cursor("list_events", cursor, START)
    found = await list_(
        runtime, caller, after=after, limit=limit, subject=subject, type_prefix=type_prefix
    )
    position = found[-1].position if found else after
    return EventPage(
        items=[_view(each) for each in found],
        next_cursor=encode_cursor("list_events", position),
    )


def _view(event: StoredEvent) -> EventView:
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
