"""What a GPU is cut into, as it is asked for: a named layout, a number of slots, or free shares.

A cut is an object with the one policy field that says it: ``{"migLayout": "all-1g.10gb"}``,
``{"replicas": 4}``, ``{"shares": 100}``; ``{}`` where nothing is asked for: what is found stays.
"""

from collections.abc import Collection, Mapping
from typing import Any

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import Board, parse_layout
from apportion.nodes.atoms import identify, instance_profiles, profile_text
from apportion.nodes.schemas import GpuReport, Inventory
from apportion.pools.policy import DYNAMIC, PoolPolicy
from apportion.pools.service import PoolRecord

Cut = Mapping[str, Any]


def cut_of(policy: PoolPolicy) -> Cut:
    """Return what a pool's policy asks for."""
    fields = {
        "migLayout": None if policy.mig_layout is None else policy.mig_layout.lower(),
        "replicas": policy.replicas,
        "shares": policy.shares,
    }
    return {name: value for name, value in fields.items() if value is not None}


def cut_text(cut: Cut) -> str:
    """Name a cut for people: ``all-1g.10gb``, ``4 slots``, ``free shares``, ``as found``."""
    if "replicas" in cut:
        return f"{cut['replicas']} slots"
    return "free shares" if "shares" in cut else str(cut.get("migLayout", "as found"))


def with_cut(policy: PoolPolicy, cut: Cut | None) -> PoolPolicy:
    """Return a pool's policy as it holds for a node that is cut so; None is as the pool says."""
    if cut is None:
        return policy
    fields = {"mig_layout": "migLayout", "replicas": "replicas", "shares": "shares"}
    return policy.model_copy(update={name: cut.get(key) for name, key in fields.items()})


def takes_cut(pool: PoolRecord, node: Mapping[str, Any]) -> bool:
    """Tell whether somebody on the node will make it what its pool asks for."""
    if node["agent"] is None or pool.agent == "none":
        return False
    return pool.sharing != "mig" or node["mig_layout_from"] == "pool"


def cut_in_force(pool: PoolRecord, node: Mapping[str, Any]) -> Cut:
    """Return what a node is to be cut into by now: what it was granted, else as its pool says."""
    return cut_of(pool.policy) if node["granted"] is None else node["granted"]


def why_not_cut_so(
    cut: Cut, inventory: Inventory, asked: Collection[tuple[str, str | None, int | None]] = ()
) -> str | None:
    """Say why a node is not what was asked for, by what it reports; None where it is.

    A GPU that failed, and one whose board nobody knows, speaks neither for nor against it.
    ``asked`` are the places, each a GPU, a profile and a start, of instances made on demand that
    somebody has.
    """
    for report in inventory.gpus:
        wrong = None if report.failed is not None else _wrong(cut, report, asked)
        if wrong is not None:
            return f"{report.uuid} {wrong}"
    return None


def _wrong(
    cut: Cut, report: GpuReport, asked: Collection[tuple[str, str | None, int | None]]
) -> str | None:
    if not cut:
        return None
    if cut.get("migLayout") == DYNAMIC:
        return _left_over(report, asked)
    if report.mig.current != report.mig.pending:
        return "is changing its MIG mode"
    if "migLayout" not in cut:
        return "is in MIG mode" if report.mig.current else None
    board = identify(report)
    return None if board is None else _off_layout(str(cut["migLayout"]), report, board)


def _left_over(
    report: GpuReport, asked: Collection[tuple[str, str | None, int | None]]
) -> str | None:
    """Say which instance is there that the node made, and nobody has."""
    for each in report.mig.instances:
        if each.managed and (report.uuid, profile_text(each.profile), each.start) not in asked:
            return f"has {each.profile} at {each.start}, which nobody asked for"
    return None


def _off_layout(layout: str, report: GpuReport, board: Board) -> str | None:
    try:
        wanted = parse_layout(layout, board)
    except (InvalidInputError, InvalidStateError) as error:
        return f"cannot be cut so: {error.message}"
    if report.mig.current != wanted.mig_enabled:
        return f"has MIG {'on' if report.mig.current else 'off'}"
    there = instance_profiles(report, board)
    if there == wanted.counts:
        return None
    shown = "+".join(f"{count}x{name}" for name, count in sorted(there.items()))
    return f"has {shown or 'no instances'}"
