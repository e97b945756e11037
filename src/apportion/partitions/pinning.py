"""Pinning one node to a MIG layout of its own: it changes through the gate, as all changes do."""

from dataclasses import dataclass
from typing import Final

from apportion.authority.service import Caller
from apportion.errors import InvalidStateError
from apportion.nodes import service as nodes
from apportion.nodes.service import Node, cut_of
from apportion.partitions.freezing import freeze
from apportion.partitions.planning import check_cut
from apportion.pools.service import PoolRecord
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime

AS_POOL: Final = "pool"
"""What a node is pinned to that follows its pool: no layout is called so."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Who pins which node, of a pool that is held."""

    runtime: Runtime
    connection: Connection
    caller: Caller
    pool: PoolRecord
    node: Node


async def pin(of: Pin, layout: str) -> None:
    """Let a node have a layout of its own, or follow its pool again (``pool``).

    Raises InvalidInputError for a layout that its pool's GPUs cannot have, InvalidStateError for a
    node that takes its layout from itself.
    """
    now, of_pool = of.runtime.now(), cut_of(of.pool.policy)
    name = None if layout.lower() == AS_POOL else layout.lower()
    after = of_pool if name is None else {"migLayout": name}
    if name is not None:
        await check_cut(of.connection, of.pool, after, now, field="mig_layout")
        _check_source(of.node)
    before = of_pool if of.node["granted"] is None else of.node["granted"]
    changed = await nodes.set_pin(of.runtime, of.connection, of.caller, of.node, name)
    if changed and of.node["own_layout"] is None:
        cuts = before, after
        await freeze(of.connection, of.caller, of.pool.id, cuts, now, node=of.node["id"])


def _check_source(node: Node) -> None:
    if node["mig_layout_from"] != "pool":
        raise InvalidStateError(
            "it takes its MIG layout from itself",
            field="mig_layout",
            given=node["name"],
            hint="Let it take its layout from its pool first: mig_layout_from",
        )
