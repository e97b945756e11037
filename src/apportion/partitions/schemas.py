"""How changes of cuts are asked for and shown."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, PlainSerializer

from apportion.doors.schemas import Schema, Text, View
from apportion.pools.schemas import StaleNodes

Hours = Annotated[Fraction, PlainSerializer(str, return_type=str)]
LayoutState = Literal["settled", "pending", "waiting_open_ended", "scheduled", "granted"]


class LayoutAsk(Schema):
    """What a pool's GPUs are to be cut into: one of a layout, a number of slots, free shares."""

    layout: Text | None = None
    replicas: Annotated[int, Field(strict=True, ge=1, le=48)] | None = None
    shares: Literal[100] | None = None


class GpuLayoutView(View):
    """A GPU: what it is cut into as observed, and from when on it is kept for a change.

    ``observed`` has the instances that are there, such as ``3g.40gb@4``: a profile and its start.
    """

    gpu_id: str
    index: int
    board: str | None
    split: str
    ruler: int
    observed: list[str]
    state: Literal["free", "scheduled", "granted"]
    held_from: AwareDatetime | None
    since: AwareDatetime | None
    reason: dict[str, Any] | None


class NodeLayoutView(View):
    """Where a node stands: what it is ``desired`` and ``granted`` to be, and what it said it is.

    ``pending`` is what comes next and ``hold_from`` from when on nothing of it can be booked.
    ``pinned_layout`` is what it is desired to be whatever its pool asks for, ``own_layout`` what it
    is by its own file, whatever anybody asks for. What it said may
    be old where nobody has heard of it from ``stale_since`` on.
    """

    node_id: str
    name: str
    pinned_layout: str | None
    own_layout: str | None = None
    state: LayoutState
    desired: dict[str, Any]
    granted: dict[str, Any]
    pending: dict[str, Any] | None
    hold_from: AwareDatetime | None
    generation: int
    grant_generation: int | None
    observed_generation: int | None
    observed_at: AwareDatetime | None
    stale_since: AwareDatetime | None
    since: AwareDatetime
    reason: dict[str, Any]
    gpus: list[GpuLayoutView]


class LayoutChange(View):
    """What a pool's GPUs are to be cut into, and how many of its nodes have yet to be."""

    pool_id: str
    desired: dict[str, Any]
    changing: int
    cancelled: int = 0


class GpuPlan(View):
    """When a GPU could change: when the last that is booked of it ends."""

    gpu_id: str
    free_from: AwareDatetime | None
    held_by: str | None
    idle_hours: Hours | None


class NodePlan(View):
    """When a node could change, and who holds it back: its last holders.

    ``free_from`` is null where somebody has no end. ``idle_hours`` is how long its GPUs would wait,
    added up, each from its own last holder to the node's.
    """

    node_id: str
    name: str
    free_from: AwareDatetime | None
    held_by: list[str]
    open_ended: list[str]
    idle_hours: Hours | None
    gpus: list[GpuPlan]


class DemandPlan(View):
    """How many of the asks that wait fit the pool's GPUs when they are empty, now and afterwards.

    ``weighed`` is how many were tried, the oldest first; ``better`` says whether more would fit.
    """

    waiting: int
    weighed: int
    fit_now: int
    fit_then: int
    better: bool


class LayoutPlan(View):
    """What a change of a pool's cut would mean, before anything happens.

    ``ready`` nodes could change at once, ``at_once`` of them do; ``open_ended`` ones nobody knows
    about. ``last_from`` is when the last of the others could. Those that are ``stale`` change when
    they are heard of again.
    """

    pool_id: str
    current: dict[str, Any]
    wanted: dict[str, Any]
    changing: int
    unchanged: int
    at_once: int
    ready: int
    open_ended: int
    last_from: AwareDatetime | None
    stale: StaleNodes | None
    idle_gpu_hours: Hours
    demand: DemandPlan
    nodes: list[NodePlan]
