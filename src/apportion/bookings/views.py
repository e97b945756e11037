"""What is booked, as it is shown and billed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

from apportion.quantities.units import from_multirange
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.bookings")


_OF_ITS_KIND: Final = ("migProfile", "vramGiB")
_OF_ITSELF: Final = ("migUuid", "giId", "ciId")
_TOLD: Final = ("state", "since", "reason", "bound", "released", "in_hands")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Whether a piece's node has it ready for its holder, since when, and why or why not.

    ``bound`` and ``released`` are the node's word that it was handed out, and taken back; between
    them it is ``in_hands``: somebody may be on it.
    """

    state: str
    since: datetime
    reason: Mapping[str, Any]
    bound: Mapping[str, Any] | None = None
    released: Mapping[str, Any] | None = None
    in_hands: bool = False


class BookingView(NamedTuple):
    """A booking as it is shown.

    ``attributes`` are what its atom is, where it has one. ``allocation`` is None while its window
    has not begun, and where nobody on the node follows its spec. Nothing is heard of its node from
    ``stale_since`` on.
    """

    reservation_id: str
    gpu_id: str
    node: str
    piece: int
    device: int
    cls: str
    units: str
    atom: str | None
    share: Fraction
    start: datetime
    end: datetime
    held_until: datetime
    attributes: Mapping[str, Any]
    stale_since: datetime | None
    allocation: Allocation | None


def shown_attributes(attributes: Mapping[str, Any], *, has_agent: bool) -> Mapping[str, Any]:
    """Return what is shown of an atom before its node has said that it is ready.

    An instance that is there may be somebody else's, about to go. Where nobody follows the node's
    spec, what is there is all that there will be.
    """
    keys = _OF_ITS_KIND if has_agent else (*_OF_ITS_KIND, *_OF_ITSELF)
    return {key: attributes[key] for key in keys if key in attributes}


async def of_reservations(
    connection: Connection, reservation_ids: Sequence[str]
) -> dict[str, list[BookingView]]:
    """Return the bookings of some reservations, in the order of their pieces."""
    cursor = await connection.execute(_QUERIES["of_reservations"], {"ids": list(reservation_ids)})
    found: dict[str, list[BookingView]] = {each: [] for each in reservation_ids}
    for row in await cursor.fetchall():
        view = _view(row)
        found[view.reservation_id].append(view)
    return found


def _view(row: dict[str, Any]) -> BookingView:
    share = Fraction(row.pop("share_num"), row.pop("share_den"))
    told = {name: row.pop(name) for name in _TOLD}
    attributes: Mapping[str, Any] = row.pop("attributes") or {}
    instance: Mapping[str, Any] = row.pop("instance") or {}
    known = shown_attributes(attributes, has_agent=row.pop("has_agent"))
    return BookingView(
        **row,
        share=share,
        attributes={**known, **instance},
        allocation=None if told["state"] is None else Allocation(**told),
    )


@dataclass(frozen=True, slots=True)
class Places:
    """The GPUs on which a reservation has pieces, and the nodes whose host it takes of."""

    gpus: set[int]
    nodes: set[int]


@dataclass(frozen=True, slots=True)
class PieceHeld:
    """A piece that a reservation has: the GPU and the atom by their numbers, units as a mask."""

    gpu_id: int
    units: int
    atom_id: int | None


async def places_of(connection: Connection, reservation_ids: Sequence[str]) -> dict[str, Places]:
    """Return where each of some reservations lies."""
    cursor = await connection.execute(_QUERIES["places_of"], {"ids": list(reservation_ids)})
    found = {each: Places(set(), set()) for each in reservation_ids}
    for row in await cursor.fetchall():
        places = found[row["reservation_id"]]
        if row["gpu_id"] is None:
            places.nodes.add(row["node_id"])
        else:
            places.gpus.add(row["gpu_id"])
    return found


async def pieces_of(
    connection: Connection, reservation_ids: Sequence[str]
) -> dict[str, list[PieceHeld]]:
    """Return the pieces of some reservations, in their order."""
    cursor = await connection.execute(_QUERIES["pieces_of"], {"ids": list(reservation_ids)})
    found: dict[str, list[PieceHeld]] = {each: [] for each in reservation_ids}
    for row in await cursor.fetchall():
        piece = PieceHeld(row["gpu_id"], from_multirange(row["units"]), row["atom_id"])
        found[row["reservation_id"]].append(piece)
    return found


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """Units that a GPU has given for a window; a change of its cut has no reservation."""

    reservation_id: str | None
    units: str
    start: datetime
    end: datetime | None
    held_until: datetime | None


async def calendar(
    connection: Connection, gpu_id: str, span: tuple[datetime, datetime], *, limit: int
) -> list[CalendarRow]:
    """Return the first windows held on a GPU, by its UUID, that reach into a span, by start."""
    start, end = span
    cursor = await connection.execute(
        _QUERIES["calendar"], {"gpu_id": gpu_id, "start": start, "end": end, "limit": limit}
    )
    return [CalendarRow(**row) for row in await cursor.fetchall()]


async def allocated(connection: Connection, tenant_id: str, now: datetime) -> dict[str, Fraction]:
    """Return how many GPUs of each pool a tenant has booked at this instant, exactly."""
    cursor = await connection.execute(_QUERIES["allocated"], {"tenant_id": tenant_id, "now": now})
    totals: dict[str, Fraction] = {}
    for row in await cursor.fetchall():
        share = row["count"] * Fraction(row["share_num"], row["share_den"])
        totals[row["pool_id"]] = totals.get(row["pool_id"], Fraction(0)) + share
    return totals


async def usage(
    connection: Connection, tenant_id: str, start: datetime, end: datetime
) -> Iterable[Mapping[str, Any]]:
    """Return booked microseconds within [start, end) by pool, class and share."""
    cursor = await connection.execute(
        _QUERIES["usage"], {"tenant_id": tenant_id, "start": start, "end": end}
    )
    return await cursor.fetchall()


async def unheard_usage(
    connection: Connection, tenant_id: str, start: datetime, end: datetime
) -> Iterable[Mapping[str, Any]]:
    """Return by pool how many nodes and GPUs of these bookings were not heard of, and since when.

    Those whose silence began after the booking, or after the window, are left out.
    """
    cursor = await connection.execute(
        _QUERIES["unheard_usage"], {"tenant_id": tenant_id, "start": start, "end": end}
    )
    return await cursor.fetchall()
