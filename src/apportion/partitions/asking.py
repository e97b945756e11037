"""Asking a pool's nodes to be cut otherwise, and taking that back."""

from collections.abc import Mapping
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.nodes.service import Cut, cut_of
from apportion.partitions.freezing import drop, freeze
from apportion.partitions.rows import QUERIES
from apportion.partitions.schemas import LayoutAsk, LayoutChange
from apportion.pools.policy import read_stored
from apportion.pools.schemas import PoolUpdate, PoolView
from apportion.pools.service import get_pool, hold_record, update_pool
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime

_KEYS: Final = ("migLayout", "replicas", "shares")


def read_ask(request: LayoutAsk) -> Cut:
    """Return the cut that is asked for; InvalidInputError unless it is exactly one."""
    given = {
        "migLayout": None if request.layout is None else request.layout.lower(),
        "replicas": request.replicas,
        "shares": request.shares,
    }
    cut = {name: value for name, value in given.items() if value is not None}
    if len(cut) != 1:
        raise InvalidInputError(
            "is asked for in one way",
            field="layout",
            given=request.layout,
            allowed="one of layout, replicas and shares",
        )
    return cut


def with_asked(policy: Mapping[str, Any], cut: Cut) -> Mapping[str, Any]:
    """Return a pool's policy that asks for a cut, and is as it was otherwise."""
    return {**{key: each for key, each in policy.items() if key not in _KEYS}, **cut}


async def set_layout(
    runtime: Runtime, caller: Caller, pool_id: str, request: LayoutAsk
) -> LayoutChange:
    """Ask for a cut in the pool's policy; nodes that were left at another one are asked anew.

    Raises NotFoundError for a pool that is not the caller's, and what an update is refused for.
    """
    cut = read_ask(request)
    pool = await get_pool(runtime, caller, pool_id)
    if cut_of(read_stored(pool.policy)) != cut:
        await _update(runtime, caller, pool, cut)
    else:
        await retrying(runtime.db, lambda connection: _again(runtime, connection, caller, pool_id))
    return await _changed(runtime, pool_id, cut)


async def cancel_layout(runtime: Runtime, caller: Caller, pool_id: str) -> LayoutChange:
    """Drop every change of a pool's nodes that was not granted; one that was completes.

    Where no node was granted the new cut, the pool's policy asks for the old one again. Raises
    NotFoundError for a pool that is not the caller's.
    """
    pool = await get_pool(runtime, caller, pool_id)
    before = await _changed(runtime, pool_id, cut_of(read_stored(pool.policy)))
    cut = await retrying(runtime.db, lambda connection: _as_before(connection, caller, pool_id))
    if cut is not None:
        await _update(runtime, caller, pool, cut)
    else:
        await retrying(runtime.db, lambda connection: _drop(runtime, connection, caller, pool_id))
    desired = before.desired if cut is None else cut
    after = await _changed(runtime, pool_id, desired)
    return after.model_copy(update={"cancelled": before.changing - after.changing})


async def _update(runtime: Runtime, caller: Caller, pool: PoolView, cut: Cut) -> None:
    policy = dict(with_asked(pool.policy, cut))
    await update_pool(runtime, caller, pool.id, PoolUpdate(version=pool.version, policy=policy))


async def _again(runtime: Runtime, connection: Connection, caller: Caller, pool_id: str) -> int:
    pool = await hold_record(connection, caller, "compute:pools:manage", pool_id)
    cut = cut_of(pool.policy)
    return await freeze(connection, caller, pool_id, (cut, cut), runtime.now())


async def _as_before(connection: Connection, caller: Caller, pool_id: str) -> Cut | None:
    await hold_record(connection, caller, "compute:pools:manage", pool_id)
    cursor = await connection.execute(QUERIES["as_before"], {"pool_id": pool_id})
    row = await cursor.fetchone()
    return None if row is None else row["cut"]


async def _drop(runtime: Runtime, connection: Connection, caller: Caller, pool_id: str) -> int:
    await hold_record(connection, caller, "compute:pools:manage", pool_id)
    return await drop(connection, caller, pool_id, None, runtime.now())


async def _changed(runtime: Runtime, pool_id: str, cut: Cut) -> LayoutChange:
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(QUERIES["count_changing"], {"pool_id": pool_id})
        [row] = await cursor.fetchall()
    return LayoutChange(pool_id=pool_id, desired=dict(cut), changing=row["changing"])
