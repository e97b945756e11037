"""When an ask could start if not now, and the next windows with room for it; nothing is held."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final, cast

from apportion.authority.service import Caller
from apportion.bookings.service import ENDLESS
from apportion.placement import FOREVER, GpuState, Offer, Piece, PoolIndex, Verdict
from apportion.placement.gangs import gang_opening
from apportion.pools.schemas import QuotaResource
from apportion.pools.service import (
    PoolRecord,
    Quota,
    QuotaKey,
    find_records,
    read_quotas,
    show_amount,
)
from apportion.quantities.units import to_multirange
from apportion.reservations.admission import Draft
from apportion.reservations.charging import least_equivalents, with_equivalents
from apportion.reservations.drafting import NOBODY, admitted, named_pools
from apportion.reservations.ends import held_until
from apportion.reservations.fleet import Fleet, instant_of, micros
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import ReservationAsk
from apportion.reservations.window_schemas import (
    FreeWindow,
    FreeWindows,
    FreeWindowsAsk,
    GpuRoom,
    Outlook,
    PoolOutlook,
    QuotaShort,
)
from apportion.reservations.windows import LAST
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

_MICROSECOND: Final = timedelta(microseconds=1)
_ENDLESS: Final = micros(ENDLESS)


@dataclass(frozen=True, slots=True)
class _Room:
    """Room from ``start`` on for any end up to ``until``: an offer for each member."""

    start: int
    until: int
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pool, and where it first has room; the reason where it has none."""

    pool: PoolRecord
    rooms: tuple[_Room, ...]
    reason: Verdict | None


@dataclass(frozen=True, slots=True)
class _View:
    """What an ask sees of its pools at one instant."""

    draft: Draft
    length: timedelta
    fleet: Fleet
    seen: tuple[_Seen, ...]
    quotas: Mapping[QuotaKey, Quota]
    now: int


async def find_earliest(
    runtime: Runtime, fleet: Fleet, caller: Caller, request: ReservationAsk
) -> Outlook:
    """Tell when an ask could start in each of its pools, the earliest first.

    Raises as creating it would, but for quotas, which are told; a pool's lead puts the start off.
    """
    async with transaction(runtime.db) as connection:
        view = await _look(connection, runtime.now(), fleet, (caller, request), 1)
    pools = [_outlook(view, seen) for seen in view.seen]
    return Outlook(pools=sorted(pools, key=_starts))


async def find_free_windows(
    runtime: Runtime, fleet: Fleet, caller: Caller, request: FreeWindowsAsk
) -> FreeWindows:
    """Tell the next ``k`` windows in any of its pools: now, and whenever a node gets room.

    Raises as `find_earliest` does.
    """
    async with transaction(runtime.db) as connection:
        view = await _look(connection, runtime.now(), fleet, (caller, request), request.k)
    found = [(each.start, at, each) for at, seen in enumerate(view.seen) for each in seen.rooms]
    found.sort(key=lambda one: one[:2])
    windows = [_window(view, view.seen[at].pool, each) for _, at, each in found[: request.k]]
    pools = [_outlook(view, seen) for seen in view.seen]
    return FreeWindows(windows=windows, pools=sorted(pools, key=_starts))


async def _look(
    connection: Connection,
    now: datetime,
    fleet: Fleet,
    asked: tuple[Caller, ReservationAsk],
    most: int,
) -> _View:
    caller, request = asked
    records = await find_records(connection, caller, named_pools(request))
    draft = admitted(caller, request, Rights(caller, records), NOBODY, now)
    pools = [records[each] for each in draft.candidates]
    quotas = await read_quotas(connection, caller.lineage, draft.candidates)
    await fleet.sync(connection, list(draft.candidates), now)
    # From here to the last opening nothing is awaited: what is held would else change under it.
    seen = tuple(_see(draft, pool, fleet.indexes[pool.id], now, most) for pool in pools)
    start, end = draft.window(draft.starts(now)[0])
    return _View(draft, end - start, fleet, seen, quotas, micros(now))


def _see(draft: Draft, pool: PoolRecord, index: PoolIndex, now: datetime, most: int) -> _Seen:
    first, last = draft.starts(now)
    start, end = draft.window(first)
    length = (held_until(end, pool) - start) // _MICROSECOND
    bounds = micros(first), FOREVER if draft.end_before is None else micros(last), micros(now)
    policy = draft.policy_in(pool)
    if draft.members > 1:
        return _see_gang(draft, pool, index, length, bounds)
    openings = index.openings(
        draft.ask, length, micros(now), policy, first=bounds[0], last=bounds[1]
    )
    found = tuple(_Room(each.start, each.until, (each.offer,)) for each in islice(openings, most))
    if found:
        return _Seen(pool, found, None)
    answer = index.place(draft.ask, bounds[0], bounds[0] + length, bounds[2], policy)
    return _Seen(pool, (), answer if isinstance(answer, Verdict) else None)


def _see_gang(
    draft: Draft, pool: PoolRecord, index: PoolIndex, length: int, bounds: tuple[int, int, int]
) -> _Seen:
    """Look for the first start of a gang; later ones are not looked for."""
    asks, apart = [draft.ask] * draft.members, draft.members_apart
    policy = draft.policy_in(pool)
    start = gang_opening(index, asks, length, bounds, apart=apart)
    at = bounds[0] if start is None else start
    answer = index.place_gang(asks, at, at + length, bounds[2], policy, apart=apart)
    if isinstance(answer, Verdict):
        return _Seen(pool, (), answer)
    if start is None:  # there would be room, but not in time
        return _Seen(pool, (), None)
    return _Seen(pool, (_Room(start, start + length, answer),), None)


def _outlook(view: _View, seen: _Seen) -> PoolOutlook:
    return PoolOutlook(
        pool_id=seen.pool.id,
        window=_window(view, seen.pool, seen.rooms[0]) if seen.rooms else None,
        reason=None if seen.reason is None else _reason(seen.reason),
        quota=_quota_short(view, seen.pool),
    )


def _window(view: _View, pool: PoolRecord, room: _Room) -> FreeWindow:
    start = instant_of(room.start)
    index = view.fleet.indexes[pool.id]
    return FreeWindow(
        pool_id=pool.id,
        start=start,
        end=None if view.draft.open_ended else start + view.length,
        until=_until(room.until, pool),
        nodes=list(dict.fromkeys(index.nodes[offer.node].name for offer in room.offers)),
        gpus=[
            _room(view, index.gpu(piece.gpu), piece)
            for offer in room.offers
            for piece in offer.pieces
        ],
    )


def _room(view: _View, gpu: GpuState, piece: Piece) -> GpuRoom:
    last = max([view.now, *(held.end for held in gpu.held.values())])
    return GpuRoom.model_validate(
        {
            "gpu_id": gpu.attributes["gpuUuid"],
            "node": gpu.attributes["node"],
            "device": piece.device,
            "class": view.draft.ask.devices[piece.device].cls,
            "units": to_multirange(piece.units),
            "free_from": None if last >= FOREVER else instant_of(last),
        }
    )


def _until(moment: int, pool: PoolRecord) -> datetime | None:
    """Return how long it could last: it is cleaned up before the next one begins."""
    return None if moment >= _ENDLESS else instant_of(moment) - pool.policy.window.gap


def _quota_short(view: _View, pool: PoolRecord) -> QuotaShort | None:
    least = view.draft.members * least_equivalents(view.draft.ask)
    for resource, amount in with_equivalents(view.draft.amounts(), least).items():
        quota = view.quotas.get((pool.quota_tenant_id, pool.id, resource))
        if quota is not None and quota.covers(amount):
            continue
        left = Decimal(0) if quota is None else quota.left or Decimal(0)
        return QuotaShort(
            tenant_id=pool.quota_tenant_id,
            resource=cast("QuotaResource", resource),
            asked=show_amount(resource, amount),
            left=show_amount(resource, left),
        )
    return None


def _reason(verdict: Verdict) -> dict[str, Any]:
    return {
        "code": verdict.code,
        "message": verdict.message,
        "hint": verdict.hint,
        "nodes": verdict.nodes,
        "reasons": [{"code": each.code, "count": each.count} for each in verdict.reasons],
    }


def _starts(outlook: PoolOutlook) -> datetime:
    """Rank pools by when it could start there, those last where it never could."""
    return LAST if outlook.window is None else outlook.window.start
