"""Reservations: create, look at, change, release."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apportion.authority.service import Caller
from apportion.errors import (
    ApportionError,
    ConflictError,
    InvalidStateError,
    NotFoundError,
    QuotaExceededError,
)
from apportion.placement import DeviceAsk
from apportion.pools.service import PoolRecord, find_records, hold_records
from apportion.quantities.ids import derive_id
from apportion.quantities.windows import format_instant
from apportion.reservations import rows
from apportion.reservations.admission import (
    Draft,
    admit,
    attributes_of,
    candidates,
    request_hash,
)
from apportion.reservations.changing import OvertakenError, Row, asked, change_end, read_end
from apportion.reservations.ending import end_now
from apportion.reservations.fleet import Fleet
from apportion.reservations.lengths import check_length
from apportion.reservations.lifecycle import Lifecycle, draft_of
from apportion.reservations.placer import CLASHES_MAX, Placer
from apportion.reservations.plan import Decision, Refused
from apportion.reservations.rights import Rights, check_update
from apportion.reservations.schemas import (
    LIVE,
    DeviceRequest,
    ReservationCreate,
    ReservationUpdate,
    ReservationView,
)
from apportion.reservations.views import show_all
from apportion.reservations.windows import hold_to_pools, read_window
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime


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
        self._placing: set[str] = set()
        self._placed = asyncio.Condition()

    async def create(self, caller: Caller, request: ReservationCreate) -> ReservationView:
        """Place the ask, or let it wait with the reason.

        A retry with the same idempotency key returns the first answer's reservation. Raises
        InvalidInputError, NotFoundError (a pool), QuotaExceededError, ConflictError (the key was
        used for another ask, or others kept winning).
        """
        [outcome] = await self.create_many(caller, [request])
        if isinstance(outcome, ApportionError):
            raise outcome
        return await self.get(caller, outcome)

    async def create_many(
        self, caller: Caller, requests: Sequence[ReservationCreate]
    ) -> list[str | ApportionError]:
        """Place many asks in one go; each answer is the reservation's id or its own error."""
        ids = [self._id_of(caller, request) for request in requests]
        keyed = {ids[at] for at, each in enumerate(requests) if each.idempotency_key is not None}
        async with self._alone(keyed):
            return await self._create(caller, requests, ids, keyed)

    async def _create(
        self,
        caller: Caller,
        requests: Sequence[ReservationCreate],
        ids: Sequence[str],
        keyed: Collection[str],
    ) -> list[str | ApportionError]:
        hashes = [request_hash(request) for request in requests]
        pool_ids = sorted({pool for each in requests for pool in _named(each)})
        async with transaction(self._runtime.db) as connection:
            pools = await find_records(connection, caller, pool_ids)
        drafts: dict[str, Draft] = {}
        refused: dict[int, ApportionError] = {}
        rights = Rights(caller, pools)
        for at, request in enumerate(requests):
            if ids[at] in drafts:
                continue
            try:
                drafts[ids[at]] = self._draft(caller, request, rights, ids[at], hashes[at])
            except ApportionError as error:
                refused[at] = error
        decided = await self._place_once(caller, list(drafts.values()))
        # A retry gets its answer also where the same ask is refused by now: its window has begun.
        again = {ids[at] for at in refused} & set(keyed)
        stored = await self._hashes([*again, *(each for each in decided if decided[each] is None)])
        asked = {each.id: each.request_hash for each in drafts.values()} | stored
        return [
            refused[at]
            if at in refused and own_id not in stored
            else _answer(own_id, decided.get(own_id), asked[own_id], hashes[at])
            for at, own_id in enumerate(ids)
        ]

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

    async def get(self, caller: Caller, reservation_id: str) -> ReservationView:
        """Return one of the caller's reservations; NotFoundError for any other."""
        async with transaction(self._runtime.db) as connection:
            row = await _find(connection, caller, reservation_id, "find")
            return (await show_all(connection, [row]))[0]

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

    async def release(self, caller: Caller, reservation_id: str) -> ReservationView:
        """End a reservation now: what has begun is billed till now, what has not is cancelled.

        Releasing one that has ended changes nothing.
        """
        ended: list[str] = []

        async def work(connection: Connection) -> ReservationView:
            ended.clear()
            row = await _find(connection, caller, reservation_id, "lock")
            now = self._runtime.now()
            if row["state"] in ("pending", *LIVE):
                await end_now(connection, caller, [row], now, f"by {caller.actor}")
                ended.append(reservation_id)
            row = await _find(connection, caller, reservation_id, "find")
            return (await show_all(connection, [row]))[0]

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
            _check_change(caller, pools, row, (end, asked(request)))
            sooner = end < row["ends_at"]
            if end != row["ends_at"]:
                await change_end(connection, caller, row, end, now)
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

    async def _place_once(
        self, caller: Caller, drafts: Sequence[Draft]
    ) -> dict[str, Decision | None]:
        """Place; what the quota refuses is tried once more after what is over has been ended."""
        decided = await self.placer.place(caller, drafts)
        refused = [
            draft
            for draft in drafts
            if isinstance(decision := decided[draft.id], Refused)
            and isinstance(decision.error, QuotaExceededError)
        ]
        if refused and await self.lifecycle.end_due():
            decided.update(await self.placer.place(caller, refused))
        return decided

    def _id_of(self, caller: Caller, request: ReservationCreate) -> str:
        key = request.idempotency_key
        if key is None:
            return self._runtime.new_id("res")
        return derive_id("res", caller.tenant_id, caller.actor, key)

    def _draft(
        self,
        caller: Caller,
        request: ReservationCreate,
        rights: Rights,
        own_id: str,
        own_hash: bytes,
    ) -> Draft:
        named = candidates(request)
        records = rights.find(named)
        now = self._runtime.now()
        ask = admit(request, records)
        window = read_window(request, now)
        rights.check(records, attributes_of(ask, window.length(now)))
        window = hold_to_pools(window, records, request, now)
        return Draft(
            id=own_id,
            tenant_id=caller.tenant_id,
            caller=caller.actor,
            name=request.name,
            candidates=tuple(named),
            ask=ask,
            devices=[
                _stored(device, parsed)
                for device, parsed in zip(request.devices, ask.devices, strict=True)
            ],
            placement=request.placement.model_dump(exclude_defaults=True),
            asked_start=window.start,
            asked_end=window.end,
            duration=window.duration,
            end_before=window.end_before,
            pending_until=now + max(pool.policy.max_pending for pool in records),
            request_hash=own_hash,
            created_at=now,
        )

    async def _hashes(self, reservation_ids: Sequence[str]) -> dict[str, bytes]:
        if not reservation_ids:
            return {}
        async with transaction(self._runtime.db) as connection:
            return await rows.hashes(connection, reservation_ids)


def _check_change(
    caller: Caller,
    pools: Mapping[str, PoolRecord],
    row: Row,
    wanted: tuple[datetime, Mapping[str, Any]],
) -> None:
    """Refuse what access policies do not allow, nor the pool's, nor a pool that went."""
    end, given = wanted
    pool = pools.get(row["pool_id"])
    if pool is None:
        raise InvalidStateError(
            "its pool is archived, or no longer offered to its tenant",
            given=row["pool_id"],
            hint=f"It keeps what it has until {format_instant(row['ends_at'])}, or till a release",
        )
    attributes = attributes_of(draft_of(row).ask, end - row["starts_at"])
    check_update(caller, pool, attributes, longer=end > row["ends_at"])
    check_length(pool, end - row["starts_at"], **given)


def _answer(
    reservation_id: str, decision: Decision | None, there: bytes, asked: bytes
) -> str | ApportionError:
    if isinstance(decision, Refused):
        return decision.error
    if there == asked:
        return reservation_id
    return ConflictError(
        "this key was used for another ask",
        field="idempotency_key",
        details={"reservation_id": reservation_id},
    )


def _stored(device: DeviceRequest, ask: DeviceAsk) -> dict[str, Any]:
    """Write a device request as it is kept: amounts as given, selector values as they were read."""
    expressions = [
        {"key": each.key, "op": each.op, "values": list(each.values)}
        for each in ask.selector.expressions
    ]
    return {
        "class": ask.cls,
        "count": ask.count,
        "units": ask.units,
        **({"sharing": device.sharing} if device.sharing else {}),
        **({"selector": {"matchExpressions": expressions}} if expressions else {}),
    }


def _named(request: ReservationCreate) -> list[str]:
    if request.pool_id is not None:
        return [request.pool_id]
    return request.pool_ids or []


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
