"""When an ask could start if not now, and the next windows with room for it; nothing is held."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final, cast

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.placement import FOREVER, GpuState, Opening, Piece, PoolIndex, Verdict
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
from apportion.reservations.fleet import Fleet, instant_of, micros
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import (
    FreeWindow,
    FreeWindows,
    FreeWindowsAsk,
    GpuRoom,
    Outlook,
    PoolOutlook,
    QuotaShort,
    ReservationAsk,
)
from apportion.reservations.slack import held_until
from apportion.reservations.windows import LAST
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pool, and the first of its openings; the reason where it has none."""

    pool: PoolRecord
    openings: tuple[Opening, ...]
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
    found = [(each.start, at, each) for at, seen in enumerate(view.seen) for each in seen.openings]
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
    if draft.members > 1:
        raise InvalidInputError(
            "when a gang could start is not told; what each member asks for can be",
            field="gang.members",
            given=draft.members,
            allowed="1, or no gang; end_before reserves a gang at its earliest start",
        )
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
    policy = draft.policy_in(pool)
    openings = index.openings(
        draft.ask,
        length,
        micros(now),
        policy,
        first=micros(first),
        last=FOREVER if draft.end_before is None else micros(last),
    )
    found = tuple(islice(openings, most))
    if found:
        return _Seen(pool, found, None)
    answer = index.place(draft.ask, micros(first), micros(first) + length, micros(now), policy)
    return _Seen(pool, (), answer if isinstance(answer, Verdict) else None)


def _outlook(view: _View, seen: _Seen) -> PoolOutlook:
    return PoolOutlook(
        pool_id=seen.pool.id,
        window=_window(view, seen.pool, seen.openings[0]) if seen.openings else None,
        reason=None if seen.reason is None else _reason(seen.reason),
        quota=_quota_short(view, seen.pool),
    )


def _window(view: _View, pool: PoolRecord, opening: Opening) -> FreeWindow:
    start = instant_of(opening.start)
    index = view.fleet.indexes[pool.id]
    return FreeWindow(
        pool_id=pool.id,
        start=start,
        end=start + view.length,
        until=_until(opening.until, pool),
        node=index.nodes[opening.offer.node].name,
        gpus=[_room(view, index.gpu(piece.gpu), piece) for piece in opening.offer.pieces],
    )


def _room(view: _View, gpu: GpuState, piece: Piece) -> GpuRoom:
    last = max([view.now, *(held.end for held in gpu.held.values())])
    return GpuRoom.model_validate(
        {
            "gpu_id": gpu.attributes["gpuUuid"],
            "device": piece.device,
            "class": view.draft.ask.devices[piece.device].cls,
            "units": to_multirange(piece.units),
            "free_from": None if last >= FOREVER else instant_of(last),
        }
    )


def _until(moment: int, pool: PoolRecord) -> datetime | None:
    """Return how long it could last: it is cleaned up before the next one begins."""
    return None if moment >= FOREVER else instant_of(moment) - pool.policy.window.gap


def _quota_short(view: _View, pool: PoolRecord) -> QuotaShort | None:
    least = least_equivalents(view.draft.ask)
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
