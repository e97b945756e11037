"""Series: the same ask in every window of a recurrence, placed all together or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller
from apportion.errors import ApportionError, ConflictError, NotFoundError
from apportion.events.service import Event, append
from apportion.pools.service import PoolRecord, find_records
from apportion.quantities.ids import derive_id
from apportion.quantities.windows import format_instant
from apportion.reservations import rows
from apportion.reservations.admission import Draft, asked_texts, request_hash
from apportion.reservations.drafting import Identity, admitted, named_pools
from apportion.reservations.ending import end_now
from apportion.reservations.fleet import Fleet
from apportion.reservations.placer import Placer
from apportion.reservations.plan import Decision
from apportion.reservations.reasons import Gone, Refused, Waiting
from apportion.reservations.recurring import asks_of, read_recurrence
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import ReservationAsk
from apportion.reservations.slack import earliest_start
from apportion.reservations.views import show_all
from apportion.reservations.window_schemas import SeriesCreate, SeriesSummary, SeriesView
from apportion.reservations.windows import LAST
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime

MISFITS_MAX: Final = 50
"""The most windows that a refusal names."""


class _ThereError(Exception):
    """A series of this id is there already."""


class SeriesService:
    """Series on one runtime."""

    def __init__(self, runtime: Runtime, fleet: Fleet, placer: Placer) -> None:
        self._runtime = runtime
        self._fleet = fleet
        self._placer = placer

    async def create(self, caller: Caller, request: SeriesCreate) -> str:
        """Place every window of a series, and return its id; a retry with the key gets the same.

        Raises InvalidInputError, NotFoundError, ForbiddenError, QuotaExceededError, ConflictError:
        some windows have no room, and then none is kept; or the key was used for another series.
        """
        series_id = self._id_of(caller, request)
        [text] = asked_texts([request])
        own_hash = request_hash(request.name, text)
        if request.idempotency_key is not None and await self._is_there(series_id, own_hash):
            return series_id
        pools = await self._pools(caller, request)
        drafts = self._drafts(caller, pools, request, Identity(series_id, own_hash))

        async def prepare(connection: Connection) -> None:
            await self._insert(connection, caller, request, drafts)

        try:
            decisions = await self._placer.place_whole(drafts, prepare)
        except _ThereError:
            await self._is_there(series_id, own_hash)
            return series_id
        _check_whole(decisions, partial(self._earliest, pools))
        return series_id

    async def get(
        self,
        caller: Caller,
        series_id: str,
        *,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> tuple[SeriesView, bool]:
        """Return a series with reservations after a position, and whether there are more.

        A position is when one of them was created, and its id.
        """
        async with transaction(self._runtime.db) as connection:
            row = await _find(connection, caller, series_id)
            states = await _states(connection, caller, [series_id])
            own = {"tenant_id": caller.tenant_id, "id": series_id}
            created_at, last = after or (row["created_at"], "")
            page = {"created_at": created_at, "after": last, "limit": limit + 1}
            cursor = await connection.execute(rows.QUERIES["of_series"], {**own, **page})
            found = await cursor.fetchall()
            shown = await show_all(connection, found[:limit])
        more = len(found) > limit
        summary = _summary(row, states)
        view = SeriesView.model_validate({**summary, "reservations": shown, "next_cursor": None})
        return view, more

    async def page(
        self,
        caller: Caller,
        *,
        before: tuple[datetime, str] | None = None,
        limit: int = 100,
        name: str | None = None,
        live: bool | None = None,
    ) -> Sequence[SeriesSummary]:
        """Return the caller's series, newest first, those before a position.

        ``live`` are those of which something has not ended.
        """
        parameters = {
            "tenant_id": caller.tenant_id,
            "before": "infinity" if before is None else before[0],
            "before_id": "" if before is None else before[1],
            "limit": limit,
            "name": name,
            "live": live,
        }
        async with transaction(self._runtime.db) as connection:
            # Planned for the filters that there are, as the list of reservations is.
            query = rows.QUERIES["list_series"]
            cursor = await connection.execute(query, parameters, prepare=False)
            found = await cursor.fetchall()
            states = await _states(connection, caller, [row["id"] for row in found])
        return [SeriesSummary.model_validate(_summary(row, states)) for row in found]

    async def release(self, caller: Caller, series_id: str) -> bool:
        """End what of a series lives, and cancel what is still to come; tells if anything was."""

        async def work(connection: Connection) -> bool:
            await _find(connection, caller, series_id)
            own = {"tenant_id": caller.tenant_id, "id": series_id}
            cursor = await connection.execute(rows.QUERIES["lock_series"], own)
            found = await cursor.fetchall()
            now = self._runtime.now()
            await end_now(connection, caller, found, now, f"by {caller.actor}, with its series")
            return bool(found)

        return await retrying(self._runtime.db, work)

    def _id_of(self, caller: Caller, request: SeriesCreate) -> str:
        if request.idempotency_key is None:
            return self._runtime.new_id("ser")
        return derive_id("ser", caller.tenant_id, caller.actor, request.idempotency_key)

    async def _is_there(self, series_id: str, own_hash: bytes) -> bool:
        """Tell whether the series is there; ConflictError where it was asked for otherwise."""
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(rows.QUERIES["hash_of_series"], {"id": series_id})
            row = await cursor.fetchone()
        if row is not None and bytes(row["request_hash"]) != own_hash:
            raise ConflictError(
                "this key was used for another series",
                field="idempotency_key",
                details={"series_id": series_id},
            )
        return row is not None

    async def _pools(self, caller: Caller, request: SeriesCreate) -> Mapping[str, PoolRecord]:
        async with transaction(self._runtime.db) as connection:
            return await find_records(connection, caller, named_pools(request))

    def _earliest(self, pools: Mapping[str, PoolRecord], draft: Draft) -> datetime | None:
        """Return the first start from that of a window on with room for as long; nothing is held.

        The other windows of its series are not reckoned with: none of them is kept.
        """
        now = self._runtime.now()
        usable = [pools[each] for each in draft.candidates if each in pools]
        return earliest_start(self._fleet, draft, usable, (draft.starts(now)[0], LAST, now))

    def _drafts(
        self,
        caller: Caller,
        pools: Mapping[str, PoolRecord],
        request: SeriesCreate,
        identity: Identity,
    ) -> list[Draft]:
        now, rights = self._runtime.now(), Rights(caller, pools)
        windows = read_recurrence(request.recurrence, now)
        # In the order of their windows, so that a list by id is one by time.
        ids = sorted(self._runtime.new_id("res") for _ in windows)
        return [
            _admitted(caller, ask, rights, Identity(own_id, identity.request_hash), now)._replace(
                series_id=identity.id
            )
            for own_id, ask in zip(ids, asks_of(request, windows), strict=True)
        ]

    async def _insert(
        self,
        connection: Connection,
        caller: Caller,
        request: SeriesCreate,
        drafts: Sequence[Draft],
    ) -> None:
        first, last = drafts[0], drafts[-1]
        parameters = {
            "id": first.series_id,
            "tenant_id": caller.tenant_id,
            "name": request.name,
            "recurrence": Jsonb(request.recurrence.model_dump(by_alias=True)),
            "request_hash": first.request_hash,
            "now": first.created_at,
        }
        cursor = await connection.execute(rows.QUERIES["insert_series"], parameters)
        if await cursor.fetchone() is None:
            raise _ThereError
        told = {
            "name": request.name,
            "reservations": len(drafts),
            "start": _text(first.asked_start),
            "end": _text(last.asked_end),
        }
        event = Event("series.created", caller.tenant_id, str(first.series_id), told, after=told)
        await append(connection, caller, self._runtime.now(), [event])


def _admitted(
    caller: Caller, ask: ReservationAsk, rights: Rights, identity: Identity, now: datetime
) -> Draft:
    """Admit one window of a series; a refusal says which."""
    try:
        return admitted(caller, ask, rights, identity, now)
    except ApportionError as error:
        if error.field in ("start", "end"):
            error.message = f"in the window from {ask.start} to {ask.end}: {error.message}"
            error.field = "recurrence"
        raise


def _check_whole(
    decisions: Collection[Decision], earliest: Callable[[Draft], datetime | None]
) -> None:
    """Refuse a series of which some windows have no place, and name those."""
    for each in decisions:
        if isinstance(each, Refused):
            raise each.error
    misfits = [each for each in decisions if isinstance(each, Waiting | Gone)]
    if not misfits:
        return
    told = [_misfit(each, earliest(each.draft)) for each in misfits[:MISFITS_MAX]]
    raise ConflictError(
        f"{len(misfits)} of {len(decisions)} windows have no room, so none is kept; "
        + _first_of(told[0]),
        field="recurrence",
        hint="Ask for another time, or for less; `reservation earliest` tells when one could start",
        details={
            "windows": len(decisions),
            "without_room": len(misfits),
            "occurrences": told,
        },
    )


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else format_instant(instant)


def _first_of(misfit: Mapping[str, object]) -> str:
    could = f"; it could start at {misfit['earliest']}" if misfit["earliest"] else ""
    return f"the first of them, from {misfit['start']}: {misfit['message']}{could}"


def _misfit(decision: Waiting | Gone, earliest: datetime | None) -> Mapping[str, object]:
    draft, reason = decision.draft, decision.reason
    return {
        "start": _text(draft.asked_start),
        "end": _text(draft.asked_end),
        "earliest": _text(earliest),
        **{key: reason[key] for key in ("code", "message", "nodes", "reasons") if key in reason},
    }


async def _find(connection: Connection, caller: Caller, series_id: str) -> Mapping[str, Any]:
    own = {"tenant_id": caller.tenant_id, "id": series_id}
    cursor = await connection.execute(rows.QUERIES["find_series"], own)
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError("no such series", field="series_id", given=series_id)
    return row


async def _states(
    connection: Connection, caller: Caller, series_ids: Sequence[str]
) -> Mapping[str, Mapping[str, int]]:
    """Return of each series how many of its reservations are in which state."""
    parameters = {"tenant_id": caller.tenant_id, "ids": list(series_ids)}
    cursor = await connection.execute(rows.QUERIES["states_of_series"], parameters)
    states: dict[str, dict[str, int]] = {each: {} for each in series_ids}
    for row in await cursor.fetchall():
        states[row["series_id"]][row["state"]] = row["count"]
    return states


def _summary(
    row: Mapping[str, Any], states: Mapping[str, Mapping[str, int]]
) -> Mapping[str, object]:
    told = ("id", "tenant_id", "name", "recurrence", "created_at")
    return {**{name: row[name] for name in told}, "states": states[row["id"]]}
