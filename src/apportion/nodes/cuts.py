"""What a GPU is cut into, as it is asked for: a named layout, a number of slots, or free shares.

A cut is an object with the one policy field that says it: ``{"migLayout": "all-1g.10gb"}``,
``{"replicas": 4}``, ``{"shares": 100}``; ``{}`` where nothing is asked for: what is found stays.
"""

from collections.abc import Mapping
from typing import Any, Final

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import Board, parse_layout
from apportion.nodes.atoms import identify, instance_profiles
from apportion.nodes.schemas import GpuReport, Inventory
from apportion.pools.policy import DYNAMIC, PoolPolicy, mps_units
from apportion.pools.service import PoolRecord

Cut = Mapping[str, Any]

MIG_UNIT: Final = "mig-layout"
SHARING_UNIT: Final = "gpu-sharing"


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


def units_of(pool: PoolRecord, node: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the units of a node's spec: what each is to be."""
    cut = cut_of(pool.policy) if node["granted"] is None else node["granted"]
    if "migLayout" in cut and takes_cut(pool, node):
        wanted = {"layout": cut["migLayout"], "mode_change": pool.policy.mode_change}
        return {MIG_UNIT: wanted}
    if "replicas" in cut and pool.sharing == "mps":
        units = mps_units(cut["replicas"])
        return {SHARING_UNIT: {"mode": "mps", "replicas": cut["replicas"], "mps_units": units}}
    if "replicas" in cut or "shares" in cut:
        return {SHARING_UNIT: {"mode": pool.sharing, **cut}}
    return {}


def why_not_cut_so(cut: Cut, inventory: Inventory) -> str | None:
    """Say why a node is not what was asked for, by what it reports; None where it is.

    A GPU that failed, and one whose board nobody knows, speaks neither for nor against it.
    """
    for report in inventory.gpus:
        wrong = None if report.failed is not None else _wrong(cut, report)
        if wrong is not None:
            return f"{report.uuid} {wrong}"
    return None


def _wrong(cut: Cut, report: GpuReport) -> str | None:
    if cut.get("migLayout") == DYNAMIC or not cut:
        return None
    if report.mig.current != report.mig.pending:
        return "is changing its MIG mode"
    if "migLayout" not in cut:
        return "is in MIG mode" if report.mig.current else None
    board = identify(report)
    return None if board is None else _off_layout(str(cut["migLayout"]), report, board)


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
