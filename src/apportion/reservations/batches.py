"""Batches that are planned as a whole, by the policy ``exact``: the most asks, the fewest GPUs.

A plan is made on a picture of its own, in a thread, and holds nothing: its places are then taken
like any others, where they are still free. Who comes between costs the plan its promise, never a
booking its exclusiveness.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from apportion.placement import Offer, PoolIndex
from apportion.placement.exact import Batch, place_batch_exact
from apportion.pools.service import PoolRecord
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet, micros
from apportion.reservations.plan import Decision, Placed
from apportion.reservations.schemas import BatchPlan
from apportion.reservations.slack import held_until
from apportion.solving import is_installed
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime

TIME_LIMIT: Final = timedelta(seconds=5)
"""How long the plan of a batch may be searched for."""

_Shared = tuple[str, datetime | None, datetime | None, timedelta | None]
"""What asks have in common that are planned together: the pool and the window."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Asks that were planned together in a pool, by id, and what was found for them."""

    pool_id: str
    drafts: tuple[Draft, ...]
    batch: Batch

    def told(self, decided: Mapping[str, Decision | None]) -> BatchPlan:
        """Say what came of it; the promise stands only where all of it was taken as planned."""
        placed = [each for draft in self.drafts if isinstance(each := decided[draft.id], Placed)]
        taken = {each.draft.id: each.offers[0] for each in placed}
        kept = all(taken.get(draft.id) == draft.offer for draft in self.drafts)
        return BatchPlan(
            pool_id=self.pool_id,
            policy="exact",
            asks=len(self.drafts),
            placed=len(placed),
            gpus=len({booking.gpu_id for each in placed for booking in each.bookings}),
            optimal=kept and self.batch.optimal,
            bound=self.batch.bound if kept else None,
        )


async def plan_exactly(
    runtime: Runtime, drafts: Sequence[Draft], pools: Mapping[str, PoolRecord]
) -> list[Plan]:
    """Plan those of a batch that are to be placed exactly; fewer than two need no plan."""
    together: dict[_Shared, list[Draft]] = {}
    for draft in drafts:
        if _is_exact(draft, pools):
            [pool_id] = draft.candidates
            shared = (pool_id, draft.asked_start, draft.asked_end, draft.duration)
            together.setdefault(shared, []).append(draft)
    together = {key: found for key, found in together.items() if len(found) > 1}
    if not together or not is_installed():
        return []
    now = runtime.now()
    # A picture of its own: the solver may take its time while others place on theirs.
    fleet = Fleet()
    async with transaction(runtime.db) as connection:
        await fleet.sync(connection, sorted({pool_id for pool_id, *_ in together}), now)
    return [
        await _plan(fleet.indexes[key[0]], pools[key[0]], found, now)
        for key, found in together.items()
    ]


async def _plan(index: PoolIndex, pool: PoolRecord, drafts: Sequence[Draft], now: datetime) -> Plan:
    start, end = drafts[0].window(drafts[0].starts(now)[0])
    window = micros(start), micros(held_until(end, pool)), micros(now)
    asks = [draft.ask for draft in drafts]
    batch = await asyncio.to_thread(place_batch_exact, index, asks, window, TIME_LIMIT)
    planned = tuple(
        draft._replace(offer=answer if isinstance(answer, Offer) else None)
        for draft, answer in zip(drafts, batch.answers, strict=True)
    )
    return Plan(pool.id, planned, batch)


def _is_exact(draft: Draft, pools: Mapping[str, PoolRecord]) -> bool:
    """Tell whether an ask is to be planned with others: by itself, or as its only pool has it."""
    if len(draft.candidates) != 1 or draft.members > 1 or draft.end_before is not None:
        return False
    [pool_id] = draft.candidates
    return (draft.policy or pools[pool_id].policy.placement) == "exact"
