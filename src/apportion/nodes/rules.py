"""What a pool's policy and model mean for its nodes: what speaks against a change, what follows it.

Loaded with the room's service, so that nobody changes a pool unjudged.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import ApportionError, InvalidInputError, InvalidStateError
from apportion.geometry import board_by_key, parse_device_name, parse_layout
from apportion.nodes.host_units import host_units
from apportion.nodes.inventory import compute_again, derive_again
from apportion.nodes.units import release_of
from apportion.pools.policy import DYNAMIC, HUGEPAGE_SIZES_MIB, PoolPolicy, read_stored
from apportion.pools.service import (
    PoolBefore,
    PoolChange,
    load_record,
    register_follow_up,
    register_validator,
)
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")
_NAMED_MAX: Final = 10
"""The most nodes that a refusal names."""


async def node_problems(connection: Connection, change: PoolChange) -> Sequence[ApportionError]:
    """Return what the nodes and GPUs of a pool have against a change of it."""
    if change.pool_id is None or change.before is None:
        return []
    cursor = await connection.execute(_QUERIES["products"], {"pool_id": change.pool_id})
    products = await cursor.fetchall()
    cursor = await connection.execute(_QUERIES["memories"], {"pool_id": change.pool_id})
    return [
        *_model_problems(change, products),
        *_layout_problems(change, products),
        *_page_problems(change, change.before, await cursor.fetchall()),
    ]


async def follow_change(
    connection: Connection, caller: Caller, change: PoolChange, now: datetime
) -> None:
    """Derive atoms and host resources anew where a change has a say in them.

    What GPUs are cut into has its own gate: each node stays as it was granted till its turn.
    """
    before = change.before
    if change.pool_id is None or before is None:
        return
    was, will = read_stored(before.policy), read_stored(change.policy)
    if _told_to_nodes(was) != _told_to_nodes(will):
        await connection.execute(_QUERIES["raise_specs"], {"pool_id": change.pool_id})
    renamed = before.gpu_model != change.gpu_model
    if not renamed and _given_by_hosts(was) == _given_by_hosts(will):
        return
    whole = {"pool_id": change.pool_id, "id": None, "node": None}
    cursor = await connection.execute(_QUERIES["hold_nodes"], whole)
    nodes = await cursor.fetchall()
    pool = await load_record(connection, caller, change.pool_id)
    if renamed:
        await connection.execute(_QUERIES["hold_gpus_of_pool"], whole)
        for problem in await node_problems(connection, change):
            raise problem
        await derive_again(connection, pool, nodes, now)
    await compute_again(connection, pool, nodes, now)


def _told_to_nodes(policy: PoolPolicy) -> object:
    """Return all of a policy that stands in specs as it is; cuts have a gate of their own."""
    return policy.report_interval, policy.acceptance, host_units(policy), release_of(policy)


def _given_by_hosts(policy: PoolPolicy) -> object:
    """Return all of a policy that has a say in what hosts have to give."""
    return policy.ratios, policy.host_reserve, policy.pages


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


def _page_problems(
    change: PoolChange, before: PoolBefore, memories: Sequence[Mapping[str, Any]]
) -> Iterator[ApportionError]:
    """Tell which hosts that are there have not so much memory as their huge pages would take."""
    was, will = read_stored(before.policy).pages, read_stored(change.policy).pages
    if will is None or was == will:
        return
    needed = sum(count * HUGEPAGE_SIZES_MIB[size] for size, count in will.items())
    short = [row for row in memories if row["memory_mib"] <= needed]
    if short:
        names = [row["name"] for row in short]
        yield InvalidInputError(
            f"{len(short)} nodes have less memory: {_some(names)}",
            field="policy.hugepages",
            given=f"{needed} MiB in all",
            allowed=f"less than {min(row['memory_mib'] for row in short)} MiB in all",
            details={"nodes": names[:_NAMED_MAX]},
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    shown = ", ".join(names[:_NAMED_MAX])
    return f"{shown} and {more} more" if more > 0 else shown


register_validator("nodes", node_problems)
register_follow_up("nodes", follow_change)
