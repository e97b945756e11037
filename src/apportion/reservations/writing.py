"""Writing what was decided: where nobody was faster, all of it in one trip."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from psycopg.errors import ExclusionViolation

from apportion.bookings import service as bookings
from apportion.bookings.service import Holding, Since
from apportion.nodes import service as nodes
from apportion.pools.service import AskedToCharge, QuotaKey, ask_to_charge
from apportion.reservations import rows
from apportion.reservations.plan import Decision, Placed
from apportion.reservations.trying import Chosen
from apportion.store.connections import Connection

_NOTHING: Final[Mapping[QuotaKey, Decimal]] = {}


class MovedError(Exception):
    """Units that were to be dealt again are no longer as they were planned to be."""


async def write_at_once(
    connection: Connection, chosen: Chosen, since: Since, now: datetime
) -> Holding | None:
    """Hold, book and record what was chosen, where nobody is to make way for it, in one trip.

    Who books the same GPUs next waits for all that we do from holding them on, so nothing is said
    to and fro meanwhile. Where something stands in the way, `Chosen.written` is not set: what was
    tried is to be taken back, as ``again`` of `bookings.hold` does, and the answer tells what it is
    that others did. None is for units that were booked before, though a picture has them as free.
    """
    plan = chosen.plan
    try:
        async with connection.pipeline():
            asked = await bookings.ask_to_hold(
                connection, plan, since, now, again=chosen.held, book=True
            )
            hosts = await bookings.ask_for_hosts(connection, plan.hosts) if plan.hosts else None
            charged = await _ask_to_record(connection, chosen.kept, now)
    except ExclusionViolation:
        return None
    holding = await asked.holding()
    overfull = hosts is not None and bool(await hosts.overfull())
    gone = any(booking.gpu_id not in holding.gpus for booking in plan.bookings)
    if not (holding.tells or overfull or gone):
        await charged.check()
        chosen.written = True
    return holding


async def write(connection: Connection, chosen: Chosen, now: datetime) -> set[str]:
    """Book what is held; returns the ids of those that lost, which are withdrawn.

    Raises MovedError.
    """
    placed = chosen.placed
    hosts = [host for each in placed for host in each.hosts]
    overfull = await bookings.insert_host(connection, hosts)
    lost = {host.reservation_id for host in hosts if host.node_id in overfull}
    wanted = [b for each in placed if each.draft.id not in lost for b in each.bookings]
    moves = [m for each in placed if each.draft.id not in lost for m in each.moves]
    if not await bookings.redeal(connection, moves, now):
        raise MovedError
    won = await bookings.insert(connection, wanted)
    lost |= {booking.reservation_id for booking in wanted if booking.key not in won}
    if lost and moves:
        raise MovedError
    await bookings.withdraw(connection, lost)
    return lost


async def record(
    connection: Connection,
    kept: Sequence[Decision],
    now: datetime,
    given_back: Mapping[QuotaKey, Decimal] = _NOTHING,
) -> None:
    """Write reservations, what is asked of nodes, events and charges of what is booked."""
    # In one go: the database writes reservations while we still put events into words.
    async with connection.pipeline():
        charged = await _ask_to_record(connection, kept, now, given_back)
    await charged.check()


async def _ask_to_record(
    connection: Connection,
    kept: Sequence[Decision],
    now: datetime,
    given_back: Mapping[QuotaKey, Decimal] = _NOTHING,
) -> AskedToCharge:
    charges = {key: -amount for key, amount in given_back.items()}
    for each in kept:
        if not isinstance(each, Placed):
            continue
        for resource, amount in each.charges.items():
            key = each.quota_key(resource)
            charges[key] = charges.get(key, Decimal(0)) + amount
    asked = [each.draft.id for each in kept if isinstance(each, Placed) and each.asked]
    await nodes.assign(connection, asked, now)
    await rows.write(connection, kept, now)
    await rows.tell(connection, now, kept)
    return await ask_to_charge(connection, charges)
