"""Placing a batch of drafts: plan on the pictures, let the database judge, try again what lost."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from psycopg.errors import ExclusionViolation, UniqueViolation

from apportion.bookings import service as bookings
from apportion.errors import ConflictError, QuotaExceededError
from apportion.pools.service import Turn, archived_pools, hold_with_quotas
from apportion.reservations import rows
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet
from apportion.reservations.plan import Decision, Placed, Planner
from apportion.reservations.reasons import Refused
from apportion.reservations.stored import sooner_draft_of
from apportion.reservations.trying import Chosen, Stands, Try, decide_all, taken_of
from apportion.reservations.writing import MovedError, record, write, write_at_once
from apportion.store.connections import Connection, retrying
from apportion.store.groups import GoOn, Groups
from apportion.store.runtime import Runtime

CLASHES_MAX: Final = 8
"""Clashes after which drafts that keep losing are answered CONFLICT."""

TURNS_AFTER_CLASH: Final = 32
"""The transactions after a clash that place alone."""

LOOKS_MAX: Final = 4
"""How often one transaction looks for places that others do not take meanwhile."""

GROUP_MAX: Final = 200
"""The most drafts of several callers that are placed in one transaction."""


class _StaleError(Exception):
    """What was decided no longer fits what others committed meanwhile; decide again."""


class _PartError(Exception):
    """Of drafts that are placed all or none, some have no place."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        super().__init__()
        self.decisions = decisions


Prepare = Callable[[Connection], Awaitable[None]]
"""What is written before drafts that are placed all or none."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What one transaction is to place, how, and whom to tell when all of it is decided."""

    drafts: Sequence[Draft]
    turn: Turn
    decided_all: GoOn = lambda: None


_Outcome = tuple[dict[str, Decision | None], bool]
"""What became final, and whether anything clashed with what others did."""


class Placer:
    """Places batches on one fleet of pictures; any number of callers at a time."""

    def __init__(self, runtime: Runtime, fleet: Fleet) -> None:
        self._runtime = runtime
        self._fleet = fleet
        self._groups = Groups(self._place_all, most=GROUP_MAX, size=len)
        self._crowded: dict[frozenset[str], int] = {}

    async def join(self, drafts: Sequence[Draft]) -> dict[str, Decision | None]:
        """Do as `place`, in one transaction with what others here ask of the same pools just then.

        Who asks of other pools is not waited for: somebody may keep those closed.
        """
        if not drafts:
            return {}
        named = frozenset(pool_id for draft in drafts for pool_id in draft.candidates)
        return await self._groups.ask(named, drafts)

    async def _place_all(
        self, asks: Sequence[Sequence[Draft]], go_on: GoOn
    ) -> list[dict[str, Decision | None]]:
        decided = await self.place([draft for drafts in asks for draft in drafts], go_on)
        return [{draft.id: decided[draft.id] for draft in drafts} for drafts in asks]

    async def place(
        self, drafts: Sequence[Draft], decided_all: GoOn = lambda: None
    ) -> dict[str, Decision | None]:
        """Decide every draft and write what came of it; each stands by itself.

        None means that the reservation is there already: a retry, or somebody else was faster with
        a waiting one. ``decided_all`` is called when all are decided and none is written: who
        decides from then on sees in the pictures what these hold.
        """
        decided: dict[str, Decision | None] = {}
        queue: list[Draft] = list(drafts)
        named = frozenset(pool_id for draft in queue for pool_id in draft.candidates)
        clashes = 0
        while queue and clashes < CLASHES_MAX:
            turn: Turn = "alone" if named in self._crowded else "together"
            work = _Work(queue, turn, decided_all)
            final, clashed = await self._attempt(partial(self._once, work))
            self._note(named, turn, clashed=clashed)
            decided.update(final)
            queue = [draft for draft in queue if draft.id not in final]
            clashes += clashed
        for draft in queue:
            error = ConflictError(
                "others kept taking what was found free", hint="Ask again: what is free has changed"
            )
            decided[draft.id] = Refused(draft, error)
        return decided

    def _note(self, named: frozenset[str], turn: Turn, *, clashed: bool) -> None:
        """Remember where others place as well: from a clash on it is done alone for a while.

        Those who plan at once plan the same, and all but one of them have done it for nothing.
        """
        if clashed:
            self._crowded[named] = TURNS_AFTER_CLASH
        elif turn == "alone":
            left = self._crowded.pop(named, 1) - 1
            if left:
                self._crowded[named] = left

    async def place_whole(self, drafts: Sequence[Draft], prepare: Prepare) -> list[Decision]:
        """Place all of some new drafts, in one transaction, or none of them.

        Where not every decision is `Placed`, nothing was written, neither what ``prepare`` wrote.
        """
        for clashes in range(CLASHES_MAX):
            work = _Work(drafts, "alone" if clashes else "together")
            try:
                final, _ = await self._attempt(partial(self._whole, work, prepare))
            except _PartError as part:
                return list(part.decisions)
            if final:
                return [each for each in final.values() if each is not None]
        raise ConflictError(
            "others kept taking what was found free", hint="Ask again: what is free has changed"
        )

    async def bring_forward(self, drafts: Sequence[Draft]) -> int:
        """Give those whose start is reserved a sooner one, where there is room by now.

        Each is moved in a transaction of its own, whole or not at all. Returns how many were.
        """
        left: dict[str, Draft] = {draft.id: draft for draft in drafts}
        moved = clashes = 0
        while left and clashes < CLASHES_MAX:
            work = _Work(list(left.values()), "alone" if clashes else "together")
            looked_at, clashed = await self._attempt(partial(self._forward, work))
            moved += sum(each is not None for each in looked_at.values())
            left = {draft.id: draft for draft in left.values() if draft.id not in looked_at}
            clashes += clashed
        return moved

    async def _attempt(
        self, once: Callable[[Connection, list[Try]], Awaitable[_Outcome]]
    ) -> _Outcome:
        tries: list[Try] = []

        async def work(connection: Connection) -> _Outcome:
            # A database retry starts over: what the last run held in the pictures is not there.
            _let_go(tries)
            try:
                return await once(connection, tries)
            except (ExclusionViolation, UniqueViolation) as clash:
                # Re-dealt units were taken, or one idempotency key came in twice at once.
                raise _StaleError from clash

        try:
            outcome = await retrying(self._runtime.db, work)
        except (_StaleError, MovedError, QuotaExceededError):
            _let_go(tries)
            return {}, True
        except BaseException:
            _let_go(tries)
            raise
        for each in tries:
            if each.xid is not None:
                self._fleet.wrote(each.xid, each.doubts)
        return outcome

    async def _once(self, work: _Work, connection: Connection, tries: list[Try]) -> _Outcome:
        now = self._runtime.now()
        drafts = work.drafts
        current = await self._look(connection, work, now)
        tries.append(current)
        fresh = await _not_there(connection, drafts)
        decisions = decide_all(current, [draft for draft in drafts if draft.id in fresh])
        if len(decisions) == len(fresh):
            work.decided_all()
        chosen = await self._settle(connection, current, decisions, now)
        there = [draft.id for draft in drafts if draft.id not in fresh]
        final = dict.fromkeys(there) | {each.draft.id: each for each in chosen.kept}
        return final, bool(chosen.lost) or chosen.anew

    async def _settle(
        self, connection: Connection, current: Try, decisions: Sequence[Decision], now: datetime
    ) -> Chosen:
        """Write what was decided, and what is decided in its stead where others were faster."""
        chosen = Chosen(list(decisions))
        at_once = bool(chosen.placed) and not chosen.moves
        await self._hold(connection, current, chosen, now, at_once=at_once)
        if not chosen.written:
            if at_once:
                # What was tried is taken back; now each loses by itself.
                await self._hold(connection, current, chosen, now)
            refused = await write(connection, chosen, now)
            self._fleet.forget({e.pool.id for e in chosen.placed if e.draft.id in refused})
            chosen.lost |= refused
            await record(connection, chosen.kept, now)
        current.let_go(chosen.lost)
        return chosen

    async def _forward(self, work: _Work, connection: Connection, tries: list[Try]) -> _Outcome:
        """Move the first that can start sooner; those before it stay, and those behind are left."""
        now = self._runtime.now()
        current = await self._look(connection, work, now)
        tries.append(current)
        there = await rows.lock_reserved(connection, [draft.id for draft in work.drafts], now)
        places = await bookings.places_of(connection, list(there))
        looked_at: dict[str, Decision | None] = {}
        for draft in work.drafts:
            looked_at[draft.id] = None
            row = there.get(draft.id)
            if row is None:
                continue
            stands = Stands(row["pool_id"], places[draft.id], rows.charged(row))
            fresh = sooner_draft_of(row)._replace(by=draft.by)
            await _count_series(connection, current, row)
            sooner = current.bring_forward(fresh, stands)
            if sooner is not None:
                looked_at[draft.id] = await self._move(connection, current, (sooner, stands), now)
                break
        return looked_at, False

    async def _move(
        self, connection: Connection, current: Try, sooner: tuple[Placed, Stands], now: datetime
    ) -> Placed:
        """Give up where a reservation is, and take the place that was found for it."""
        found, stands = sooner
        before = await bookings.of_reservations(connection, [found.draft.id])
        chosen = Chosen([found])
        await self._hold(connection, current, chosen, now)
        if not chosen.placed:
            raise _StaleError
        [placed] = chosen.placed
        await bookings.finish(connection, [placed.draft.id], now)
        if await write(connection, chosen, now):
            raise _StaleError
        await record(connection, [placed], now, given_back=stands.charges)
        await rows.tell_sooner(connection, placed, before[placed.draft.id], now)
        return placed

    async def _whole(
        self,
        work: _Work,
        prepare: Prepare,
        connection: Connection,
        tries: list[Try],
    ) -> _Outcome:
        now = self._runtime.now()
        drafts = work.drafts
        current = await self._look(connection, work, now)
        tries.append(current)
        await prepare(connection)
        decisions: list[Decision] = []
        while rest := drafts[len(decisions) :]:
            # What deals others' units again is written by itself: they must be there to be dealt.
            chosen = Chosen(decide_all(current, rest))
            await self._hold(connection, current, chosen, now)
            some = chosen.decisions
            if not all(isinstance(each, Placed) for each in some):
                others = [current.decide(draft) for draft in rest[len(some) :]]
                raise _PartError([*decisions, *some, *others])
            if chosen.lost or await write(connection, chosen, now):
                raise _StaleError
            decisions += some
        await record(connection, decisions, now)
        return {each.draft.id: each for each in decisions}, False

    async def _look(self, connection: Connection, work: _Work, now: datetime) -> Try:
        """Hold the pools of some drafts, bring their pictures up to date, and read quotas."""
        drafts = work.drafts
        # Who may use what is read here once more, and held: the ask was admitted some time ago.
        callers = [draft.by for draft in drafts]
        named = {pool_id for draft in drafts for pool_id in draft.candidates}
        pools, quotas = await hold_with_quotas(connection, callers, named, work.turn)
        usable = {pool_id for _, pool_id in pools}
        gone = {
            pool_id
            for draft in drafts
            for pool_id in draft.candidates
            if (draft.tenant_id, pool_id) not in pools
        }
        archived = await archived_pools(connection, gone) if gone else ()
        # Before looking who is there: whoever commits after that look is read at the next sync.
        horizon = await self._fleet.sync(connection, sorted(usable), now)
        planner = Planner(self._fleet, pools, archived, quotas, now)
        return Try(self._fleet, horizon, planner, self._fleet.doubts)

    async def _hold(
        self,
        connection: Connection,
        current: Try,
        chosen: Chosen,
        now: datetime,
        *,
        at_once: bool = False,
    ) -> None:
        """Hold what was found; what others took meanwhile is decided again, and held in its stead.

        Each time costs one trip, in which all is read that others did: see `bookings.hold`; or, if
        ``at_once``, all is written where they did nothing: see `write_at_once`. What nobody will
        have found a place by then, or has on a GPU that was cut otherwise, is lost.
        """
        for looks in range(1, LOOKS_MAX + 1):
            placed, plan = chosen.placed, chosen.plan
            if not (placed or chosen.held):
                break
            since = self._fleet.known(current.horizon)
            holding = (
                await write_at_once(connection, chosen, since, now)
                if at_once
                else await bookings.hold(connection, plan, since, now, again=chosen.held)
            )
            chosen.held = True
            if holding is None:
                break
            if chosen.written:
                current.xid = holding.xid
                break
            chosen.lost |= {b.reservation_id for b in plan.bookings if b.gpu_id not in holding.gpus}
            if not holding.tells:
                break
            if any(each.moves for each in placed):
                raise _StaleError
            self._fleet.learn(holding, since.position)
            taken = taken_of(plan.bookings, holding) | current.overfull(placed)
            if not taken:
                break
            current.let_go(taken | chosen.lost)
            chosen.anew = True
            if looks == LOOKS_MAX:
                chosen.lost |= taken
            else:
                chosen.decide_again(current, taken - chosen.lost)


async def _count_series(connection: Connection, current: Try, row: Mapping[str, Any]) -> None:
    """Reckon with what the others of its series are charged, where one of it is placed anew."""
    if row["series_id"] is None:
        return
    others = await rows.charged_of_series(
        connection, row["series_id"], row["tenant_id"], row["pool_id"], row["charged_tenant_id"]
    )
    for resource, amount in rows.read_charges(row["charges"]).items():
        others[resource] -= amount
    current.planner.count_series(row["series_id"], row["pool_id"], others)


def _let_go(tries: list[Try]) -> None:
    for each in tries:
        each.let_go()
    tries.clear()


async def _not_there(connection: Connection, drafts: Sequence[Draft]) -> set[str]:
    """Return the ids of the drafts that are still to be placed."""
    waiting = [draft.id for draft in drafts if draft.waiting]
    new = {draft.id for draft in drafts if not draft.waiting}
    pending = await rows.lock_pending(connection, waiting)
    return pending | new - await rows.existing(connection, new)
