"""An auditor of the database: reads the rows with SQL of its own and reports every broken rule.

It shares nothing with the services that it judges, lest an error of theirs be its own as well. It
knows the package's geometry, and nothing else of what they know.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from apportion.geometry import boards
from apportion.testing.rules import CHANGES, RULES

SEATS: Final = 48
FINE_UNITS: Final = 442720643463713815200
"""Of one GPU: every share that a booking can have is a whole number of them."""
_LAST: Final = datetime.max.replace(tzinfo=UTC)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that does not hold: its name, what it fails for, and how."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


async def audit(connection: AsyncConnection[Any], now: datetime) -> list[Finding]:
    """Return what is wrong as of ``now``, read from one snapshot of the database.

    The rules: exclusive (no two bookings share units of a GPU at an instant), legal (a MIG booking
    lies on a placement of its board, and none on what was retired), ruler (units are those that
    the GPU has), shared (what is billed of a GPU at an instant is never more than the GPU), host
    (booked CPU and memory never exceed the node's), quota (used is what live reservations are
    charged), held (a live reservation has exactly what it asked for, in its window, is charged
    exactly that, and nobody else has anything), and those of `rules`.

    Ends the connection's transaction, if one was begun.
    """
    await connection.rollback()
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        tables = {name: await _rows(connection, query, now) for name, query in _TABLES.items()}
        breaks = [(rule, await _rows(connection, _named(query), now)) for rule, query in RULES]
    return [
        *_overlaps(tables["overlaps"]),
        *_illegal(tables["bookings"]),
        *_retired(tables["bookings"]),
        *_off_ruler(tables["bookings"]),
        *_overshared(tables["bookings"]),
        *_overfull_hosts(tables["hosts"], tables["capacities"]),
        *_wrong_quotas(tables["quotas"], tables["reservations"]),
        *_not_held(tables["reservations"], tables["bookings"], tables["hosts"]),
        *_held_by_none(tables["reservations"], tables["bookings"], tables["hosts"]),
        *(Finding(rule=rule, **row) for rule, rows in breaks for row in rows),
    ]


# A booking counts while it was not voided; those that have ended are history, and stay exclusive.
_TABLES: Final[dict[str, LiteralString]] = {
    "overlaps": """
        SELECT gpus.uuid, one.id AS one, other.id AS other
        FROM bookings AS one
        JOIN bookings AS other ON other.gpu_id = one.gpu_id AND other.id > one.id
            AND other.units && one.units AND other.during && one.during
        JOIN gpus ON gpus.id = one.gpu_id
        WHERE one.voided_at IS NULL AND other.voided_at IS NULL""",
    "bookings": """
        SELECT bookings.id, bookings.tenant_id, bookings.pool_id, reservation_id, device, piece,
            bookings.class, lower(planned) AS start, upper(planned) AS end,
            planned <@ during AND lower(planned) = lower(during) AS planned_within,
            coalesce(upper(during), 'infinity') > %(now)s AS live,
            gpus.uuid, gpus.node_id, numa_node, gpus.pool_id AS gpu_pool, gpus.split, gpus.ruler,
            gpus.board, atoms.profile, atoms.start AS placed_at, atoms.board AS atom_board,
            bookings.share_num, bookings.share_den,
            atoms.retired_at IS NOT NULL AS retired, atoms.reason IS NULL AS on_demand,
            ARRAY(
                SELECT ARRAY[lower(part), upper(part)] FROM unnest(bookings.units) AS part
            ) AS units
        FROM bookings
        JOIN gpus ON gpus.id = bookings.gpu_id
        LEFT JOIN atoms ON atoms.id = bookings.atom_id
        WHERE voided_at IS NULL""",
    "hosts": """
        SELECT host_bookings.id, reservation_id, node_id, vcpu_milli, memory_mib,
            lower(during) AS start, upper(during) AS end,
            coalesce(upper(during), 'infinity') > %(now)s AS live
        FROM host_bookings WHERE voided_at IS NULL""",
    "capacities": """
        SELECT nodes.id, nodes.name, coalesce(cpu.capacity, 0) AS vcpu_milli,
            coalesce(memory.capacity, 0) AS memory_mib
        FROM nodes
        LEFT JOIN node_resources AS cpu ON cpu.node_id = nodes.id AND cpu.resource = 'vcpu'
        LEFT JOIN node_resources AS memory
            ON memory.node_id = nodes.id AND memory.resource = 'memoryGiB'""",
    "quotas": "SELECT tenant_id, pool_id, resource, used FROM quotas",
    "reservations": """
        SELECT id, tenant_id, charged_tenant_id, pool_id, state, reason, devices, vcpu_milli,
            memory_mib, members, placement, charges, series_id, starts_at AS start, ends_at AS end,
            state IN ('placed', 'active', 'ending') AS live
        FROM reservations""",
}


def _named(query: LiteralString) -> LiteralString:
    return "SELECT * FROM (" + query + ") AS breaks (subject, message)"  # noqa: S608 - of our own


async def _rows(
    connection: AsyncConnection[Any], query: LiteralString, now: datetime
) -> Sequence[Row]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query, {"now": now, "changes": CHANGES})
        return await cursor.fetchall()


def _overlaps(overlaps: Iterable[Row]) -> Iterator[Finding]:
    for row in overlaps:
        yield Finding(
            rule="exclusive",
            subject=row["uuid"],
            message=f"bookings {row['one']} and {row['other']} share units at an instant",
        )


def _illegal(bookings: Iterable[Row]) -> Iterator[Finding]:
    for row in bookings:
        if row["class"] != "gpu.mig" or not row["live"]:
            continue
        place = (row["board"], row["profile"], row["placed_at"])
        if row["board"] != row["atom_board"] or _placements().get(place) != _mask(row["units"]):
            yield Finding(
                rule="legal",
                subject=row["uuid"],
                message=f"booking {row['id']} lies on no placement of the board {row['board']}",
            )


@cache
def _placements() -> dict[tuple[str, str, int], int]:
    return {
        (board.key, profile.name, place.start): place.mask
        for board in boards()
        for profile in board.profiles
        for place in profile.placements
    }


def _retired(bookings: Iterable[Row]) -> Iterator[Finding]:
    for row in bookings:
        if row["live"] and row["retired"]:
            yield Finding(
                rule="legal",
                subject=row["uuid"],
                message=f"booking {row['id']} lies on something that is no longer there",
            )


def _mask(units: Iterable[tuple[int, int | None]]) -> int:
    mask = 0
    for low, high in units:
        mask |= -1 << low if high is None else (1 << high) - (1 << low)
    return mask


def _off_ruler(bookings: Iterable[Row]) -> Iterator[Finding]:
    split_of = {"gpu": "none", "gpu.mig": "mig", "gpu.slot": "slots", "gpu.share": "shares"}
    for row in bookings:
        if not row["live"] or row["class"] not in split_of:
            continue
        units, ruler = _mask(row["units"]), (1 << row["ruler"]) - 1
        seats = ((1 << SEATS) - 1) << row["ruler"]
        match row["class"]:
            case "gpu":
                wrong = units != -1
            case "gpu.share":
                wrong = units & ~(ruler | seats) or (units & seats).bit_count() != 1
            case _:
                wrong = units & ~ruler
        # Where instances are made on demand, the GPU is booked whole too.
        whole = row["class"] == "gpu" and row["split"] == "mig" and row["on_demand"]
        if wrong or (row["split"] != split_of[row["class"]] and not whole):
            yield Finding(
                rule="ruler",
                subject=row["uuid"],
                message=f"booking {row['id']} of {row['class']} has units that are none of a GPU "
                f"split by {row['split']} into {row['ruler']}",
            )


def _overshared(bookings: Iterable[Row]) -> Iterator[Finding]:
    """Walk along the time of each GPU; what ends is gone before what begins at that instant."""
    changes: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for row in bookings:
        part = row["share_num"] * FINE_UNITS // row["share_den"]
        changes[row["uuid"]] += [(row["start"], part), (row["end"] or _LAST, -part)]
    for uuid, own in changes.items():
        billed = 0
        for instant, part in sorted(own):
            billed += part
            if billed > FINE_UNITS:
                yield Finding(
                    rule="shared",
                    subject=uuid,
                    message=f"{Fraction(billed, FINE_UNITS)} of it are billed at {instant}",
                )
                break


def _overfull_hosts(hosts: Iterable[Row], capacities: Iterable[Row]) -> Iterator[Finding]:
    by_node: dict[int, list[Row]] = {}
    for row in hosts:
        if row["live"]:
            by_node.setdefault(row["node_id"], []).append(row)
    for node in capacities:
        booked = by_node.get(node["id"], [])
        for instant in {row["start"] for row in booked}:
            running = [r for r in booked if r["start"] <= instant < (r["end"] or _LAST)]
            for amount in ("vcpu_milli", "memory_mib"):
                level = sum(row[amount] for row in running)
                if level > node[amount]:
                    yield Finding(
                        rule="host",
                        subject=node["name"],
                        message=f"{level} {amount} booked at {instant}, of {node[amount]}",
                    )


def _wrong_quotas(quotas: Iterable[Row], reservations: Iterable[Row]) -> Iterator[Finding]:
    charged: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    for row in reservations:
        if row["live"]:
            for resource, amount in row["charges"].items():
                charged[row["charged_tenant_id"], row["pool_id"], resource] += Decimal(amount)
    used = {(row["tenant_id"], row["pool_id"], row["resource"]): row["used"] for row in quotas}
    for key in sorted(charged.keys() | used.keys()):
        if charged[key] != used.get(key, 0):
            yield Finding(
                rule="quota",
                subject=" ".join(key),
                message=f"used says {used.get(key)}, live reservations are charged {charged[key]}",
            )


def _not_held(
    reservations: Iterable[Row], bookings: Iterable[Row], hosts: Iterable[Row]
) -> Iterator[Finding]:
    """Compare what each live reservation has with what it asked for."""
    pieces: dict[str, list[Row]] = {}
    for row in bookings:
        pieces.setdefault(row["reservation_id"], []).append(row)
    hosted: dict[str, list[Row]] = {}
    for row in hosts:
        hosted.setdefault(row["reservation_id"], []).append(row)
    for row in reservations:
        if not row["live"]:
            continue
        own, own_hosts = pieces.get(row["id"], []), hosted.get(row["id"], [])
        for wrong in (
            *_wrong_pieces(row, own),
            *_wrong_bookings(row, own),
            *_wrong_places(row, own),
            *_wrong_hosts(row, own, own_hosts),
        ):
            yield Finding(rule="held", subject=row["id"], message=wrong)


def _wrong_pieces(reservation: Row, pieces: Sequence[Row]) -> Iterator[str]:
    wanted = Counter(
        (device, each["class"], _asked_units(each))
        for device, each in enumerate(reservation["devices"])
        for _ in range(each["count"])
    )
    for number, member in enumerate(_members(reservation, pieces)):
        got = Counter((row["device"], row["class"], _booked_units(row)) for row in member)
        if wanted != got:
            yield f"asked for {dict(wanted)} and has {dict(got)} as member {number}"
    every = reservation["members"] * sum(wanted.values())
    if sorted(row["piece"] for row in pieces) != list(range(every)):
        yield f"has not the pieces 0 to {every - 1}, each once"


def _members(reservation: Row, pieces: Iterable[Row]) -> list[list[Row]]:
    """Part pieces by the members of a gang, in whose order they are numbered."""
    size = sum(device["count"] for device in reservation["devices"])
    return [
        [row for row in pieces if size and row["piece"] // size == number]
        for number in range(reservation["members"])
    ]


def _wrong_places(reservation: Row, pieces: Sequence[Row]) -> Iterator[str]:
    """Compare where the pieces of each member lie with where they were to lie."""
    wishes = reservation["placement"]
    members = _members(reservation, pieces)
    for member in members:
        gpus = {row["uuid"]: row["numa_node"] for row in member}
        if len({row["node_id"] for row in member}) > 1:
            yield "lies on more than one node"
        if wishes.get("apart") and len(gpus) != len(member):
            yield "has two pieces on one GPU, which were to be apart"
        together = wishes.get("together", "node")
        # A GPU whose NUMA node is not known is a domain of its own.
        spread = together == "numa" and (len(set(gpus.values())) > 1 or None in gpus.values())
        if len(gpus) > 1 and (together == "gpu" or spread):
            yield f"has pieces on {sorted(gpus)}, which were to be of one {together}"
    nodes = [row["node_id"] for member in members for row in member[:1]]
    if wishes.get("members_apart") and len(set(nodes)) != len(nodes):
        yield "has two members on one node, which were to be apart"


def _wrong_bookings(reservation: Row, pieces: Iterable[Row]) -> Iterator[str]:
    pool = reservation["pool_id"]
    for row in pieces:
        if (row["start"], row["end"]) != (reservation["start"], reservation["end"]):
            yield f"booking {row['id']} has another window than the reservation"
        if not row["planned_within"]:
            yield f"booking {row['id']} keeps less time than it is planned for"
        if (row["tenant_id"], row["pool_id"], row["gpu_pool"]) != (
            reservation["tenant_id"],
            pool,
            pool,
        ):
            yield f"booking {row['id']} belongs to another tenant or pool"


def _wrong_hosts(reservation: Row, pieces: Sequence[Row], hosts: Sequence[Row]) -> Iterator[str]:
    amounts = ("vcpu_milli", "memory_mib")
    asked = [reservation[amount] for amount in amounts]
    there = Counter(member[0]["node_id"] for member in _members(reservation, pieces) if member)
    for host in hosts:
        if (host["start"], host["end"]) != (reservation["start"], reservation["end"]):
            yield "has its host resources in another window"
        expected = [there[host["node_id"]] * amount for amount in asked]
        if pieces and [host[amount] for amount in amounts] != expected:
            yield f"has other host resources on node {host['node_id']} than its members there"
    if reservation["placement"].get("members_apart") and any(asked):
        each = [[host[amount] for amount in amounts] for host in hosts]
        if each != [asked] * reservation["members"]:
            yield "has two members on one host, which were to be apart"
    total = [sum(host[amount] for host in hosts) for amount in amounts]
    if total != [reservation["members"] * amount for amount in asked]:
        yield "has not the host resources that it asked for"
    charges = {key: Decimal(value) for key, value in reservation["charges"].items()}
    # A series is charged its peak, on one after the other of it.
    if reservation["series_id"] is None and _charges(pieces, hosts) != charges:
        yield f"is charged {reservation['charges']}, which is not what it has"


def _asked_units(device: Row) -> int:
    return device["units"] if device["class"] in ("gpu.slot", "gpu.share") else 1


def _booked_units(booking: Row) -> int:
    if booking["class"] not in ("gpu.slot", "gpu.share"):
        return 1
    return (_mask(booking["units"]) & (1 << booking["ruler"]) - 1).bit_count()


def _charges(pieces: Sequence[Row], hosts: Sequence[Row]) -> dict[str, Decimal]:
    charges: dict[str, Decimal] = {}
    for row in pieces:
        charges[row["class"]] = charges.get(row["class"], Decimal(0)) + _booked_units(row)
    if fine := sum(row["share_num"] * FINE_UNITS // row["share_den"] for row in pieces):
        charges["gpuEquivalents"] = Decimal(fine)
    if vcpu := sum(host["vcpu_milli"] for host in hosts):
        charges["vcpu"] = Decimal(vcpu) / 1000
    if memory := sum(host["memory_mib"] for host in hosts):
        charges["memoryGiB"] = Decimal(memory) / 1024
    return charges


def _held_by_none(
    reservations: Iterable[Row], bookings: Iterable[Row], hosts: Iterable[Row]
) -> Iterator[Finding]:
    """Find bookings that reach past the end of a reservation, or belong to one that never began."""
    by_id = {row["id"]: row for row in reservations}
    for kind, rows in (("booking", bookings), ("host booking", hosts)):
        for row in rows:
            if row["reservation_id"] is None:
                continue
            holder = by_id.get(row["reservation_id"])
            if holder is None or holder["state"] in ("pending", "failed"):
                wrong = f"{kind} {row['id']} has no holder that may have it"
            elif not holder["live"] and (row["end"] or _LAST) > holder["end"]:
                wrong = f"{kind} {row['id']} reaches past the end of what it is held for"
            else:
                continue
            yield Finding(rule="held", subject=row["reservation_id"], message=wrong)
