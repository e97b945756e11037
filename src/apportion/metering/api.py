"""Routes of metering."""

from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Query

from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.errors import InvalidInputError
from apportion.metering.schemas import UsageItem, UsageTotal, UsageView
from apportion.metering.service import UsageRow, unheard, usage
from apportion.quantities.shares import decimal_text, format_share
from apportion.quantities.windows import parse_instant

router = APIRouter(route_class=Door, tags=["metering"])

Instant = Annotated[str, Query(json_schema_extra={"format": "date-time"})]


@router.get("/v1/usage", summary="Exact GPU hours within a window, by meter, pool and class")
async def get_usage(
    runtime: TheRuntime,
    caller: TheCaller,
    start: Annotated[Instant, Query(description="The first instant that counts.")],
    end: Annotated[
        Instant | None, Query(description="The first instant that does not count; default now.")
    ] = None,
) -> UsageView:
    since = parse_instant(start, field="start")
    until = runtime.now() if end is None else parse_instant(end, field="end")
    if end is None and since >= until:
        raise InvalidInputError(
            "lies in the future", field="start", given=start, allowed="an instant before now"
        )
    rows = await usage(runtime, caller, since, until)
    return UsageView(
        start=since,
        end=until,
        items=[_item(row) for row in rows],
        totals=_totals(rows),
        unheard=await unheard(runtime, caller, since, until),
    )


def _item(row: UsageRow) -> UsageItem:
    return UsageItem.model_validate(
        {
            "meter": row.meter,
            "pool_id": row.pool_id,
            "class": row.cls,
            "gpu_hours": format_share(row.gpu_hours),
            "gpu_hours_decimal": decimal_text(row.gpu_hours),
        }
    )


def _totals(rows: list[UsageRow]) -> list[UsageTotal]:
    totals: dict[str, Fraction] = {}
    for row in rows:
        totals[row.meter] = totals.get(row.meter, Fraction(0)) + row.gpu_hours
    return [
        UsageTotal(
            meter=meter, gpu_hours=format_share(hours), gpu_hours_decimal=decimal_text(hours)
        )
        for meter, hours in sorted(totals.items())
    ]
