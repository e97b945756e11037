"""Routes of events and of the audit."""

from collections.abc import AsyncGenerator
from typing import Annotated, Final, Literal, cast

import structlog
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import BaseModel

from apportion.doors.paging import Cursor, Filter, Limit, Page, cut, decode_cursor, encode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime, identify
from apportion.errors import ApportionError, InvalidInputError
from apportion.events import service
from apportion.events.feed import Feed, Follow, News
from apportion.events.schemas import AuditView, EventView
from apportion.events.service import END, START, view_of
from apportion.quantities.windows import parse_instant

router = APIRouter(route_class=Door, tags=["events"])

_RETRY_MILLISECONDS: Final = 1000
_STREAM: Final = """\
Server-sent events. `id` is the event's position, `event` its type, `data` the CloudEvent in JSON,
as in the list. A message without data carries only an `id`: everything up to there was told.
"""
_log: Final = structlog.get_logger()

Prefix = Annotated[str | None, Query(min_length=1, max_length=200)]
Instant = Annotated[str | None, Query(json_schema_extra={"format": "date-time"})]
TypePrefix = Annotated[
    str | None,
    Query(alias="type", min_length=1, max_length=200, description="How the type begins."),
]


class EventPage(BaseModel):
    """Events in order. There is always a next_cursor: after the last one, for what comes later."""

    items: list[EventView]
    next_cursor: str


class AuditPage(Page[AuditView]):
    """Audit records, newest first."""


class EventStream(StreamingResponse):
    """Server-sent events; proxies are told not to hold them back."""

    media_type = "text/event-stream"


@router.get("/v1/events", summary="What happened, from the first event or a cursor on")
async def list_events(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    subject: Filter = None,
    type_prefix: TypePrefix = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> EventPage:
    [after] = decode_cursor("list_events", cursor, START)
    found = await service.list_events(
        runtime, caller, after=after, limit=limit, subject=subject, type_prefix=type_prefix
    )
    position = found[-1].position if found else after
    return EventPage(
        items=[view_of(each) for each in found],
        next_cursor=encode_cursor("list_events", position),
    )


@router.get(
    "/v1/events/stream",
    summary="What happens, as it happens",
    response_class=EventStream,
    response_model=None,
    responses={200: {"description": _STREAM}},
)
async def stream_events(
    request: Request,
    caller: TheCaller,
    *,
    subject: Filter = None,
    type_prefix: TypePrefix = None,
    start: Annotated[
        Literal["now", "start"] | None,
        Query(alias="from", description="Where to begin without a position; default now."),
    ] = None,
    until: Annotated[
        Literal["now"] | None, Query(description="End when all that has happened is told.")
    ] = None,
    cursor: Annotated[
        str | None,
        Query(max_length=500, description="Begin at a next_cursor of the list of events."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="Go on after this event: its id. It outweighs `cursor` and `from`.",
        ),
    ] = None,
) -> EventStream:
    wanted = Follow(
        position=last_event_id or _position(start, cursor),
        subject=subject,
        type_prefix=type_prefix,
        until_now=until is not None,
    )
    feed = cast("Feed", request.app.state.feed)

    async def check() -> None:
        await identify(request, "compute:events:read")

    news = feed.follow(caller, wanted, check)
    # Read before the answer begins: a position that is refused is still a problem document.
    first = await anext(news)
    return EventStream(_frames(first, news), headers={"X-Accel-Buffering": "no"})


@router.get("/v1/audit", summary="Who did what to which object, newest first")
async def list_audit(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    subject: Filter = None,
    actor: Filter = None,
    action: Annotated[Prefix, Query(description="How the action begins: `pool.`")] = None,
    request_id: Filter = None,
    since: Annotated[Instant, Query(description="The first instant that counts.")] = None,
    until: Annotated[Instant, Query(description="The first instant that does not count.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPage:
    [before] = decode_cursor("list_audit", cursor, END)
    found = await service.list_audit(
        runtime,
        caller,
        before=before,
        limit=limit + 1,
        subject=subject,
        actor=actor,
        action_prefix=action,
        request_id=request_id,
        since=None if since is None else parse_instant(since, field="since"),
        until=None if until is None else parse_instant(until, field="until"),
    )
    items, following = cut("list_audit", found, limit, lambda each: [each.id])
    return AuditPage(items=items, next_cursor=following)


def _position(start: str | None, cursor: str | None) -> str | None:
    if cursor is None:
        return START if start == "start" else None
    if start is not None:
        raise InvalidInputError(
            "is given beside cursor", field="from", given=start, allowed="one of the two"
        )
    [position] = decode_cursor("list_events", cursor, START)
    service.read_position(position, field="cursor")
    return position


async def _frames(first: News, rest: AsyncGenerator[News]) -> AsyncGenerator[bytes]:
    """Write news as server-sent events, until nobody listens, may listen, or can be told."""
    yield format_sse_event(id=first.position, retry=_RETRY_MILLISECONDS, comment="following")
    try:
        async for news in rest:
            for event in news.events:
                yield format_sse_event(
                    id=event.position, event=event.type, data_str=view_of(event).model_dump_json()
                )
            yield format_sse_event(id=news.position, comment="up to here")
    except ApportionError as error:
        # An answer that has begun has no status to give: the caller asks again, and is told.
        _log.info("stream of events ended", code=error.code, reason=str(error))
    finally:
        await rest.aclose()
