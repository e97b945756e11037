"""What a change of a pool's cut would mean, before anything happens."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache
from itertools import groupby
from typing import Any, Final

from apportion.authority.service import Caller, authorize
from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import Board, Layout, find_board, parse_layout
from apportion.nodes.service import Cut, cut_of, rules, stale_nodes
from apportion.partitions.asking import read_ask
from apportion.partitions.gate import at_once
from apportion.partitions.rows import QUERIES
from apportion.partitions.schemas import DemandPlan, GpuPlan, LayoutAsk, LayoutPlan, NodePlan
from apportion.placement import (
    Ask,
    AtomState,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    PoolIndex,
    Verdict,
)
from apportion.pools.policy import DYNAMIC, policy_problems
from apportion.pools.service import PoolBefore, PoolChange, PoolRecord, own_record
from apportion.reservations.service import Reservations, waiting_asks
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

Row = Mapping[str, Any]

_HOUR: Final = timedelta(hours=1) // timedelta(microseconds=1)
_NAMED_MAX: Final = 10


async def plan_layout(
    runtime: Runtime,
    reservations: Reservations,
    caller: Caller,
    pool_id: str,
    request: LayoutAsk,
) -> LayoutPlan:
    """Say when each GPU of a pool could change, who holds it back, and what it costs and brings.

    Raises NotFoundError for a pool that is not the caller's, InvalidInputError for a cut that its
    GPUs cannot have. Changes nothing.
    """
    cut = read_ask(request)
    now = runtime.now()
    async with transaction(runtime.db) as connection:
        pool = await own_record(connection, caller, pool_id)
        authorize(caller, "compute:pools:manage", pool.facts)
        await check_cut(
            connection, pool, cut, now, field="replicas" if "replicas" in cut else "layout"
        )
        cursor = await connection.execute(QUERIES["plan"], {"pool_id": pool_id, "now": now})
        rows = await cursor.fetchall()
        cursor = await connection.execute(QUERIES["pool_size"], {"pool_id": pool_id})
        [size] = await cursor.fetchall()
        stale = await stale_nodes(connection, [pool_id])
        asks = await waiting_asks(connection, pool_id)
        await reservations.fleet.sync(connection, [pool_id], now)
    current = cut_of(pool.policy)
    by_node = [list(own) for _, own in groupby(rows, key=lambda row: row["node_id"])]
    changing = [own for own in by_node if _changes(own[0], current, cut)]
    nodes = [_node(own, now) for own in changing]
    pinned = {own[0]["name"] for own in by_node if own[0]["pinned_layout"] is not None}
    known = [node.free_from for node in nodes if node.free_from is not None]
    return LayoutPlan(
        pool_id=pool_id,
        current=dict(current),
        wanted=dict(cut),
        changing=len(nodes),
        unchanged=len(by_node) - len(changing),
        at_once=at_once(size),
        ready=sum(free_from == now for free_from in known),
        open_ended=len(nodes) - len(known),
        last_from=max(known, default=None),
        stale=stale.get(pool_id),
        idle_gpu_hours=sum((node.idle_hours or Fraction(0) for node in nodes), Fraction(0)),
        demand=_demand(asks, reservations.fleet.indexes[pool_id].nodes.values(), cut, pinned),
        nodes=nodes,
    )


async def check_cut(
    connection: Connection, pool: PoolRecord, cut: Cut, now: datetime, *, field: str
) -> None:
    """Refuse a cut that a pool of its kind, or one of its boards, cannot have."""
    change = PoolChange(
        pool_id=pool.id,
        owner=pool.tenant_id,
        cls=pool.cls,
        sharing=pool.sharing,
        gpu_model=pool.gpu_model,
        policy=cut,
        before=PoolBefore(gpu_model=pool.gpu_model, policy={}, now=now),
    )
    of_boards = await rules.node_problems(connection, change)
    for problem in (*policy_problems(cut, pool.sharing, pool.gpu_model), *of_boards):
        problem.field = field
        raise problem


def _changes(node: Row, current: Cut, wanted: Cut) -> bool:
    """Tell whether a node follows its pool, and is cut otherwise."""
    there = current if node["granted"] is None else node["granted"]
    return node["pinned_layout"] is None and there != wanted


def _node(rows: Sequence[Row], now: datetime) -> NodePlan:
    """Work out a node's turn: it comes when the last of its GPUs is free."""
    gpus = [row for row in rows if row["gpu_id"] is not None]
    open_ended = sorted({holder for row in gpus for holder in row["open_ended"] or ()})
    ends = {row["gpu_id"]: max(now, row["free_from"] or now) for row in gpus}
    free_from = None if open_ended else max(ends.values(), default=now)
    last = sorted({row["held_by"] for row in gpus if row["free_from"] == free_from} - {None})
    plans = [_gpu(row, ends[row["gpu_id"]], free_from) for row in gpus]
    return NodePlan(
        node_id=rows[0]["node_id"],
        name=rows[0]["name"],
        free_from=free_from,
        held_by=last[:_NAMED_MAX],
        open_ended=open_ended[:_NAMED_MAX],
        idle_hours=None if free_from is None else _total(plan.idle_hours for plan in plans),
        gpus=plans,
    )


def _gpu(row: Row, free_from: datetime, of_node: datetime | None) -> GpuPlan:
    idle = None if of_node is None else _hours(of_node - free_from)
    return GpuPlan(
        gpu_id=row["gpu_id"],
        free_from=None if row["open_ended"] else free_from,
        held_by=row["held_by"],
        idle_hours=idle,
    )


def _hours(length: timedelta) -> Fraction:
    return Fraction(length // timedelta(microseconds=1), _HOUR)


def _total(hours: Iterable[Fraction | None]) -> Fraction:
    return sum((each for each in hours if each is not None), Fraction(0))


# -- what waits, on GPUs that nobody has -----------------------------------------------------------


def _demand(
    asks: Sequence[Ask], nodes: Collection[NodeState], cut: Cut, pinned: Collection[str]
) -> DemandPlan:
    """Place what waits on the pool's GPUs as if they were empty, cut as they are and as wanted."""
    cuts = {node.id: None if node.name in pinned else cut for node in nodes}
    now = _fits(asks, [_empty(node, None) for node in nodes]) if asks else 0
    then = _fits(asks, [_empty(node, cuts[node.id]) for node in nodes]) if asks else 0
    return DemandPlan(
        waiting=len(asks), weighed=len(asks), fit_now=now, fit_then=then, better=then > now
    )


def _fits(asks: Sequence[Ask], nodes: Sequence[NodeState]) -> int:
    index = PoolIndex(nodes)
    return sum(_take(index, ask, number) for number, ask in enumerate(asks))


def _take(index: PoolIndex, ask: Ask, number: int) -> bool:
    offer = index.place(ask, 0, 1, 0)
    if isinstance(offer, Verdict):
        return False
    for at, piece in enumerate(offer.pieces):
        index.book(piece.gpu, (f"ask/{number}", at), Held(0, 1, piece.units))
    if ask.vcpu_milli or ask.memory_mib:
        host = HostHeld(0, 1, ask.vcpu_milli, ask.memory_mib)
        index.book_host(offer.node, f"ask/{number}", host)
    return True


def _empty(node: NodeState, cut: Cut | None) -> NodeState:
    gpus = tuple(_recut(gpu, cut) if cut else replace(gpu, held={}) for gpu in node.gpus)
    return replace(node, gpus=gpus, held={})


def _recut(gpu: GpuState, cut: Cut) -> GpuState:
    if "replicas" in cut:
        return replace(gpu, split="slots", ruler=cut["replicas"], held={})
    if "shares" in cut:
        return replace(gpu, split="shares", ruler=cut["shares"], held={})
    layout = _layout(str(cut["migLayout"]), str(gpu.group["gpuProduct"]))
    if layout is None:
        return replace(gpu, held={})
    if not layout.mig_enabled:
        return replace(gpu, split="none", ruler=1, atoms=(), held={})
    atoms = tuple(
        AtomState(-1 - at, place.mask, place.profile, {"migProfile": place.profile})
        for at, place in enumerate(layout.placements)
    )
    return replace(gpu, split="mig", atoms=atoms, held={})


@cache
def _layout(name: str, product: str) -> Layout | None:
    """Return a layout on a board; None where it is made on demand, or the board is not known."""
    try:
        board: Board = find_board(product)
        return None if name == DYNAMIC else parse_layout(name, board)
    except (InvalidInputError, InvalidStateError):
        return None
