"""Which units of which GPU an ask gets, or why none: pure, deterministic, on a picture of one pool.

Time here is whole microseconds since the epoch, windows are half-open, `FOREVER` is an open end.
The picture is never the truth: what is chosen from it is judged by the database.
"""

from apportion.placement.asks import Ask, DeviceAsk
from apportion.placement.findings import Finding
from apportion.placement.index import PoolIndex
from apportion.placement.largest import Largest
from apportion.placement.moving import Movable, Relief
from apportion.placement.offers import Move, Offer, Piece
from apportion.placement.policies import POLICIES, PolicyName
from apportion.placement.regrouping import Plan, Wanted, regroup
from apportion.placement.selectors import Expression, Selector
from apportion.placement.state import FOREVER, AtomState, GpuState, Held, HostHeld, NodeState
from apportion.placement.topology import Topology
from apportion.placement.verdicts import Reason, Verdict
from apportion.placement.windows import Opening

__all__ = [
    "FOREVER",
    "POLICIES",
    "Ask",
    "AtomState",
    "DeviceAsk",
    "Expression",
    "Finding",
    "GpuState",
    "Held",
    "HostHeld",
    "Largest",
    "Movable",
    "Move",
    "NodeState",
    "Offer",
    "Opening",
    "Piece",
    "Plan",
    "PolicyName",
    "PoolIndex",
    "Reason",
    "Relief",
    "Selector",
    "Topology",
    "Verdict",
    "Wanted",
    "regroup",
]
