"""Rows of the gate: what each node was granted, what comes next, and why it is where it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apportion.nodes.service import Cut
from apportion.store.errors import guards, register
from apportion.store.sql import load

QUERIES: Final = load("apportion.partitions")

Reason = Mapping[str, Any]

register(
    guards(
        "node_layouts_state_known",
        "node_layouts_pending_given",
        "node_layouts_held_while_changing",
        "node_layouts_grant_numbered",
        "node_layouts_cuts_are_objects",
        "node_layouts_reason_coded",
        "gpu_partitions_state_known",
        "gpu_partitions_reason_coded",
    )
)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where a node stands. ``granted`` is the cut in force, ``pending`` what comes next."""

    node_id: int
    tenant_id: str
    pool_id: str
    state: str
    granted: Cut
    pending: Cut | None
    hold_from: datetime | None
    grant_generation: int | None
    since: datetime
    reason: Reason
    version: int


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU of a node whose turn it is; ``booking_id`` and ``held_from`` where it is kept."""

    id: int
    uuid: str
    booking_id: int | None
    held_from: datetime | None


def desired_of(row: Mapping[str, Any], of_pool: Cut) -> Cut:
    """Return what a node is to be cut into in the end: as it says itself, is pinned, or follows."""
    own = row["own_layout"] or row["pinned_layout"]
    return of_pool if own is None else {"migLayout": own}


def why(name: str, message: str, **facts: object) -> Reason:
    """Make a reason: its code, one sentence, and what it counts."""
    return {"code": name, "message": message, **facts}
