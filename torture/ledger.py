"""What callers were told, and what raw rows say: a judge that shares no code with the judged."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import dict_row

Row = Mapping[str, Any]

# Of an H100, as its driver lists them: how many memory slices a profile has, and where it may be.
PLACES: Mapping[str, tuple[int, Sequence[int]]] = {
    "1g.10gb": (1, range(7)),
    "2g.20gb": (2, (0, 2, 4)),
    "3g.40gb": (4, (0, 4)),
    "4g.40gb": (4, (0,)),
}
_SLICES = 8

# What may be told of a reservation after what.
_CHANGES = ("extended", "shortened")
_AFTER: Mapping[str, tuple[str, ...]] = {
    "": ("pending", "placed"),
    "pending": ("placed", "failed", "ended"),
    "placed": ("started", "ended", *_CHANGES),
    "started": ("ended", *_CHANGES),
    "extended": ("started", "ended", *_CHANGES),
    "shortened": ("started", "ended", *_CHANGES),
    "ended": (),
    "failed": (),
}
_LIVE = ("placed", "active", "ending")


@dataclass(slots=True)
class Told:
    """A reservation as its caller was told last."""

    id: str
    tenant: str
    state: str
    end: datetime | None
    units: frozenset[tuple[str, str]]
    released: bool = False


async def rows(connection: AsyncConnection[Any], query: LiteralString) -> list[Row]:
    """Read all rows of a query."""
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query)
        return [*await cursor.fetchall()]


_BOOKINGS = """
    SELECT uuid, reservation_id, bookings.class, bookings.units::text AS units, profile,
        lower(during) AS start, upper(during) AS end, upper(planned) AS planned_end
    FROM bookings
    JOIN gpus ON gpus.id = gpu_id
    LEFT JOIN atoms ON atoms.id = atom_id
    WHERE voided_at IS NULL"""


async def judge(connection: AsyncConnection[Any]) -> list[str]:
    """Return which rules raw rows break, in one snapshot."""
    await connection.rollback()
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        bookings = await rows(connection, _BOOKINGS)
        reservations = await rows(connection, "SELECT * FROM reservations")
        quotas = await rows(connection, "SELECT * FROM quotas")
        events = await rows(
            connection,
            "SELECT subject, type FROM events WHERE type LIKE 'reservation.%' ORDER BY xid, id",
        )
        [clock] = await rows(connection, "SELECT clock_timestamp() AS now")
    return [
        *_overlaps(bookings),
        *_illegal(bookings),
        *_homeless(bookings, reservations, clock["now"]),
        *_miscounted(bookings, reservations, quotas),
        *_silent(reservations),
        *_out_of_step(reservations, events),
    ]


def _slices(units: str) -> range:
    """Return the slices of a GPU that units such as ``{[0,4)}`` are; ``{[0,)}`` is all of them."""
    found = re.fullmatch(r"\{\[(\d+),(\d*)\)\}", units)
    if found is None:
        raise ValueError(f"not one stretch of slices: {units}")
    return range(int(found[1]), int(found[2]) if found[2] else _SLICES)


def _overlaps(bookings: Iterable[Row]) -> Iterator[str]:
    """Walk along the time of each slice of each GPU: whoever begins must find it left."""
    by_slice: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in bookings:
        for each in _slices(row["units"]):
            by_slice[row["uuid"], each].append(row)
    for (uuid, each), own in by_slice.items():
        own.sort(key=lambda row: row["start"])
        for one, other in pairwise(own):
            if other["start"] < one["end"]:
                yield (
                    f"{one['reservation_id']} and {other['reservation_id']} both have slice {each}"
                    f" of {uuid} at {other['start']}"
                )


def _illegal(bookings: Iterable[Row]) -> Iterator[str]:
    for row in bookings:
        if row["class"] == "gpu":
            continue
        slices = _slices(row["units"])
        size, starts = PLACES[row["profile"]]
        if len(slices) != size or slices.start not in starts:
            yield f"{row['reservation_id']} has {row['profile']} on {row['units']} of {row['uuid']}"


def _homeless(bookings: Iterable[Row], reservations: Iterable[Row], now: datetime) -> Iterator[str]:
    """Find what is kept from others for nobody: no pool here has a gap for cleaning up."""
    by_id = {row["id"]: row for row in reservations}
    held = Counter(row["reservation_id"] for row in bookings)
    for row in bookings:
        holder = by_id.get(row["reservation_id"])
        if holder is None:
            yield f"{row['reservation_id']} has units and does not exist"
        elif row["end"] != row["planned_end"] or row["end"] != holder["ends_at"]:
            yield f"{holder['id']} ends at {holder['ends_at']} and keeps units until {row['end']}"
        elif holder["state"] not in _LIVE and row["end"] > now + timedelta(seconds=1):
            yield f"{holder['id']} is {holder['state']} and keeps units until {row['end']}"
    for row in by_id.values():
        wanted = row["members"] * sum(device["count"] for device in row["devices"])
        if row["state"] in _LIVE and held[row["id"]] != wanted:
            yield f"{row['id']} is {row['state']} with {held[row['id']]} of {wanted} pieces"


def _miscounted(
    bookings: Iterable[Row], reservations: Iterable[Row], quotas: Iterable[Row]
) -> Iterator[str]:
    payers = {
        row["id"]: (row["charged_tenant_id"], row["pool_id"])
        for row in reservations
        if row["state"] in _LIVE
    }
    there: Counter[tuple[str, str, str]] = Counter()
    for row in bookings:
        if row["reservation_id"] in payers:
            there[*payers[row["reservation_id"]], row["class"]] += 1
    for row in quotas:
        if row["resource"] not in ("gpu", "gpu.mig"):
            continue
        counted = there.pop((row["tenant_id"], row["pool_id"], row["resource"]), 0)
        if row["used"] != Decimal(counted):
            yield f"{row['tenant_id']} uses {counted} {row['resource']}, and {row['used']} it says"
        if row["max"] is not None and row["used"] > row["max"]:
            yield f"{row['tenant_id']} uses {row['used']} {row['resource']} of {row['max']}"
    for key in there:
        yield f"{key} is used, and there is no such quota"


def _silent(reservations: Iterable[Row]) -> Iterator[str]:
    for row in reservations:
        reason = row["reason"]
        if not reason.get("code") or (row["state"] == "pending" and not reason.get("since")):
            yield f"{row['id']} is {row['state']} without a reason: {reason}"


def _out_of_step(reservations: Iterable[Row], events: Iterable[Row]) -> Iterator[str]:
    last: dict[str, str] = {}
    for row in events:
        kind, subject = row["type"].removeprefix("reservation."), row["subject"]
        if kind not in _AFTER:
            continue
        before = last.get(subject, "")
        if kind not in _AFTER[before]:
            yield f"{subject} told {kind} after {before or 'nothing'}"
        last[subject] = kind
    for row in reservations:
        told = last.pop(row["id"], "")
        fits = {
            "pending": ("pending",),
            "placed": ("placed", *_CHANGES),
            "active": ("placed", "started", *_CHANGES),
        }.get(row["state"], (row["state"],))
        if told not in fits:
            yield f"{row['id']} is {row['state']} and told {told or 'nothing'} last"
    for subject in last:
        yield f"{subject} has told something and does not exist"


async def compare(connection: AsyncConnection[Any], told: Iterable[Told]) -> list[str]:
    """Return where the rows are not what callers were told; everybody has had an answer."""
    await connection.rollback()
    there = {row["id"]: row for row in await rows(connection, "SELECT * FROM reservations")}
    units: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in await rows(connection, _BOOKINGS):
        units[row["reservation_id"]].add((row["uuid"], row["units"]))
    found: list[str] = []
    for each in told:
        row = there.pop(each.id, None)
        if row is None:
            found.append(f"{each.id} was answered with {each.state} and does not exist")
            continue
        if each.released and row["state"] not in ("ended", "failed"):
            found.append(f"{each.id} was released and is {row['state']}")
        if each.end is not None and row["ends_at"] != each.end:
            found.append(f"{each.id} was told to end at {each.end}, and ends at {row['ends_at']}")
        # One that was cancelled before it began has given its units back.
        if each.units and not each.released and units[each.id] != set(each.units):
            found.append(f"{each.id} was told of {set(each.units)} and has {units[each.id]}")
    found += [f"{each} exists, and nobody was told" for each in there]
    return found


async def lateness(connection: AsyncConnection[Any]) -> list[timedelta]:
    """Return how late the clock's work was, for each window that began or ended by itself."""
    found = await rows(
        connection,
        """
        SELECT events.occurred_at
            - CASE type WHEN 'reservation.started' THEN starts_at ELSE ends_at END AS late
        FROM events
        JOIN reservations ON reservations.id = subject
        WHERE type = 'reservation.started' OR (
            type = 'reservation.ended' AND reason ->> 'code' = 'expired'
        )""",
    )
    return [row["late"] for row in found]


async def overdue(connection: AsyncConnection[Any], now: datetime) -> int:
    """Return how many wait for the clock: windows that are over, patience that is at its end."""
    await connection.rollback()
    async with connection.cursor() as cursor:
        await cursor.execute(
            "SELECT count(*) FROM reservations WHERE (state = 'placed' AND starts_at <= %(now)s)"
            " OR (state IN ('placed', 'active') AND ends_at <= %(now)s)"
            " OR (state = 'pending' AND pending_until <= %(now)s)",
            {"now": now},
        )
        row = await cursor.fetchone()
    return 0 if row is None else int(row[0])
