"""What goes in and out of the reservations API."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field

from apportion.doors.schemas import IdempotencyKey, Schema, Text, View
from apportion.nodes.schemas import AtomClass, ShareText
from apportion.pools.policy import PlacementPolicy
from apportion.pools.schemas import Quantity as Amount
from apportion.pools.schemas import QuotaResource, QuotaView, Sharing, StaleNodes
from apportion.reservations.told import PoolExplained, ReasonThen, Suggestion

State = Literal["pending", "placed", "active", "ending", "ended", "failed"]
LIVE: tuple[State, ...] = ("placed", "active", "ending")

PIECES_MAX = 64
"""The most pieces of one device request."""
DEVICES_MAX = 8
"""The most device requests of one reservation."""
MEMBERS_MAX = 64
"""The most members of a gang."""
POOLS_MAX = 32
"""The most candidate pools of one reservation."""


def _text(value: object) -> object:
    if isinstance(value, str):
        return value
    raise ValueError("must be text, an RFC 3339 instant with its zone")


Timestamp = Annotated[str, BeforeValidator(_text), Field(json_schema_extra={"format": "date-time"})]
"""An instant as it came in; the service reads it, so that all doors refuse in the same words."""

Quantity = int | Decimal | str
"""An exact amount: a number, or text such as ``"0.5"``."""


class MatchExpression(Schema):
    """One condition on an atom's attributes."""

    key: Annotated[str, Field(min_length=1, max_length=100)]
    op: Annotated[str, Field(description="In, NotIn, Exists, DoesNotExist, Gt or Lt")]
    values: list[str | int] = Field(max_length=100, default_factory=list[str | int])


class SelectorSpec(Schema):
    """Conditions that all have to hold."""

    match_expressions: Annotated[list[MatchExpression], Field(max_length=20)] = Field(
        alias="matchExpressions", default_factory=list[MatchExpression]
    )


class DeviceRequest(Schema):
    """``count`` pieces of a class, each of ``units`` units of one GPU.

    ``units`` counts slots (``gpu.slot``) or hundredths (``gpu.share``). Two slots of one GPU are
    one piece of two units; two slots wherever they are free are two pieces of one.
    """

    class_: AtomClass = Field(alias="class")
    count: Annotated[int, Field(strict=True, ge=1, le=PIECES_MAX)] = 1
    units: Annotated[int, Field(strict=True, ge=1, le=100)] = 1
    sharing: Sharing | None = None
    selector: SelectorSpec = Field(default_factory=SelectorSpec)


class HostResources(Schema):
    """CPUs and memory of the node that the devices are on."""

    vcpu: Quantity = 0
    memory_gib: Quantity = Field(alias="memoryGiB", default=0)


class PlacementSpec(Schema):
    """Where its pieces are to lie, and by which policy a place is chosen: the pool's if none."""

    policy: PlacementPolicy | None = None
    together: Annotated[
        Literal["node", "gpu", "numa", "nvlink"], Field(description="What all pieces share.")
    ] = "node"
    apart: Annotated[
        bool, Field(strict=True, description="Every piece lies on a GPU of its own.")
    ] = False
    movable: Annotated[
        bool,
        Field(
            strict=True,
            description="It may be moved while it runs, by notice; the pool has to permit that.",
        ),
    ] = False


class GangSpec(Schema):
    """Members that are placed all or none; each gets all of the devices and resources."""

    members: Annotated[int, Field(strict=True, ge=1, le=MEMBERS_MAX)]
    apart: Annotated[
        bool, Field(strict=True, description="Every member lies on a node of its own.")
    ] = False


class PiecesAsk(Schema):
    """What is asked for, and of which pools: ``pool_id``, or ``pool_ids`` to let the fit decide."""

    name: Text | None = None
    pool_id: str | None = None
    pool_ids: Annotated[list[str], Field(max_length=POOLS_MAX)] | None = None
    devices: list[DeviceRequest] = Field(
        max_length=DEVICES_MAX, default_factory=list[DeviceRequest]
    )
    resources: HostResources = Field(default_factory=HostResources)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)
    gang: GangSpec | None = None


class ReservationAsk(PiecesAsk):
    """An ask. Give ``pool_id``, or ``pool_ids`` to let the tightest fit among several decide.

    The window is ``duration`` from now or from ``start``, or ``start`` to ``end``; or, with
    ``end_before``, ``duration`` at the earliest start that has room and is over by then; or, where
    the pools permit that, ``open_ended`` from now or from ``start`` on.
    """

    duration: str | None = None
    start: Timestamp | None = None
    end: Timestamp | None = None
    end_before: Timestamp | None = None
    open_ended: Annotated[
        bool, Field(strict=True, description="Without an end, till it is released or given one.")
    ] = False


class ReservationCreate(ReservationAsk):
    """An ask to be placed; the same key never places it twice."""

    idempotency_key: IdempotencyKey | None = None


class BatchPlan(View):
    """Asks of a batch that were placed by ``exact``: how many got room, and on how many GPUs.

    Nothing that places as many can do with fewer GPUs than ``bound``. ``optimal`` says that this is
    no more, and that no more could be placed. Where others, or a quota, took what was planned, no
    bound is known.
    """

    pool_id: str
    policy: Literal["exact"]
    asks: int
    placed: int
    gpus: int
    optimal: bool
    bound: int | None


class ReservationUpdate(Schema):
    """When a live reservation is to end: ``end``, or ``duration`` counted from its start."""

    end: Timestamp | None = None
    duration: str | None = None


class AllocationOut(View):
    """Whether a piece's node has it ready for its holder.

    It is ``asked`` of the node from the begin of its window on, ``ready`` when the node reports it
    as it was asked, ``missing`` when it should be there and is not, ``withdrawn`` when it is over.
    ``bound`` and ``released`` are the node's signed word that it was handed out, and taken back.
    """

    id: str
    state: Literal["asked", "missing", "ready", "withdrawn"]
    since: AwareDatetime
    reason: dict[str, Any]
    bound: "DeviceBound | None" = None
    released: "DeviceReleased | None" = None


class DeviceOut(View):
    """What a node handed out: the UUID of a GPU or a MIG instance, and the ids of an instance."""

    uuid: str
    gi_id: int | None
    ci_id: int | None


class DeviceBound(View):
    """That a device was handed out: by the node's report of which number, when, and which it is."""

    report: int
    at: AwareDatetime
    device: DeviceOut


class DeviceReleased(View):
    """That a device was taken back; without ``at`` the node knows nothing of it any more."""

    report: int
    at: AwareDatetime | None
    device: DeviceOut | None


class BoundNode(View):
    """A node that has handed out all that a reservation has on it: since when, by which report."""

    node: str
    since: AwareDatetime
    report: int


class BoundOut(View):
    """On which nodes a reservation is in its holder's hands.

    ``since`` is when the last of its pieces was handed out; null while there are some that are not.
    """

    since: AwareDatetime | None
    nodes: list[BoundNode]


class BookingOut(View):
    """One piece: which units of which GPU, and what part of a GPU hour an hour of it is.

    ``attributes`` say what an atom is (``migProfile``, ``vramGiB``), and as soon as its node has
    reported it which one (``migUuid``, ``giId``, ``ciId``). ``allocation`` is null before its
    window has begun, and where no agent is on its node.

    ``member`` counts the members of a gang from 0. Nobody else has the units before ``held_until``:
    the end, and a gap for cleaning up. Both are null where it has no end.
    """

    gpu_id: str
    node: str
    member: int
    device: int
    class_: AtomClass = Field(alias="class")
    units: str
    atom: str | None
    share: ShareText
    start: AwareDatetime
    end: AwareDatetime | None
    held_until: AwareDatetime | None
    attributes: dict[str, Any]
    allocation: AllocationOut | None

    def covers(self, instant: datetime) -> bool:
        """Tell whether its window has begun by then, and goes on."""
        return self.start <= instant and (self.end is None or instant < self.end)


class HostOut(View):
    """Host resources, as exact text."""

    vcpu: str
    memory_gib: str = Field(alias="memoryGiB")


class TopologyOut(View):
    """How well the GPUs of its pieces reach each other: the pair that does so worst, from 1 to 4.

    ``link`` is what that pair shares: the machine (1), a NUMA node (2), a PCIe root complex (3), an
    NVLink domain or one GPU (4).
    """

    score: int
    link: Literal["same_gpu", "nvlink", "pcie", "numa", "node"]


class ReservationView(View):
    """A reservation: what was asked, where it stands and why, and what it has.

    Of one that waits with slack, ``start`` is the earliest that was asked for, if any, and it is to
    be over by ``end_before``. ``open_ended`` is one that has no end, or waits for a place without.
    ``delayed_from`` is when it was to begin, where somebody did not leave what it was to get.
    ``bound`` is null before a node with an agent has handed out any of it. While it lives,
    ``charges`` count against the quota of ``charged_tenant_id``: its own tenant, or the one above
    it that the pool is offered to.
    """

    id: str
    name: str | None
    tenant_id: str
    pool_id: str | None
    candidates: list[str]
    state: State
    reason: dict[str, Any]
    devices: list[dict[str, Any]]
    resources: HostOut
    placement: PlacementSpec
    gang: GangSpec | None
    topology: TopologyOut | None = Field(
        default=None, description="As found when it was placed; null where no member has several."
    )
    start: AwareDatetime | None
    end: AwareDatetime | None
    delayed_from: AwareDatetime | None = None
    end_before: AwareDatetime | None
    open_ended: bool
    series_id: str | None
    pending_until: AwareDatetime
    created_at: AwareDatetime
    updated_at: AwareDatetime
    charged_tenant_id: str | None
    charges: dict[QuotaResource, Amount]
    bound: BoundOut | None = None
    bookings: list[BookingOut]


class QuotaUse(View):
    """A live reservation, and how much of a quota it takes; ``end`` is null where it has none."""

    id: str
    name: str | None
    tenant_id: str
    state: State
    amount: Amount
    start: AwareDatetime
    end: AwareDatetime | None


class QuotaExplained(View):
    """A quota, and by which live reservations it is used, by id.

    ``accounted`` is what all of them take, those on other pages too: it equals ``quota.used``.
    """

    quota: QuotaView
    reservations: list[QuotaUse]
    next_cursor: str | None
    accounted: Amount


class ReservationExplained(View):
    """Why a reservation waits, as of ``at``, what would help, and what it has waited for before.

    Of one that does not wait, ``pools`` and ``suggestions`` are empty.
    """

    reservation: ReservationView
    at: AwareDatetime
    pools: list[PoolExplained]
    suggestions: list[Suggestion]
    history: list[ReasonThen]
    changes: int = Field(description="How often its reasons changed; history has the last ones.")


class Defragmentation(Schema):
    """What to make room for: some that wait (or the first in line), or whole GPUs.

    With ``apply`` it is done, all or nothing. What runs, and may be moved, is given ``notice``.
    """

    reservations: Annotated[list[str], Field(min_length=1, max_length=32)] | None = None
    free_gpus: Annotated[bool, Field(strict=True)] = False
    apply: Annotated[bool, Field(strict=True)] = False
    notice: str = "5m"
    time_limit: str = "10s"


class PlaceOut(View):
    """Units of a GPU, and the atom where they are one."""

    gpu_id: str
    node: str
    units: str
    atom: str | None


class MoveOut(View):
    """A reservation that lies elsewhere from ``at`` on.

    ``rebook`` before it has begun; ``recreate`` while it runs: it ends where it is and goes on as
    ``successor_id``, which is known when it is done.
    """

    reservation_id: str
    tenant_id: str
    how: Literal["rebook", "recreate"]
    at: AwareDatetime
    from_: list[PlaceOut] = Field(alias="from")
    to: list[PlaceOut]
    successor_id: str | None


class LargestRequest(View):
    """The largest request of one class that has room; 0 or null where nothing has.

    So many whole GPUs of one node, slots or hundredths of one GPU, or an instance of a profile.
    """

    class_: AtomClass = Field(alias="class")
    largest_count: int | None
    largest_units: int | None
    largest_profile: str | None


class Defragmented(View):
    """The fewest moves after which others fit, or most GPUs are free, on the nodes looked at.

    As much room takes ``bound`` moves or more; ``optimal`` says that this is no more than it takes.
    Nothing moves to the nodes that are ``stale``. ``largest_now`` and ``largest_then`` have room
    for good from ``largest_from`` on: as things lie now, and with the moves made.
    """

    pool_id: str
    moves: list[MoveOut]
    fits: list[str]
    does_not_fit: list[str]
    freed_gpus: int
    largest_from: AwareDatetime
    largest_now: list[LargestRequest]
    largest_then: list[LargestRequest]
    bound: int
    optimal: bool
    nodes_looked_at: int
    nodes: int
    stale: StaleNodes | None
    applied: bool


class FreeOfClass(LargestRequest):
    """What is free of one class, and the largest request of it that has room.

    ``free`` counts whole GPUs, instances, slots or hundredths; it is null, which is unknown and not
    zero, where instances are made on demand.
    """

    free: int | None


class PoolCapacity(View):
    """What is free in a pool from ``at`` on until ``until``, by class.

    Of its ``nodes``, ``stale_nodes`` with ``stale_gpus`` GPUs are not heard of, the first since
    ``stale_since``: nothing of them counts as free.
    """

    pool_id: str
    at: AwareDatetime
    until: AwareDatetime
    nodes: int
    stale_nodes: int = 0
    stale_gpus: int = 0
    stale_since: AwareDatetime | None = None
    free: list[FreeOfClass]
