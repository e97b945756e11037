"""Routes of series."""

from typing import Annotated

from fastapi import APIRouter, Path

from apportion.authority.service import Caller
from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, Truth, cut, encode_cursor
from apportion.doors.route import Door, TheCaller
from apportion.reservations.api import TheReservations, position
from apportion.reservations.service import Reservations
from apportion.reservations.window_schemas import SeriesCreate, SeriesSummary, SeriesView

router = APIRouter(route_class=Door, tags=["reservations"])

SeriesId = Annotated[str, Path()]


class SeriesPage(Page[SeriesSummary]):
    """Series, newest first."""


@router.post(
    "/v1/series", status_code=201, summary="Reserve every window of a recurrence, all or none"
)
async def create_series(
    reservations: TheReservations, caller: TheCaller, request: SeriesCreate, key: KeyHeader = None
) -> SeriesView:
    series_id = await reservations.series.create(caller, one_key(request, key))
    return await _page(reservations, caller, series_id)


@router.get("/v1/series", summary="List series, newest first")
async def list_series(
    reservations: TheReservations,
    caller: TheCaller,
    *,
    name: Filter = None,
    live: Truth = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> SeriesPage:
    found = await reservations.series.page(
        caller,
        before=position("list_series", cursor),
        limit=limit + 1,
        name=name,
        live=live,
    )
    items, following = cut(
        "list_series", found, limit, lambda each: [each.created_at.isoformat(), each.id]
    )
    return SeriesPage(items=items, next_cursor=following)


@router.get("/v1/series/{series_id}", summary="Show a series and its reservations, by start")
async def get_series(
    reservations: TheReservations,
    caller: TheCaller,
    *,
    series_id: SeriesId,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> SeriesView:
    return await _page(reservations, caller, series_id, limit=limit, cursor=cursor)


@router.post(
    "/v1/series/{series_id}/release",
    summary="End what of a series lives, and cancel what is still to come",
)
async def release_series(
    reservations: TheReservations, caller: TheCaller, series_id: SeriesId
) -> SeriesView:
    if await reservations.series.release(caller, series_id):
        # Who waits is tried by the clock's loop, at once: the one who releases does not wait.
        reservations.lifecycle.hint.set()
    return await _page(reservations, caller, series_id)


async def _page(
    reservations: Reservations,
    caller: Caller,
    series_id: str,
    *,
    limit: int = 100,
    cursor: str | None = None,
) -> SeriesView:
    after = position("get_series", cursor)
    view, more = await reservations.series.get(caller, series_id, after=after, limit=limit)
    if not more:
        return view
    last = view.reservations[-1]
    following = encode_cursor("get_series", last.created_at.isoformat(), last.id)
    return view.model_copy(update={"next_cursor": following})
