"""What goes in and out about windows that come again, and about those that are free."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import IdempotencyKey, Schema, View
from apportion.nodes.schemas import AtomClass
from apportion.pools.schemas import Quantity as Amount
from apportion.pools.schemas import QuotaResource
from apportion.reservations.schemas import (
    PiecesAsk,
    ReservationAsk,
    ReservationView,
    State,
)

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
OCCURRENCES_MAX = 366
"""The most windows of one series."""
WINDOWS_MAX = 50
"""The most free windows of one answer."""

Clock = Annotated[
    str,
    Field(pattern="^(?:[01][0-9]|2[0-3]):[0-5][0-9]$", description="A time of day such as 09:00."),
]
Day = Annotated[str, Field(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="A date.")]


class RecurrenceSpec(Schema):
    """On which days of the week, from when to when by the clocks of a zone, and for how long.

    An end that is not after the start is that of the next day. It goes from ``from``, today unless
    said otherwise, to ``until``, both included, or for ``count`` windows.
    """

    days: Annotated[list[Weekday], Field(min_length=1, max_length=7)]
    start: Clock
    end: Clock
    zone: Annotated[str, Field(max_length=64, description="As in Europe/Berlin.")]
    from_: Day | None = Field(alias="from", default=None)
    until: Day | None = None
    count: Annotated[int, Field(strict=True, ge=1, le=OCCURRENCES_MAX)] | None = None


class SeriesCreate(PiecesAsk):
    """The same ask in every window of a recurrence, all of them or none."""

    recurrence: RecurrenceSpec
    idempotency_key: IdempotencyKey | None = None


class FreeWindowsAsk(ReservationAsk):
    """An ask, and how many windows with room for it to tell of."""

    k: Annotated[int, Field(strict=True, ge=1, le=WINDOWS_MAX)] = 5


class CalendarWindow(View):
    """Units of a GPU that somebody has in a window, and nobody else before ``held_until``.

    ``what`` is a reservation that the caller may see, ``reserved`` by somebody else, or a change of
    what the GPU is cut into (``partition``). Without an end it is held until that is known.
    """

    what: Literal["reservation", "reserved", "partition"]
    reservation_id: str | None
    name: str | None
    units: str
    start: AwareDatetime
    end: AwareDatetime | None
    held_until: AwareDatetime | None


class GpuCalendar(View):
    """What is held on a GPU from ``start`` to ``end``, by start.

    Of more windows than one answer holds the first are told: ``end`` is then sooner than asked for,
    and the calendar goes on from there. Nobody hears of its node from ``stale_since`` on: what is
    held stays so, and what is free is not booked.
    """

    gpu_id: str
    pool_id: str
    stale_since: AwareDatetime | None = None
    start: AwareDatetime
    end: AwareDatetime
    windows: list[CalendarWindow]


class SeriesSummary(View):
    """A series, and how many of its reservations are in which state."""

    id: str
    tenant_id: str
    name: str | None
    recurrence: RecurrenceSpec
    created_at: AwareDatetime
    states: dict[State, int]


class SeriesView(SeriesSummary):
    """A series with a page of its reservations, by start."""

    reservations: list[ReservationView]
    next_cursor: str | None


class GpuRoom(View):
    """Units of a GPU that are free in a window.

    From ``free_from`` on nobody else has anything of it; null where one has it without an end.
    """

    gpu_id: str
    node: str
    device: int
    class_: AtomClass = Field(alias="class")
    units: str
    free_from: AwareDatetime | None


class FreeWindow(View):
    """A window in which an ask has room, and where; nothing is held.

    It could last until ``until``: null where nothing is booked behind it. Of a gang that is not
    looked for, and ``until`` is its end. ``end`` is null for an ask without one.
    """

    pool_id: str
    start: AwareDatetime
    end: AwareDatetime | None
    until: AwareDatetime | None
    nodes: list[str]
    gpus: list[GpuRoom]


class QuotaShort(View):
    """A quota that does not cover the ask now: what it asks for at least, and what is left."""

    tenant_id: str
    resource: QuotaResource
    asked: Amount
    left: Amount


class PoolOutlook(View):
    """When an ask could start in a pool, or the reason why it never could.

    ``quota`` is a quota that would refuse it now, at whatever time; null where all cover it.
    """

    pool_id: str
    window: FreeWindow | None
    reason: dict[str, Any] | None
    quota: QuotaShort | None


class Outlook(View):
    """When an ask could start in each candidate pool, the earliest first."""

    pools: list[PoolOutlook]


class FreeWindows(View):
    """The next windows in which an ask has room, in order, and what stands in the way of others."""

    windows: list[FreeWindow]
    pools: list[PoolOutlook]
