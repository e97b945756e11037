"""Reservations: create, look at, change, release."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apportion.authority.service import Caller
from apportion.errors import (
    ApportionError,
    ConflictError,
    InvalidInputError,
    InvalidStateError,
    NotFoundError,
)
from apportion.pools.service import PoolRecord, hold_records
from apportion.quantities.windows import parse_duration
from apportion.reservations import rows
from apportion.reservations.admission import (
    attributes_of,
)
from apportion.reservations.capacity import pool_capacity
from apportion.reservations.changing import (
    NewEnd,
    OvertakenError,
    Row,
    asked,
    change_end,
    read_end,
)
from apportion.reservations.creating import Creating, Made
from apportion.reservations.defragmenting import Defragmenter
from apportion.reservations.demand import waiting_asks
from apportion.reservations.ending import end_now
from apportion.reservations.ends import end_text, told_at
from apportion.reservations.explaining import explain, look_around, usable_pools
from apportion.reservations.fleet import Fleet
from apportion.reservations.lengths import check_length
from apportion.reservations.lifecycle import Lifecycle
from apportion.reservations.outlook import find_earliest, find_free_windows
from apportion.reservations.placer import CLASHES_MAX, Placer
from apportion.reservations.rights import check_update
from apportion.reservations.schemas import (
    BatchPlan,
    PoolCapacity,
    ReservationAsk,
    ReservationCreate,
    ReservationExplained,
    ReservationUpdate,
    ReservationView,
)
from apportion.reservations.series import SeriesService
from apportion.reservations.stored import draft_of
from apportion.reservations.views import show_all, show_made
from apportion.reservations.window_schemas import FreeWindows, FreeWindowsAsk, Outlook
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.groups import in_turns
from apportion.store.runtime import Runtime

__all__ = ["CLASHES_MAX", "Reservations", "Standing", "waiting_asks"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Live reservations by pool, and pending ones by the code of their reason."""

    live: Mapping[str, int]
    waiting: Mapping[str, int]


class Reservations:
    """The service on one runtime; it keeps the pictures of pools that placement works on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.fleet = Fleet()
        self.placer = Placer(runtime, self.fleet)
        self.lifecycle = Lifecycle(runtime, self.fleet, self.placer)
        self.defragmenter = Defragmenter(runtime, self.lifecycle)
        self.series = SeriesService(runtime, self.fleet, self.placer)
        self._creating = Creating(runtime, self.placer, self.lifecycle)

    async def create(self, caller: Caller, request: ReservationCreate) -> ReservationView:
        """Place the ask, or let it wait with the reason.

        A retry with the same idempotency key returns the first answer's reservation. Raises
        InvalidInputError, NotFoundError (a pool), QuotaExceededError, ConflictError (the key was
        used for another ask, or others kept winning).
        """
        if request.placement.policy == "exact":
            raise InvalidInputError(
                "plans the asks of a batch together, and this is one",
                field="placement.policy",
                given="exact",
                allowed="first, best, spread or fragmentation, or several asks in a batch",
            )
        [outcome], _ = await self.create_all(caller, [request])
        if isinstance(outcome, ApportionError):
            raise outcome
        return outcome

    async def create_all(
        self, caller: Caller, requests: Sequence[ReservationCreate]
    ) -> tuple[Sequence[ReservationView | ApportionError], Sequence[BatchPlan]]:
        """Do as `create_many`; return the reservations as they are shown, and what was planned."""
        created = await self._creating.create(caller, requests)
        made = created.answers
        there = [each.id for each in made if isinstance(each, Made) and each.decision is None]
        stored = await self.get_many(caller, there) if there else {}
        answers = [
            each
            if isinstance(each, ApportionError)
            else stored[each.id]
            if each.decision is None
            else show_made(each.decision)
            async for each in in_turns(made)
        ]
        return answers, created.plans

    async def create_many(
        self, caller: Caller, requests: Sequence[ReservationCreate]
    ) -> Sequence[str | ApportionError]:
        """Place many asks in one go; each answer is the reservation's id or its own error."""
        created = await self._creating.create(caller, requests)
        return [each if isinstance(each, ApportionError) else each.id for each in created.answers]

    async def get(self, caller: Caller, reservation_id: str) -> ReservationView:
        """Return one of the caller's reservations; NotFoundError for any other."""
        async with transaction(self._runtime.db) as connection:
            row = await _find(connection, caller, reservation_id, "find")
            return (await show_all(connection, [row]))[0]

    async def explain(self, caller: Caller, reservation_id: str) -> ReservationExplained:
        """Say why one of the caller's waits, what would make it fit, and what it waited for before.

        Raises NotFoundError for any other's. Nothing is held.
        """
        usable = await usable_pools(self._runtime, caller)
        async with transaction(self._runtime.db) as connection:
            row = await _find(connection, caller, reservation_id, "find")
            [view] = await show_all(connection, [row])
            history = await rows.history(connection, reservation_id)
            now = self._runtime.now()
            sight = await look_around(
                connection, self.fleet, caller, {*usable, *row["candidates"]}, now
            )
        # From here on nothing is awaited: what is held would else change while it is told.
        draft = draft_of(row)._replace(by=caller)
        pools, suggestions = explain(sight, draft if row["state"] == "pending" else None)
        return ReservationExplained(
            reservation=view,
            at=now,
            pools=pools,
            suggestions=suggestions,
            history=history,
            changes=max((each.reason.get("changes", 0) for each in history), default=0),
        )

    async def capacity(self, caller: Caller, pool_id: str, duration: str) -> PoolCapacity:
        """Tell what of a pool is free from now on for a duration, and the largest that fits.

        Raises NotFoundError for a pool that the caller may not use, InvalidInputError.
        """
        length = parse_duration(duration, field="duration")
        return await pool_capacity(self._runtime, self.fleet, caller, pool_id, length)

    async def get_many(
        self, caller: Caller, reservation_ids: Sequence[str]
    ) -> dict[str, ReservationView]:
        """Return those of some reservations that the caller has, by id."""
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(
                rows.QUERIES["find_many"],
                {"tenant_id": caller.tenant_id, "ids": list(reservation_ids)},
            )
            return {view.id: view for view in await show_all(connection, await cursor.fetchall())}

    async def list(
        self,
        caller: Caller,
        *,
        before: tuple[datetime, str] | None = None,
        limit: int = 100,
        pool_id: str | None = None,
        states: Sequence[str] | None = None,
        name: str | None = None,
    ) -> list[ReservationView]:
        """Return the caller's reservations, newest first, those before a position."""
        parameters = {
            "tenant_id": caller.tenant_id,
            "before": "infinity" if before is None else before[0],
            "before_id": "" if before is None else before[1],
            "limit": limit,
            "pool_id": pool_id,
            "states": None if states is None else list(states),
            "name": name,
        }
        async with transaction(self._runtime.db) as connection:
            # Planned for the filters that there are: a plan for any of them would read all.
            cursor = await connection.execute(rows.QUERIES["list"], parameters, prepare=False)
            return await show_all(connection, await cursor.fetchall())

    async def standing(self, caller: Caller) -> Standing:
        """Return how many of the caller's reservations live where, and why how many wait."""
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(
                rows.QUERIES["standing"], {"tenant_id": caller.tenant_id}
            )
            found = await cursor.fetchall()
        live: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for row in found:
            if row["state"] == "pending":
                waiting[row["code"]] = waiting.get(row["code"], 0) + row["count"]
            else:
                live[row["pool_id"]] = live.get(row["pool_id"], 0) + row["count"]
        return Standing(live, waiting)

    async def find_earliest(self, caller: Caller, request: ReservationAsk) -> Outlook:
        """Tell when an ask could start in each of its pools, or why never; nothing is held."""
        return await find_earliest(self._runtime, self.fleet, caller, request)

    async def find_free_windows(self, caller: Caller, request: FreeWindowsAsk) -> FreeWindows:
        """Tell the next windows in which an ask has room; nothing is held."""
        return await find_free_windows(self._runtime, self.fleet, caller, request)

    async def release(self, caller: Caller, reservation_id: str) -> ReservationView:
        """End a reservation now: what has begun is billed till now, what has not is cancelled.

        Releasing one that has ended changes nothing.
        """
        ended: list[str] = []

        async def work(connection: Connection) -> ReservationView:
            ended.clear()
            row = await _find(connection, caller, reservation_id, "lock")
            now = self._runtime.now()
            if row["state"] in ("pending", "placed", "active"):
                await end_now(connection, caller, [row], now, f"by {caller.actor}")
                ended.append(reservation_id)
            row = await _find(connection, caller, reservation_id, "find")
            return (await show_all(connection, [row]))[0]

        await self.lifecycle.catch_up()
        view = await retrying(self._runtime.db, work)
        if ended:
            # Who waits is tried by the clock's loop, at once: the one who releases does not wait.
            self.lifecycle.hint.set()
        return view

    async def update(
        self, caller: Caller, reservation_id: str, request: ReservationUpdate
    ) -> ReservationView:
        """Let a live reservation end later or sooner; what it has stays where it is.

        Raises NotFoundError, InvalidStateError (it ended, waits, or its pool went), ForbiddenError,
        InvalidInputError, and ConflictError, which says until when it could be kept.
        """
        sooner = False

        async def work(connection: Connection) -> ReservationView:
            nonlocal sooner
            found = await _find(connection, caller, reservation_id, "find")
            # Who may use the pool is held first: gates come before all other locks.
            named = [] if found["pool_id"] is None else [found["pool_id"]]
            pools = await hold_records(connection, caller, named)
            row = await _find(connection, caller, reservation_id, "lock")
            if row["pool_id"] != found["pool_id"]:
                raise OvertakenError
            now = self._runtime.now()
            end = read_end(request, row, now)
            pool = _check_change(caller, pools, row, (end, asked(request)))
            sooner = end < row["ends_at"]
            if end != row["ends_at"]:
                await change_end(connection, caller, row, NewEnd(end, told_at(end, pool)), now)
            row = await _find(connection, caller, reservation_id, "find")
            return (await show_all(connection, [row]))[0]

        view = await self._until_settled(work)
        if sooner:
            self.lifecycle.hint.set()
        return view

    async def _until_settled(
        self, work: Callable[[Connection], Awaitable[ReservationView]]
    ) -> ReservationView:
        """Look again where what was to make way ended or began while it was looked at."""
        for _ in range(CLASHES_MAX):
            with suppress(OvertakenError):
                return await retrying(self._runtime.db, work)
        raise ConflictError("others kept changing what is in the way", hint="Ask again")


def _check_change(
    caller: Caller,
    pools: Mapping[str, PoolRecord],
    row: Row,
    wanted: tuple[datetime, Mapping[str, Any]],
) -> PoolRecord:
    """Refuse what access policies do not allow, nor the pool's, nor a pool that went; return it."""
    end, given = wanted
    pool = pools.get(row["pool_id"])
    if pool is None:
        raise InvalidStateError(
            "its pool is archived, or no longer offered to its tenant",
            given=row["pool_id"],
            hint=f"It keeps what it has {_kept(row)}",
        )
    draft = draft_of(row)
    attributes = attributes_of(draft.ask, end - row["starts_at"], members=draft.members)
    check_update(caller, pool, attributes, longer=end > row["ends_at"])
    check_length(pool, end - row["starts_at"], **given)
    return pool


def _kept(row: Row) -> str:
    end = end_text(row)
    return "till a release" if end is None else f"until {end}, or till a release"


async def _find(
    connection: Connection, caller: Caller, reservation_id: str, query: str
) -> dict[str, Any]:
    cursor = await connection.execute(
        rows.QUERIES[query], {"tenant_id": caller.tenant_id, "id": reservation_id}
    )
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError("no such reservation", field="reservation_id", given=reservation_id)
    return row
