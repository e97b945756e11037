"""Letting a live reservation end later or sooner: all of its pieces, in place, or none."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.bookings.service import PARTITION, BookingKey, HeldGpu
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.placement import GpuState, Held, Move
from apportion.placement.colouring import deal_again
from apportion.quantities.windows import format_instant, parse_duration, parse_instant
from apportion.reservations import rows
from apportion.reservations.ends import end_text
from apportion.reservations.fleet import micros
from apportion.reservations.schemas import ReservationUpdate
from apportion.store.connections import Connection

Row = Mapping[str, Any]

_LAST: Final = datetime.max.replace(tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewEnd:
    """When a reservation is to end instead, and when its tenant is told that it does so soon."""

    at: datetime
    tell_at: datetime | None


class OvertakenError(Exception):
    """What was to be dealt again ended or began meanwhile; look again."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """How long a GPU can be kept, and which bookings that have not begun make way for it."""

    until: int
    moves: tuple[Move, ...] = ()
    code: str = "units_booked"


@dataclass(frozen=True, slots=True)
class _Blocked:
    """What keeps a reservation from going on, and from when on."""

    code: str
    gpu_id: str | None
    until: datetime


_WHY: Final = {
    "units_booked": "others have booked units of its GPU by then",
    "layout_change_scheduled": "its GPU is to be cut otherwise by then",
    "host_resources_short": "others have booked CPU or memory of its node by then",
    "series_goes_on": "the next of its series begins by then",
    "gpu_unbookable": "it has a GPU that cannot be booked now",
}


def read_end(request: ReservationUpdate, row: Row, now: datetime) -> datetime:
    """Return when a live reservation is to end; the length of a window counts from its start.

    Raises InvalidStateError for one that does not live, InvalidInputError for what is no end.
    """
    if row["state"] not in ("placed", "active") or row["ends_at"] <= now:
        over = row["state"] != "pending"
        raise InvalidStateError(
            "its window is over" if over else "it waits, and has no window yet",
            given="ended" if row["state"] in ("placed", "active") else row["state"],
            allowed="a reservation that is placed or active",
            hint="Reserve again" if over else "Release it, and ask for another window",
        )
    if (request.end is None) == (request.duration is None):
        raise InvalidInputError(
            "give either an end or a duration",
            field="end",
            given=request.end,
            allowed='an instant, or a duration from the start such as "4h"',
        )
    end = _end(request, row["starts_at"])
    earliest = max(now, row["starts_at"])
    if end <= earliest:
        raise InvalidInputError(
            "its window would be over",
            **asked(request),
            allowed=f"an end after {format_instant(earliest)}",
            hint="To end it now, release it",
        )
    return end


async def change_end(
    connection: Connection, caller: Caller, row: Row, new: NewEnd, now: datetime
) -> None:
    """Let a locked reservation end then; ConflictError says until when it could be kept.

    Locks its node, then its GPUs. What has begun keeps its units; slots and shares of others that
    have not begun are dealt again where that makes way. Raises OvertakenError to look again.
    """
    end = new.at
    await nodes.hold_nodes_of(connection, [row["id"]])
    if end > row["ends_at"]:
        await _make_room(connection, row, end, now)
    else:
        await bookings.end_host_at(connection, row["id"], row["ends_at"], end)
    await bookings.end_at(connection, row["id"], end)
    await nodes.ask_anew(connection, row["id"])
    parameters = {"id": row["id"], "end": end, "tell_at": new.tell_at, "now": now}
    await connection.execute(rows.QUERIES["end_at"], parameters)
    await append(connection, caller, now, [_event(row, end)])


async def _make_room(connection: Connection, row: Row, end: datetime, now: datetime) -> None:
    old_end = row["ends_at"]
    full_from = await bookings.end_host_at(connection, row["id"], old_end, end)
    gpus = await bookings.hold_gpus_of(connection, row["id"])
    held = await bookings.on_gpus(connection, [gpu.id for gpu in gpus], now)
    blocked: list[_Blocked] = []
    goes_on = await _series_goes_on(connection, row)
    if goes_on is not None and goes_on < end:
        blocked.append(_Blocked("series_goes_on", None, goes_on))
    if full_from is not None:
        blocked.append(_Blocked("host_resources_short", None, full_from))
    moves: list[Move] = []
    for gpu in gpus:
        if not gpu.bookable:
            blocked.append(_Blocked("gpu_unbookable", gpu.uuid, old_end))
            continue
        reach = _reach(gpu, held[gpu.id], row["id"], (micros(old_end), micros(end)), micros(now))
        moves.extend(reach.moves)
        if reach.until < micros(end):
            until = _EPOCH + timedelta(microseconds=reach.until)
            blocked.append(_Blocked(reach.code, gpu.uuid, until))
    if blocked:
        raise _in_the_way(blocked, old_end, end)
    if not await bookings.redeal(connection, moves, now):
        raise OvertakenError


async def _series_goes_on(connection: Connection, row: Row) -> datetime | None:
    """Return when the next of its series begins: a series is charged for one at a time."""
    if row["series_id"] is None:
        return None
    parameters = {
        "tenant_id": row["tenant_id"],
        "series_id": row["series_id"],
        "end": row["ends_at"],
    }
    cursor = await connection.execute(rows.QUERIES["series_goes_on"], parameters)
    [found] = await cursor.fetchall()
    return found["at"]


def _reach(
    gpu: HeldGpu,
    held: Mapping[BookingKey, Held],
    reservation_id: str,
    ends: tuple[int, int],
    now: int,
) -> _Reach:
    """Find how far the reservation's pieces on a GPU can go beside what others have there."""
    old_end, end = ends
    # What is held after the end, for cleaning up, is held after any other end as well.
    gap = max(each.end for key, each in held.items() if key[0] == reservation_id) - old_end

    def moves_for(until: int) -> tuple[Move, ...] | None:
        longer = {
            key: replace(each, end=until + gap) if key[0] == reservation_id else each
            for key, each in held.items()
        }
        return _moves(gpu, longer, reservation_id, now)

    moves = moves_for(end)
    if moves is not None:
        return _Reach(end, moves)
    # Only where another one begins can it come to be too much.
    others = {each.start - gap for each in held.values()}
    stops = sorted(each for each in others if old_end < each < end)
    fitting = bisect_right(stops, False, key=lambda until: moves_for(until) is None)
    until = stops[fitting - 1] if fitting else old_end
    changes = [each.start - gap for key, each in held.items() if key[0].startswith(PARTITION)]
    recut = any(start <= until for start in changes)
    return _Reach(until, code="layout_change_scheduled" if recut else "units_booked")


def _moves(
    gpu: HeldGpu, held: Mapping[BookingKey, Held], reservation_id: str, now: int
) -> tuple[Move, ...] | None:
    """Return who makes way where the reservation overlaps others; None where nobody can."""
    mine = [each for key, each in held.items() if key[0] == reservation_id]
    others = [each for key, each in held.items() if key[0] != reservation_id]
    if not any(
        one.units & other.units and one.start < other.end and other.start < one.end
        for one in mine
        for other in others
    ):
        return ()
    if gpu.split not in ("slots", "shares"):
        return None
    moved = deal_again(GpuState(gpu.id, gpu.split, gpu.ruler, {}, {}, held=dict(held)), now)
    return None if moved is None else tuple(Move(gpu.id, key, units) for key, units in moved)


def _in_the_way(blocked: Sequence[_Blocked], old_end: datetime, end: datetime) -> ConflictError:
    first = min(blocked, key=lambda each: each.until)
    until = format_instant(first.until)
    longer = first.until > old_end
    return ConflictError(
        _WHY[first.code],
        field="end",
        given=format_instant(end),
        allowed=f"an end until {until}" if longer else None,
        hint=f"It can be kept until {until}" if longer else "It cannot be kept any longer",
        details={
            "free_until": until,
            "in_the_way": [
                {"code": each.code, "gpu_id": each.gpu_id, "from": format_instant(each.until)}
                for each in blocked
            ],
        },
    )


def _end(request: ReservationUpdate, start: datetime) -> datetime:
    if request.end is not None:
        return parse_instant(request.end, field="end")
    duration = parse_duration(request.duration or "", field="duration")
    if start > _LAST - duration:
        raise InvalidInputError(
            "reaches beyond the calendar", field="duration", given=request.duration
        )
    return start + duration


def asked(request: ReservationUpdate) -> dict[str, Any]:
    """Return by which field an end came in, and what was given there, for a refusal."""
    field = "duration" if request.end is None else "end"
    return {"field": field, "given": request.duration if request.end is None else request.end}


def _event(row: Row, end: datetime) -> Event:
    told = {"pool_id": row["pool_id"], "end": format_instant(end)}
    before, after = {"end": end_text(row)}, {"end": format_instant(end)}
    if end > row["ends_at"]:
        return Event(
            "reservation.extended", row["tenant_id"], row["id"], told, before=before, after=after
        )
    return Event(
        "reservation.shortened", row["tenant_id"], row["id"], told, before=before, after=after
    )
