"""What a pool's policy and model mean for its nodes: what speaks against a change, what follows it.

Loaded with the room's service, so that nobody changes a pool unjudged.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.bookings import service as bookings
from apportion.errors import ApportionError, InvalidInputError, InvalidStateError
from apportion.geometry import board_by_key, parse_device_name, parse_layout
from apportion.nodes.inventory import compute_again, derive_again
from apportion.pools.policy import DYNAMIC, PoolPolicy, read_stored
from apportion.pools.service import (
    PoolBefore,
    PoolChange,
    load_record,
    register_follow_up,
    register_validator,
)
from apportion.quantities.windows import format_instant
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")
_NAMED_MAX: Final = 10
"""The most nodes that a refusal names."""


async def node_problems(connection: Connection, change: PoolChange) -> Sequence[ApportionError]:
    """Return what the nodes, GPUs and bookings of a pool have against a change of it."""
    if change.pool_id is None or change.before is None:
        return []
    cursor = await connection.execute(_QUERIES["products"], {"pool_id": change.pool_id})
    products = await cursor.fetchall()
    return [
        *_model_problems(change, products),
        *_layout_problems(change, products),
        *await _ruler_problems(connection, change, change.pool_id, change.before),
    ]


async def follow_change(
    connection: Connection, caller: Caller, change: PoolChange, now: datetime
) -> None:
    """Derive atoms and host resources anew where a change has a say in them.

    Everything is held first and judged again: who booked in between on the old ruler wins, and the
    change is undone.
    """
    before = change.before
    if change.pool_id is None or before is None:
        return
    was, will = read_stored(before.policy), read_stored(change.policy)
    recut = (before.gpu_model, _ruler(was)) != (change.gpu_model, _ruler(will))
    if not recut and _given_by_hosts(was) == _given_by_hosts(will):
        return
    cursor = await connection.execute(_QUERIES["hold_nodes"], {"pool_id": change.pool_id})
    nodes = await cursor.fetchall()
    pool = await load_record(connection, caller, change.pool_id)
    if recut:
        await connection.execute(_QUERIES["hold_gpus_of_pool"], {"pool_id": change.pool_id})
        for problem in await node_problems(connection, change):
            raise problem
        await derive_again(connection, pool, nodes, now)
    await compute_again(connection, pool, nodes, now)


def _given_by_hosts(policy: PoolPolicy) -> object:
    """Return all of a policy that has a say in what hosts have to give."""
    return policy.ratios, policy.host_reserve, policy.pages


def _ruler(policy: PoolPolicy) -> tuple[int | None, int | None]:
    return policy.replicas, policy.shares


def _model_problems(
    change: PoolChange, products: Sequence[Mapping[str, Any]]
) -> Iterator[ApportionError]:
    wanted = change.gpu_model.casefold()
    others = [
        row for row in products if parse_device_name(row["product"]).family.casefold() != wanted
    ]
    if not others:
        return
    nodes = sorted({name for row in others for name in row["nodes"]})
    families = sorted({parse_device_name(row["product"]).family for row in others})
    yield InvalidStateError(
        f"{len(nodes)} nodes hold GPUs of another model: {_some(nodes)}",
        field="gpu_model",
        given=change.gpu_model,
        allowed=" or ".join(families),
        details={"nodes": nodes[:_NAMED_MAX], "gpus": sum(row["gpus"] for row in others)},
    )


def _layout_problems(
    change: PoolChange, products: Sequence[Mapping[str, Any]]
) -> Iterator[ApportionError]:
    """Tell which boards that are there cannot be cut as the new layout says."""
    layout = read_stored(change.policy).mig_layout
    if layout is None or layout == DYNAMIC or change.sharing != "mig":
        return
    for row in products:
        if row["board"] is None:
            continue
        try:
            parse_layout(layout, board_by_key(row["board"]), field="policy.migLayout")
        except (InvalidInputError, InvalidStateError) as error:
            error.details["nodes"] = row["nodes"][:_NAMED_MAX]
            yield error


async def _ruler_problems(
    connection: Connection, change: PoolChange, pool_id: str, before: PoolBefore
) -> list[ApportionError]:
    """Tell who holds units of the ruler that would go."""
    wanted, there = _ruler(read_stored(change.policy)), _ruler(read_stored(before.policy))
    if wanted == there:
        return []
    held = await bookings.held_in_pool(connection, pool_id, before.now)
    if not held.bookings:
        return []
    free_from = None if held.free_from is None else format_instant(held.free_from)
    field = "policy.replicas" if there[0] is not None else "policy.shares"
    return [
        InvalidStateError(
            f"{held.bookings} bookings on {held.gpus} GPUs of the pool hold units of the split "
            "that would go",
            field=field,
            given=change.policy.get(field.removeprefix("policy.")),
            allowed=f"{there[0] if there[0] is not None else there[1]} until they have ended",
            hint=f"The last of them ends at {free_from}"
            if free_from
            else "One of them has no end, so it must be released first",
            details={"bookings": held.bookings, "gpus": held.gpus, "free_from": free_from},
        )
    ]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    shown = ", ".join(names[:_NAMED_MAX])
    return f"{shown} and {more} more" if more > 0 else shown


register_validator("nodes", node_problems)
register_follow_up("nodes", follow_change)
