"""Routes of reservations."""

from datetime import datetime
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, Field, SerializeAsAny

from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, bad_cursor, cut, decode_cursor
from apportion.doors.problems import Problem, problem_of
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.doors.schemas import Schema
from apportion.errors import ApportionError, InvalidInputError
from apportion.pools.schemas import QuotaResource
from apportion.reservations import explain
from apportion.reservations.calendar import gpu_calendar
from apportion.reservations.schemas import (
    BatchPlan,
    Defragmentation,
    Defragmented,
    PoolCapacity,
    QuotaExplained,
    ReservationAsk,
    ReservationCreate,
    ReservationExplained,
    ReservationUpdate,
    ReservationView,
    State,
)
from apportion.reservations.service import Reservations
from apportion.reservations.window_schemas import FreeWindows, FreeWindowsAsk, GpuCalendar, Outlook

router = APIRouter(route_class=Door, tags=["reservations"])

Instant = Annotated[str, Query(json_schema_extra={"format": "date-time"})]

BATCH_MAX = 500
"""The most reservations of one batch."""


class ReservationPage(Page[ReservationView]):
    """Reservations, newest first."""


class ReservationBatch(Schema):
    """Many asks in one go; give each its own idempotency_key."""

    reservations: Annotated[list[ReservationCreate], Field(min_length=1, max_length=BATCH_MAX)]


class BatchMade(BaseModel):
    """An ask that was placed or waits."""

    reservation: ReservationView


class BatchRefused(BaseModel):
    """An ask that was refused; the others stand."""

    error: Problem


class BatchAnswer(BaseModel):
    """One answer for each ask, in the same order, and what was planned for several together."""

    # What it is by itself is written twice as fast as what one of a union may be.
    items: list[SerializeAsAny[BatchMade | BatchRefused]]
    plans: list[BatchPlan]


async def _service(request: Request) -> Reservations:
    return cast("Reservations", request.app.state.reservations)


TheReservations = Annotated[Reservations, Depends(_service)]
ReservationId = Annotated[str, Path()]


@router.post("/v1/reservations", status_code=201, summary="Reserve; what has no room waits")
async def create_reservation(
    reservations: TheReservations,
    caller: TheCaller,
    request: ReservationCreate,
    key: KeyHeader = None,
) -> ReservationView:
    return await reservations.create(caller, one_key(request, key))


@router.post("/v1/reservations/batch", summary="Reserve many at once; each stands alone")
async def create_reservations(
    reservations: TheReservations, caller: TheCaller, batch: ReservationBatch, request: Request
) -> BatchAnswer:
    _check_no_key(request)
    outcomes, plans = await reservations.create_all(caller, batch.reservations)
    return BatchAnswer(
        items=[
            BatchRefused(error=problem_of(each, caller.request_id))
            if isinstance(each, ApportionError)
            else BatchMade(reservation=each)
            for each in outcomes
        ],
        plans=list(plans),
    )


@router.post(
    "/v1/reservations/earliest",
    summary="When an ask could start in each pool, or why never; nothing is held",
)
async def find_earliest(
    reservations: TheReservations, caller: TheCaller, request: ReservationAsk
) -> Outlook:
    return await reservations.find_earliest(caller, request)


@router.post(
    "/v1/reservations/free-windows",
    summary="The next windows in which an ask has room; nothing is held",
)
async def find_free_windows(
    reservations: TheReservations, caller: TheCaller, request: FreeWindowsAsk
) -> FreeWindows:
    return await reservations.find_free_windows(caller, request)


@router.get("/v1/reservations", summary="List reservations, newest first")
async def list_reservations(
    reservations: TheReservations,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    state: Annotated[list[State] | None, Query(description="May be repeated.")] = None,
    name: Filter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ReservationPage:
    found = await reservations.list(
        caller,
        before=position("list_reservations", cursor),
        limit=limit + 1,
        pool_id=pool_id,
        states=state,
        name=name,
    )
    items, following = cut(
        "list_reservations", found, limit, lambda each: [each.created_at.isoformat(), each.id]
    )
    return ReservationPage(items=items, next_cursor=following)


@router.get("/v1/reservations/{reservation_id}", summary="Show a reservation and what it has")
async def get_reservation(
    reservations: TheReservations, caller: TheCaller, reservation_id: ReservationId
) -> ReservationView:
    return await reservations.get(caller, reservation_id)


@router.get(
    "/v1/reservations/{reservation_id}/explain", summary="Why it waits, and what would make it fit"
)
async def explain_reservation(
    reservations: TheReservations, caller: TheCaller, reservation_id: ReservationId
) -> ReservationExplained:
    return await reservations.explain(caller, reservation_id)


@router.patch("/v1/reservations/{reservation_id}", summary="Let a reservation end later or sooner")
async def update_reservation(
    reservations: TheReservations,
    caller: TheCaller,
    reservation_id: ReservationId,
    request: ReservationUpdate,
) -> ReservationView:
    return await reservations.update(caller, reservation_id, request)


@router.post(
    "/v1/reservations/{reservation_id}/release", summary="End a reservation now, or cancel it"
)
async def release_reservation(
    reservations: TheReservations, caller: TheCaller, reservation_id: ReservationId
) -> ReservationView:
    return await reservations.release(caller, reservation_id)


@router.get(
    "/v1/pools/{pool_id}/capacity", summary="What is free now, and the largest request that fits"
)
async def get_pool_capacity(
    reservations: TheReservations,
    caller: TheCaller,
    *,
    pool_id: Annotated[str, Path()],
    duration: Annotated[str, Query(description="For how long: 1h, 90m.")] = "1h",
) -> PoolCapacity:
    return await reservations.capacity(caller, pool_id, duration)


@router.get(
    "/v1/pools/{pool_id}/quotas/{tenant_id}/{resource}/explain",
    summary="By which live reservations a quota is used",
)
async def explain_quota(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Annotated[str, Path()],
    tenant_id: Annotated[str, Path()],
    resource: Annotated[QuotaResource, Path()],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> QuotaExplained:
    [after] = decode_cursor("explain_quota", cursor, "")
    key = (tenant_id, pool_id, resource)
    found = await explain.explain_quota(runtime, caller, key, after=after, limit=limit + 1)
    uses, following = cut("explain_quota", found.uses, limit, lambda each: [each.id])
    return QuotaExplained(
        quota=found.quota,
        reservations=uses,
        next_cursor=following,
        accounted=found.accounted,
    )


@router.get("/v1/gpus/{gpu_id}/calendar", summary="Which units of a GPU are held when")
async def get_gpu_calendar(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    gpu_id: Annotated[str, Path()],
    start: Annotated[Instant | None, Query(description="Default: now.")] = None,
    end: Annotated[
        Instant | None, Query(description="Default: 24 hours after the start; 31 days at most.")
    ] = None,
) -> GpuCalendar:
    return await gpu_calendar(runtime, caller, gpu_id, start, end)


@router.post(
    "/v1/pools/{pool_id}/defragmentation",
    summary="Plan the fewest moves that make room in a pool, or make them",
)
async def defragment_pool(
    reservations: TheReservations,
    caller: TheCaller,
    pool_id: Annotated[str, Path()],
    request: Defragmentation,
) -> Defragmented:
    return await reservations.defragmenter.run(caller, pool_id, request)


def _check_no_key(request: Request) -> None:
    """Refuse a key for the whole batch: ignored in silence, a retry would book everything twice."""
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        raise InvalidInputError(
            "is not read for a batch",
            field="Idempotency-Key",
            given=key,
            allowed="an idempotency_key in each reservation",
        )


def position(operation: str, cursor: str | None) -> tuple[datetime, str] | None:
    """Read what a cursor of a list says: when the last one shown was created, and its id."""
    if cursor is None:
        return None
    created, last_id = decode_cursor(operation, cursor, "", "")
    try:
        instant = datetime.fromisoformat(created)
    except ValueError:
        raise bad_cursor(cursor) from None
    if instant.tzinfo is None:
        raise bad_cursor(cursor)
    return instant, last_id
