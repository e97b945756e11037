"""Placing a batch of drafts: plan on the pictures, let the database judge, try again what lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from psycopg.errors import ExclusionViolation, UniqueViolation

from apportion.bookings import service as bookings
from apportion.errors import ConflictError, QuotaExceededError
from apportion.pools.service import PoolRecord, QuotaKey, charge, read_quotas
from apportion.reservations import rows
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet
from apportion.reservations.plan import Decision, Placed, Planner, Refused, Waiting
from apportion.store.connections import Connection, retrying
from apportion.store.runtime import Runtime
from apportion.tenants.service import Caller

ATTEMPTS_MAX: Final = 8
"""Tries after which a draft that keeps losing clashes is answered CONFLICT."""


class _StaleError(Exception):
    """What was decided no longer fits what others committed meanwhile; decide again."""


@dataclass(slots=True)
class _Round:
    """One attempt: what was decided, what is final, and what lost and goes into the next."""

    final: dict[str, Decision | None] = field(default_factory=dict[str, Decision | None])
    lost: list[Draft] = field(default_factory=list[Draft])


class Placer:
    """Places batches on one fleet of pictures; any number of callers at a time."""

    def __init__(self, runtime: Runtime, fleet: Fleet) -> None:
        self._runtime = runtime
        self._fleet = fleet

    async def place(
        self, caller: Caller, drafts: Sequence[Draft], pools: Mapping[str, PoolRecord]
    ) -> dict[str, Decision | None]:
        """Decide every draft and write what came of it; each stands or falls by itself.

        None means that the reservation is there already: a retry, or somebody else was faster with
        a waiting one.
        """
        decided: dict[str, Decision | None] = {}
        queue = list(drafts)
        for _ in range(ATTEMPTS_MAX):
            if not queue:
                break
            done = await self._attempt(caller, queue, pools)
            decided.update(done.final)
            queue = done.lost
        for draft in queue:
            error = ConflictError(
                "others kept taking what was found free", hint="Ask again: what is free has changed"
            )
            decided[draft.id] = Refused(draft, error)
        return decided

    async def _attempt(
        self, caller: Caller, drafts: Sequence[Draft], pools: Mapping[str, PoolRecord]
    ) -> _Round:
        held: list[Placed] = []
        planners: list[Planner] = []

        async def work(connection: Connection) -> _Round:
            # A database retry starts over: what the last run held in the pictures is not there.
            _undo(planners, held)
            try:
                return await self._once(
                    connection, caller, drafts, pools, planners=planners, held=held
                )
            except (ExclusionViolation, UniqueViolation) as clash:
                # Re-dealt units were taken, or one idempotency key came in twice at once.
                raise _StaleError from clash

        try:
            return await retrying(self._runtime.db, work)
        except (_StaleError, QuotaExceededError):
            _undo(planners, held)
            return _Round(lost=list(drafts))
        except BaseException:
            _undo(planners, held)
            raise

    async def _once(
        self,
        connection: Connection,
        caller: Caller,
        drafts: Sequence[Draft],
        pools: Mapping[str, PoolRecord],
        *,
        planners: list[Planner],
        held: list[Placed],
    ) -> _Round:
        now = self._runtime.now()
        fresh, known = await self._sort_out(connection, drafts)
        await self._fleet.sync(connection, list(pools), now)
        quotas = await read_quotas(connection, [draft.tenant_id for draft in drafts])
        planner = Planner(self._fleet, pools, quotas, now)
        planners[:] = [planner]
        done = _Round({draft.id: None for draft in known})
        decisions = _decide(planner, fresh, held, done)
        lost = await self._write(connection, decisions, now)
        kept = [each for each in decisions if each.draft.id not in lost]
        await self._record(connection, caller, kept, now)
        for placed in [each for each in held if each.draft.id in lost]:
            held.remove(placed)
            planner.undo(placed)
        done.lost.extend(each.draft for each in decisions if each.draft.id in lost)
        done.final.update({each.draft.id: each for each in kept})
        return done

    async def _sort_out(
        self, connection: Connection, drafts: Sequence[Draft]
    ) -> tuple[list[Draft], list[Draft]]:
        """Tell the drafts that are still to be placed from those that are there already."""
        waiting = [draft.id for draft in drafts if draft.waiting]
        locked = await rows.lock_pending(connection, waiting)
        there = await rows.existing(connection, [d.id for d in drafts if not d.waiting])
        known = [d for d in drafts if (d.id not in locked if d.waiting else d.id in there)]
        fresh = [d for d in drafts if d not in known]
        return fresh, known

    async def _write(
        self, connection: Connection, decisions: Sequence[Decision], now: datetime
    ) -> set[str]:
        """Book what was found, in the order of locks; returns the ids of those that lost."""
        placed = [each for each in decisions if isinstance(each, Placed)]
        hosts = [each.host for each in placed if each.host is not None]
        overfull = await bookings.insert_host(connection, hosts)
        lost = {host.reservation_id for host in hosts if host.node_id in overfull}
        standing = [each for each in placed if each.draft.id not in lost]
        moves = [move for each in standing for move in each.offer.moves]
        if not await bookings.redeal(connection, moves, now):
            raise _StaleError
        wanted = [booking for each in standing for booking in each.bookings]
        won = await bookings.insert(connection, wanted)
        lost |= {booking.reservation_id for booking in wanted if booking.key not in won}
        if lost and moves:
            raise _StaleError
        await bookings.withdraw(connection, lost)
        return lost

    async def _record(
        self, connection: Connection, caller: Caller, kept: Sequence[Decision], now: datetime
    ) -> None:
        placed = [each for each in kept if isinstance(each, Placed)]
        waiting = [each for each in kept if isinstance(each, Waiting)]
        await rows.write(connection, placed, waiting, now)
        charges: dict[QuotaKey, Decimal] = {}
        for each in placed:
            for resource, amount in each.draft.charges.items():
                key = (each.draft.tenant_id, each.pool.id, resource)
                charges[key] = charges.get(key, Decimal(0)) + amount
        await charge(connection, charges)
        await rows.tell(connection, caller, now, placed, waiting)


def _decide(
    planner: Planner, drafts: Sequence[Draft], held: list[Placed], done: _Round
) -> list[Decision]:
    """Decide in order; a draft that re-deals others' units is written in a transaction of its own.

    A clash of re-dealt units aborts the transaction, which must cost nobody else their place.
    """
    decisions: list[Decision] = []
    for at, draft in enumerate(drafts):
        decision = planner.decide(draft)
        if isinstance(decision, Placed):
            if decision.offer.moves and decisions:
                planner.undo(decision)
                done.lost.extend(drafts[at:])
                break
            held.append(decision)
        decisions.append(decision)
        if isinstance(decision, Placed) and decision.offer.moves:
            done.lost.extend(drafts[at + 1 :])
            break
    return decisions


def _undo(planners: Sequence[Planner], held: list[Placed]) -> None:
    for planner in planners:
        for placed in held:
            planner.undo(placed)
    held.clear()
