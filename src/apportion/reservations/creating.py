"""Creating reservations: from requests, each admitted or refused, to what became of each."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from apportion.authority.service import Caller
from apportion.errors import ApportionError, ConflictError, QuotaExceededError
from apportion.pools.service import PoolRecord, find_all_records
from apportion.quantities.ids import derive_id
from apportion.reservations import rows
from apportion.reservations.admission import Draft, asked_texts, request_hash
from apportion.reservations.batches import plan_exactly
from apportion.reservations.drafting import Drafting, Identity, named_pools
from apportion.reservations.lifecycle import Lifecycle
from apportion.reservations.placer import Placer
from apportion.reservations.plan import Decision, Placed
from apportion.reservations.reasons import Refused, Waiting
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import BatchPlan, ReservationCreate
from apportion.store.connections import transaction
from apportion.store.groups import READ_MAX, GoOn, Groups, in_turns
from apportion.store.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Made:
    """A reservation that answers an ask, and how it was decided if that was just now."""

    id: str
    decision: Placed | Waiting | None


@dataclass(frozen=True, slots=True)
class Created:
    """An answer to each ask, in their order, and what was planned for several together."""

    answers: Sequence[Made | ApportionError]
    plans: Sequence[BatchPlan]


class Creating:
    """What asks go through on their way to the placer; the clock is made up for before."""

    def __init__(self, runtime: Runtime, placer: Placer, lifecycle: Lifecycle) -> None:
        self._runtime = runtime
        self._placer = placer
        self._lifecycle = lifecycle
        self._records = Groups(self._find_records, most=READ_MAX)
        self._placing: set[str] = set()
        self._placed = asyncio.Condition()

    async def create(self, caller: Caller, requests: Sequence[ReservationCreate]) -> Created:
        """Place many asks in one go; each answer is what was made or its own error."""
        ids = [self._id_of(caller, request) for request in requests]
        keyed = {ids[at] for at, each in enumerate(requests) if each.idempotency_key is not None}
        if not keyed:
            return await self._create(caller, requests, ids, keyed)
        async with self._alone(keyed):
            return await self._create(caller, requests, ids, keyed)

    async def _create(
        self,
        caller: Caller,
        requests: Sequence[ReservationCreate],
        ids: Sequence[str],
        keyed: Collection[str],
    ) -> Created:
        texts = asked_texts(requests)
        hashes = [request_hash(each.name, text) for each, text in zip(requests, texts, strict=True)]
        pool_ids = sorted({pool for each in requests for pool in named_pools(each)})
        pools = await self._records.ask(None, (caller, pool_ids))
        drafts: dict[str, Draft] = {}
        refused: dict[int, ApportionError] = {}
        drafting = Drafting(caller, Rights(caller, pools))
        async for at, request in in_turns(enumerate(requests)):
            if ids[at] in drafts:
                continue
            try:
                identity = Identity(ids[at], hashes[at])
                now = self._runtime.now()
                drafts[ids[at]] = drafting.draft(request, texts[at], identity, now)
            except ApportionError as error:
                # Its traceback would keep this very call, and all that was asked, in a cycle.
                refused[at] = error.with_traceback(None)
        plans = await plan_exactly(self._runtime, list(drafts.values()), pools)
        drafts |= {draft.id: draft for plan in plans for draft in plan.drafts}
        # What a plan has no room for must not take the place of what it has.
        in_turn = sorted(drafts.values(), key=lambda draft: draft.offer is None)
        decided = await self._place_once(in_turn)
        # A retry gets its answer also where the same ask is refused by now: its window has begun.
        again = {ids[at] for at in refused} & set(keyed)
        stored = await self._hashes([*again, *(each for each in decided if decided[each] is None)])
        asked = {each.id: each.request_hash for each in drafts.values()} | stored
        answers = [
            refused[at]
            if at in refused and own_id not in stored
            else _answer(own_id, decided.get(own_id), asked[own_id], hashes[at])
            for at, own_id in enumerate(ids)
        ]
        return Created(answers, [plan.told(decided) for plan in plans])

    @asynccontextmanager
    async def _alone(self, ids: Collection[str]) -> AsyncGenerator[None]:
        """Wait for those here that place one of these ids, and keep others waiting.

        The database refuses a twin, but what it holds in the pictures until then could make the
        last room look taken to the very ask that it is a twin of.
        """
        async with self._placed:
            await self._placed.wait_for(lambda: self._placing.isdisjoint(ids))
            self._placing.update(ids)
        try:
            yield
        finally:
            self._placing.difference_update(ids)
            async with self._placed:
                self._placed.notify_all()

    async def _find_records(
        self, asking: Sequence[tuple[Caller, Sequence[str]]], _: GoOn
    ) -> list[dict[str, PoolRecord]]:
        async with transaction(self._runtime.db) as connection:
            found = await find_all_records(connection, asking)
        return [
            {
                pool_id: found[caller.tenant_id, pool_id]
                for pool_id in pool_ids
                if (caller.tenant_id, pool_id) in found
            }
            for caller, pool_ids in asking
        ]

    async def _place_once(self, drafts: Sequence[Draft]) -> dict[str, Decision | None]:
        """Place; what the quota refuses is tried once more after what is over has been ended."""
        await self._lifecycle.catch_up()
        decided = await self._placer.join(drafts)
        refused = [
            draft
            for draft in drafts
            if isinstance(decision := decided[draft.id], Refused)
            and isinstance(decision.error, QuotaExceededError)
        ]
        if refused and await self._lifecycle.end_due():
            decided.update(await self._placer.join(refused))
        for decision in decided.values():
            if isinstance(decision, Placed):
                self._lifecycle.expect(decision.end)
        return decided

    def _id_of(self, caller: Caller, request: ReservationCreate) -> str:
        key = request.idempotency_key
        if key is None:
            return self._runtime.new_id("res")
        return derive_id("res", caller.tenant_id, caller.actor, key)

    async def _hashes(self, reservation_ids: Sequence[str]) -> dict[str, bytes]:
        if not reservation_ids:
            return {}
        async with transaction(self._runtime.db) as connection:
            return await rows.hashes(connection, reservation_ids)


def _answer(
    reservation_id: str, decision: Decision | None, there: bytes, asked: bytes
) -> Made | ApportionError:
    if isinstance(decision, Refused):
        return decision.error
    if there == asked:
        return Made(reservation_id, decision if isinstance(decision, Placed | Waiting) else None)
    return ConflictError(
        "this key was used for another ask",
        field="idempotency_key",
        details={"reservation_id": reservation_id},
    )
