"""Usage from bookings: each booking's window within the asked one, times its share of a GPU hour.

Nothing is sampled: what is billed follows from when a window began and ended, so an outage of ours
changes nothing and adjoining ranges add up exactly.
"""

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Final

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.errors import InvalidInputError
from apportion.metering.schemas import UnheardUsage
from apportion.pools.service import gpu_models
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime

_MICROSECONDS_PER_HOUR: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Exact GPU hours of one meter, pool and class in a window."""

    meter: str
    pool_id: str
    cls: str
    gpu_hours: Fraction


def meter_of(gpu_model: str) -> str:
    """Return the meter of a GPU model: ``gpu.h100.hours``."""
    return f"gpu.{gpu_model.casefold().replace(' ', '-')}.hours"


async def unheard(
    runtime: Runtime, caller: Caller, start: datetime, end: datetime
) -> list[UnheardUsage]:
    """Return what of the caller's usage within [start, end) nodes were silent about, by pool."""
    until = min(end, runtime.now())
    async with transaction(runtime.db) as connection:
        found = await bookings.unheard_usage(connection, caller.tenant_id, start, max(start, until))
    return [UnheardUsage.model_validate(row) for row in found]


async def usage(
    runtime: Runtime, caller: Caller, start: datetime, end: datetime | None = None
) -> list[UsageRow]:
    """Return what the caller has used within [start, end); the future is not used yet.

    Raises InvalidInputError when the window is empty.
    """
    now = runtime.now()
    until = now if end is None else min(end, now)
    if end is not None and end <= start:
        raise InvalidInputError("must lie after the start", field="end", given=end.isoformat())
    async with transaction(runtime.db) as connection:
        used = await bookings.usage(connection, caller.tenant_id, start, max(start, until))
        models = await gpu_models(connection, sorted({row["pool_id"] for row in used}))
    totals: dict[tuple[str, str], Fraction] = {}
    for row in used:
        share = Fraction(row["share_num"], row["share_den"])
        hours = share * Fraction(row["microseconds"], _MICROSECONDS_PER_HOUR)
        key = (row["pool_id"], row["class"])
        totals[key] = totals.get(key, Fraction(0)) + hours
    return [
        UsageRow(meter_of(models[pool_id]), pool_id, cls, hours)
        for (pool_id, cls), hours in sorted(totals.items())
    ]
