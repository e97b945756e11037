"""Defragmenting a pool: the fewest reservations that lie elsewhere, so that others fit.

A reservation may be moved while it has not begun; one that runs only where its owner and its pool
allow it, and then by notice: it ends where it is, and goes on as another one that is there by then.
Plans are made on a picture of their own, away from those who place meanwhile; what the picture
missed the database refuses, and nothing is changed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from apportion.authority.service import SYSTEM, Caller
from apportion.bookings import service as bookings
from apportion.bookings.service import PieceHeld
from apportion.errors import ConflictError, InvalidInputError
from apportion.events.service import append
from apportion.placement import Movable, Offer, Plan, Wanted, regroup
from apportion.pools.service import PoolRecord, charge, hold_record, hold_with_quotas
from apportion.quantities.units import to_multirange
from apportion.quantities.windows import parse_duration
from apportion.reservations import rows
from apportion.reservations.admission import Draft
from apportion.reservations.capacity import shown_largest, stale_in
from apportion.reservations.changing import NewEnd, change_end
from apportion.reservations.fleet import Fleet, instant_of, micros
from apportion.reservations.lifecycle import Lifecycle
from apportion.reservations.moved import moved_event
from apportion.reservations.plan import Placed, Planner
from apportion.reservations.schemas import Defragmentation, Defragmented, MoveOut, PlaceOut
from apportion.reservations.slack import held_until
from apportion.reservations.stored import draft_of
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime
from apportion.tenants.service import find_ancestors

MOVABLE_MAX = 500
"""How many reservations of a pool are weighed: those that begin last."""
WANTED_MAX = 32
"""For how many that wait room is looked for: the first in line."""
_MANAGE = "compute:pools:manage"
_LONGEST = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class _Move:
    """One reservation, where its pieces are to lie, and from when on."""

    row: Mapping[str, Any]
    pieces: Sequence[PieceHeld]
    offer: Offer
    at: datetime


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan, the rows that it is about, and from when on what runs has been moved."""

    plan: Plan
    moves: Sequence[_Move]
    wanted: Mapping[str, Mapping[str, Any]]
    fleet: Fleet
    first: datetime


class Defragmenter:
    """Plans moves in a pool, and makes them."""

    def __init__(self, runtime: Runtime, lifecycle: Lifecycle) -> None:
        self._runtime = runtime
        self._lifecycle = lifecycle

    async def run(self, caller: Caller, pool_id: str, request: Defragmentation) -> Defragmented:
        """Plan, and with ``apply`` do it: all moves or none.

        Raises NotFoundError for a pool that is not the caller's own, ForbiddenError,
        InvalidInputError, and ConflictError where others were faster.
        """
        notice, limit = _read(request)
        found = await self._plan(caller, pool_id, request, notice, limit)
        if not request.apply or not found.moves:
            return _told(pool_id, found, {}, applied=False)

        async def work(connection: Connection) -> dict[str, str]:
            return await self._move(connection, caller, pool_id, found)

        successors = await retrying(self._runtime.db, work)
        waiting = [draft_of(found.wanted[each.key]) for each, _ in found.plan.placed]
        if waiting:
            await self._lifecycle.place_waiting(waiting)
        return _told(pool_id, found, successors, applied=True)

    # -- planning ----------------------------------------------------------------------------------

    async def _plan(
        self,
        caller: Caller,
        pool_id: str,
        request: Defragmentation,
        notice: timedelta,
        limit: timedelta,
    ) -> _Found:
        now = self._runtime.now()
        fleet = Fleet()
        async with transaction(self._runtime.db) as connection:
            pool = await hold_record(connection, caller, _MANAGE, pool_id)
            parameters = {"pool_id": pool_id, "now": now, "limit": MOVABLE_MAX}
            cursor = await connection.execute(rows.QUERIES["movable"], parameters)
            there = [row for row in await cursor.fetchall() if _may_move(row, pool, now)]
            pieces = await bookings.pieces_of(connection, [row["id"] for row in there])
            wanted = await _wanted(connection, pool_id, request, now)
            await fleet.sync(connection, [pool_id], now)
        index = fleet.indexes[pool_id]
        at = {row["id"]: max(row["starts_at"], now) for row in there}
        at |= {row["id"]: now + notice for row in there if row["starts_at"] <= now}
        movable = [_movable(row, pool, at[row["id"]], pieces[row["id"]]) for row in there]
        # What is asked for from now on can begin where one leaves only when its notice is over.
        first = now + notice if any(row["starts_at"] <= now for row in there) else now
        asks = [_asked(row, pool, first) for row in wanted]
        planning = partial(regroup, index, asks, movable, micros(now), limit, first=micros(first))
        plan = await asyncio.to_thread(planning)
        by_id = {row["id"]: row for row in there}
        moves = [
            _Move(by_id[moved.holder], pieces[moved.holder], offer, instant_of(moved.start))
            for moved, offer in plan.moves
        ]
        return _Found(plan, moves, {row["id"]: row for row in wanted}, fleet, first)

    # -- doing it ----------------------------------------------------------------------------------

    async def _move(
        self, connection: Connection, caller: Caller, pool_id: str, found: _Found
    ) -> dict[str, str]:
        """Make all moves; returns the ids under which those go on that run."""
        now = self._runtime.now()
        by_tenant = await find_ancestors(
            connection, sorted({each.row["tenant_id"] for each in found.moves})
        )
        owners = [Caller(each, SYSTEM.actor, ancestors=by_tenant[each]) for each in by_tenant]
        pools, quotas = await hold_with_quotas(connection, owners, [pool_id])
        ids = sorted(each.row["id"] for each in found.moves)
        cursor = await connection.execute(rows.QUERIES["lock_live"], {"ids": ids})
        locked = {row["id"]: row for row in await cursor.fetchall()}
        await hold_record(connection, caller, _MANAGE, pool_id)
        planner = Planner(found.fleet, pools, (), quotas, now)
        successors: dict[str, str] = {}
        placed: list[Placed] = []
        for move in found.moves:
            row = locked.get(move.row["id"])
            if row is None or not _is_same(row, move.row) or move.at < now:
                raise _overtaken()
            draft = draft_of(row)
            if row["starts_at"] < move.at:
                successors[row["id"]] = own_id = self._runtime.new_id("res")
                draft = _going_on(draft, own_id, (move.at, row["ends_at"]), now)
            pool = pools.get((draft.tenant_id, pool_id))
            if pool is None:
                raise _overtaken()
            if draft.id != row["id"] and draft.series_id is not None:
                # It takes the place of one of the series, and is charged beside it: the peak stays.
                charged = await rows.charged_of_series(
                    connection, draft.series_id, draft.tenant_id, pool_id, pool.quota_tenant_id
                )
                planner.count_series(draft.series_id, pool_id, charged)
            placed.append(planner.take(draft, pool, move.offer, (move.at, row["ends_at"])))
        await self._write(connection, caller, placed, (locked, successors), now)
        return successors

    async def _write(
        self,
        connection: Connection,
        caller: Caller,
        placed: Sequence[Placed],
        of: tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]],
        now: datetime,
    ) -> None:
        locked, successors = of
        kept = [each for each in locked if each not in successors]
        before = await bookings.of_reservations(connection, list(locked))
        for reservation_id in successors:
            row = locked[reservation_id]
            [start] = {each.start for each in placed if each.draft.id == successors[reservation_id]}
            # It goes on elsewhere: nobody is told that it ends.
            await change_end(connection, caller, row, NewEnd(start, None), now)
        await bookings.finish(connection, kept, now)
        hosts = [host for each in placed for host in each.hosts]
        await bookings.hold_nodes(connection, {host.node_id for host in hosts})
        wanted = [booking for each in placed for booking in each.bookings]
        overfull = await bookings.insert_host(connection, hosts)
        gpus = await bookings.hold_gpus(connection, wanted)
        if overfull or any(booking.gpu_id not in gpus for booking in wanted):
            raise _overtaken()
        moves = [move for each in placed for move in each.moves]
        if not await bookings.redeal(connection, moves, now):
            raise _overtaken()
        if len(await bookings.insert(connection, wanted)) != len(wanted):
            raise _overtaken()
        fresh = [each for each in placed if each.draft.id not in locked]
        await rows.lie_elsewhere(
            connection, [each for each in placed if each.draft.id in locked], now
        )
        await rows.write(connection, fresh, now)
        await rows.tell(connection, now, fresh)
        gone_on = {own: was for was, own in successors.items()}
        events = [
            moved_event(each, was, before[was])
            for each in placed
            for was in (gone_on.get(each.draft.id, each.draft.id),)
        ]
        await append(connection, caller, now, events)
        for each in fresh:
            charges = {each.quota_key(of): amount for of, amount in each.charges.items()}
            await charge(connection, charges)


def _read(request: Defragmentation) -> tuple[timedelta, timedelta]:
    """Return the notice that is given to what runs, and how long may be searched."""
    if request.free_gpus and request.reservations is not None:
        raise InvalidInputError(
            "is one aim, and making room for some that wait another",
            field="free_gpus",
            given=True,
            allowed="either free_gpus or reservations",
        )
    notice = parse_duration(request.notice, field="notice")
    limit = parse_duration(request.time_limit, field="time_limit")
    if limit > _LONGEST:
        raise InvalidInputError(
            "is too long", field="time_limit", given=request.time_limit, allowed="up to 60s"
        )
    return notice, limit


async def _wanted(
    connection: Connection, pool_id: str, request: Defragmentation, now: datetime
) -> list[dict[str, Any]]:
    """Return those that wait for the pool and are to fit, in line; none where GPUs are to be free.

    NotFoundError would tell of others' reservations: one that does not wait here is invalid input.
    """
    if request.free_gpus:
        return []
    parameters = {
        "pool_id": pool_id,
        "ids": request.reservations,
        "now": now,
        "limit": WANTED_MAX,
    }
    cursor = await connection.execute(rows.QUERIES["to_make_room_for"], parameters)
    found = await cursor.fetchall()
    missing = sorted({*(request.reservations or ())} - {row["id"] for row in found})
    if missing:
        raise InvalidInputError(
            "no such reservation waits for this pool",
            field="reservations",
            given=missing[0],
            allowed="ids of those that `apportion reservation list --state pending` shows",
        )
    return found


def _may_move(row: Mapping[str, Any], pool: PoolRecord, now: datetime) -> bool:
    """Tell whether one may lie elsewhere: while it has not begun, or where that is allowed."""
    if row["starts_at"] > now:
        return True
    return pool.policy.preemptible and bool(row["placement"].get("movable"))


def _movable(
    row: Mapping[str, Any], pool: PoolRecord, at: datetime, pieces: Sequence[PieceHeld]
) -> Movable:
    until = micros(held_until(row["ends_at"], pool))
    gpus = tuple(sorted({piece.gpu_id for piece in pieces}))
    return Movable(row["id"], draft_of(row).ask, gpus, micros(at), until)


def _asked(row: Mapping[str, Any], pool: PoolRecord, first: datetime) -> Wanted:
    draft = draft_of(row)
    start, end = draft.window(draft.asked_start or first)
    return Wanted(row["id"], draft.ask, micros(start), micros(held_until(end, pool)))


def _is_same(row: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    return all(row[key] == planned[key] for key in ("state", "starts_at", "ends_at", "pool_id"))


def _going_on(draft: Draft, own_id: str, window: tuple[datetime, datetime], now: datetime) -> Draft:
    """Return the draft of the reservation as which one that runs goes on elsewhere."""
    start, end = window
    return draft._replace(
        id=own_id,
        asked_start=start,
        asked_end=end,
        duration=None,
        end_before=None,
        created_at=now,
        waiting=False,
        reason={},
    )


def _told(
    pool_id: str, found: _Found, successors: Mapping[str, str], *, applied: bool
) -> Defragmented:
    plan, index = found.plan, found.fleet.indexes[pool_id]

    def where(gpu_id: int, units: int, atom: int | None) -> PlaceOut:
        gpu = index.gpu(gpu_id)
        return PlaceOut(
            gpu_id=str(gpu.attributes["gpuUuid"]),
            node=str(gpu.attributes["node"]),
            units=to_multirange(units),
            atom=None if atom is None else found.fleet.atom(pool_id, atom).key,
        )

    return Defragmented(
        pool_id=pool_id,
        moves=[
            MoveOut.model_validate(
                {
                    "reservation_id": move.row["id"],
                    "tenant_id": move.row["tenant_id"],
                    "how": "rebook" if move.row["starts_at"] >= move.at else "recreate",
                    "at": move.at,
                    "from": [where(each.gpu_id, each.units, each.atom_id) for each in move.pieces],
                    "to": [where(each.gpu, each.units, each.atom) for each in move.offer.pieces],
                    "successor_id": successors.get(move.row["id"]),
                }
            )
            for move in found.moves
        ],
        fits=[each.key for each, _ in plan.placed],
        does_not_fit=[each.key for each in plan.unplaced],
        freed_gpus=plan.freed,
        largest_from=found.first,
        largest_now=[shown_largest(each) for each in plan.largest_now],
        largest_then=[shown_largest(each) for each in plan.largest_then],
        bound=plan.bound,
        optimal=plan.optimal,
        nodes_looked_at=plan.nodes,
        nodes=len(index.nodes),
        stale=stale_in(index),
        applied=applied,
    )


def _overtaken() -> ConflictError:
    return ConflictError(
        "what was to be moved, or where it was to go, changed meanwhile; nothing was moved",
        hint="Ask again: it is planned anew",
    )
