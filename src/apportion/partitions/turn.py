"""One node's turn at the gate: it waits for its holders, is granted its cut, and is let go.

    pending ──────────▶ scheduled ──────────▶ granted ──────────▶ settled
       ▲  └▶ waiting_open_ended ┘     at hold_from      observed

Every step is one transaction that holds, in this order, the pool, the node, its row here, its GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import SYSTEM, Caller
from apportion.bookings import service as bookings
from apportion.bookings.service import Booked, LiveBooking
from apportion.errors import ConflictError
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.nodes.service import Node, cut_text, takes_cut
from apportion.partitions.rows import QUERIES, HeldGpu, NodeLayout, Reason, why
from apportion.pools.service import PoolRecord, hold_record
from apportion.quantities.windows import Window, format_instant
from apportion.store.connections import Connection

NAMED_MAX: Final = 10
"""The most reservations that a reason names; it counts them all."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A node whose rows are held, as it was when its turn came."""

    connection: Connection
    pool: PoolRecord
    node: Node
    layout: NodeLayout
    now: datetime

    async def move(self, event: str, facts: Mapping[str, object], **changes: Any) -> "Turn":
        """Write where the node stands from now on, and tell it to the pool's owner."""
        after = replace(self.layout, **changes)
        await self.connection.execute(
            QUERIES["move"],
            {
                "node_id": after.node_id,
                "state": after.state,
                "granted": Jsonb(after.granted),
                "pending": None if after.pending is None else Jsonb(after.pending),
                "hold_from": after.hold_from,
                "grant_generation": after.grant_generation,
                "reason": Jsonb(after.reason),
                "now": self.now,
            },
        )
        told = Event(
            f"node.mig.{event}",
            after.tenant_id,
            self.node["uid"],
            {"pool_id": after.pool_id, "name": self.node["name"], **facts},
            before=shown(self.layout),
            after=shown(after),
        )
        await append(self.connection, SYSTEM, self.now, [told])
        return replace(self, layout=after)


def shown(layout: NodeLayout) -> Mapping[str, object]:
    """Return where a node stands, as the audit has it."""
    return {
        "state": layout.state,
        "granted": layout.granted,
        "pending": layout.pending,
        "hold_from": None if layout.hold_from is None else format_instant(layout.hold_from),
    }


async def take_turn(
    connection: Connection, node_id: int, pool_id: str, tenant_id: str, now: datetime
) -> Turn | None:
    """Hold a node's rows; None where it has gone."""
    owner = Caller(tenant_id, SYSTEM.actor)
    pool = await hold_record(connection, owner, "compute:pools:manage", pool_id)
    node = await nodes.hold_node(connection, pool_id, node_id)
    layout = await hold_layout(connection, node_id)
    if node is None or layout is None:
        return None
    return Turn(connection, pool, node, layout, now)


async def hold_layout(connection: Connection, node_id: int) -> NodeLayout | None:
    """Hold where a node stands; None where it was never gated."""
    cursor = await connection.execute(QUERIES["hold_layout"], {"node_id": node_id})
    row = await cursor.fetchone()
    return None if row is None else NodeLayout(**row)


async def proceed(turn: Turn) -> bool:
    """Keep the node from the end of its last booking on, and grant when that has come.

    Returns False where there was nothing to do.
    """
    gpus = await _hold_gpus(turn)
    own = {gpu.booking_id for gpu in gpus}
    live = await bookings.live_on(turn.connection, [gpu.id for gpu in gpus], turn.now)
    others = [each for each in live if each.id not in own]
    if any(each.end is None for each in others):
        return await _wait(turn, others)
    until = max([turn.now, *(each.end for each in others if each.end is not None)])
    for gpu in gpus:
        await _keep(turn, gpu, until)
    if until > turn.now:
        return await _schedule(turn, until, others)
    if leavers := await nodes.leavers(turn.connection, turn.layout.node_id):
        return await _blocked(turn, until, leavers)
    await _grant(turn, until)
    return True


async def _hold_gpus(turn: Turn) -> list[HeldGpu]:
    parameters = {"node_id": turn.layout.node_id}
    cursor = await turn.connection.execute(QUERIES["hold_gpus"], parameters)
    return [HeldGpu(**row) for row in await cursor.fetchall()]


async def _wait(turn: Turn, others: Sequence[LiveBooking]) -> bool:
    """Hold nothing while somebody has no end: nobody can say when the node's turn is."""
    holders = sorted({each.holder for each in others if each.end is None})
    reason = why(
        "waiting_open_ended",
        f"{len(holders)} reservations on it have no end",
        reservations=len(holders),
        held_by=holders[:NAMED_MAX],
    )
    if (turn.layout.state, turn.layout.reason) == ("waiting_open_ended", reason):
        return False
    await release_gpus(turn)
    facts = {"held_by": holders[:NAMED_MAX], "reservations": len(holders)}
    await turn.move("waiting", facts, state="waiting_open_ended", hold_from=None, reason=reason)
    return True


async def _keep(turn: Turn, gpu: HeldGpu, until: datetime) -> None:
    """Have a GPU held from then on at the latest; what is held already never begins later."""
    if gpu.booking_id is not None and gpu.held_from is not None:
        if gpu.held_from <= until:
            return
        await bookings.release_partition_change(turn.connection, gpu.booking_id, turn.now)
    kept = await bookings.book_partition_change(turn.connection, gpu.uuid, Window(start=until))
    if not isinstance(kept, Booked):
        raise ConflictError(f"GPU {gpu.uuid} was booked while its row was held")
    message = f"nothing of it can be booked from {format_instant(until)} on"
    await turn.connection.execute(
        QUERIES["keep_gpu"],
        {
            "gpu_id": gpu.id,
            "tenant_id": turn.layout.tenant_id,
            "node_id": turn.layout.node_id,
            "booking_id": kept.booking_id,
            "now": turn.now,
            "reason": Jsonb(why("layout_change_scheduled", message)),
        },
    )


async def _schedule(turn: Turn, until: datetime, others: Sequence[LiveBooking]) -> bool:
    if turn.layout.state == "scheduled" and turn.layout.hold_from == until:
        return False
    holders = {each.holder for each in others}
    last = sorted({each.holder for each in others if each.end == until})
    reason = why(
        "waiting_for_holders",
        f"{len(holders)} reservations on it end by {format_instant(until)}",
        reservations=len(holders),
        held_by=last[:NAMED_MAX],
        until=format_instant(until),
    )
    facts = {"at": format_instant(until), "reservations": len(holders)}
    await turn.move("scheduled", facts, state="scheduled", hold_from=until, reason=reason)
    return True


async def _blocked(turn: Turn, until: datetime, leavers: Sequence[str]) -> bool:
    """Wait for those who are still on what they had: nothing is cut otherwise under anybody."""
    reason = why(
        "blocked_by_overrun",
        f"{len(leavers)} reservations on it are over, and have not let go of what they had",
        reservations=len(leavers),
        held_by=list(leavers[:NAMED_MAX]),
    )
    if (turn.layout.state, turn.layout.reason) == ("scheduled", reason):
        return False
    hold_from = turn.layout.hold_from or until
    facts = {"at": format_instant(hold_from), "reservations": len(leavers)}
    await turn.move("scheduled", facts, state="scheduled", hold_from=hold_from, reason=reason)
    return True


async def _grant(turn: Turn, since: datetime) -> None:
    """Ask the node to become what is pending; nothing of it is in anybody's hands."""
    layout, pending = turn.layout, turn.layout.pending or {}
    generation = await nodes.raise_spec(turn.connection, layout.node_id, turn.now)
    applies = takes_cut(turn.pool, turn.node)
    reason = why(
        "node_converging",
        f"the node was asked for {cut_text(pending)} and has not reported that it is done",
        generation=generation,
    )
    parameters = {"node_id": layout.node_id, "now": turn.now, "reason": Jsonb(reason)}
    await turn.connection.execute(QUERIES["grant_gpus"], parameters)
    granted = await turn.move(
        "granted",
        {"cut": pending, "generation": generation},
        state="granted",
        granted=pending,
        pending=None,
        hold_from=since if layout.hold_from is None else min(since, layout.hold_from),
        grant_generation=generation,
        reason=reason,
    )
    # Slots, shares and places made on demand are what we say; instances what the node reports.
    await nodes.recut(turn.connection, turn.pool, layout.node_id, turn.now)
    if not applies:
        await let_go(granted, why("nobody_applies", _nobody(turn)))


def _nobody(turn: Turn) -> str:
    if turn.node["agent"] is None or turn.pool.agent == "none":
        return "nobody on the node follows its spec: its reports are imported"
    return "the node takes its MIG layout from itself"


async def let_go(turn: Turn, reason: Reason) -> None:
    """End a granted change: the node's GPUs take work again, unless another change waits."""
    await release_gpus(turn)
    layout = turn.layout
    facts = {"cut": layout.granted, "generation": layout.grant_generation, "why": reason["code"]}
    state = "settled" if layout.pending is None else "pending"
    await turn.move("applied", facts, state=state, hold_from=None, reason=reason)


async def release_gpus(turn: Turn) -> None:
    """Let go of every GPU that is kept for the node's change."""
    parameters = {"node_id": turn.layout.node_id}
    cursor = await turn.connection.execute(QUERIES["forget_gpus"], parameters)
    for row in sorted(await cursor.fetchall(), key=lambda each: int(each["booking_id"])):
        await bookings.release_partition_change(turn.connection, row["booking_id"], turn.now)
