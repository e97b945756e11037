"""The parts of an explanation: why a pool has no room, what would help, and what was waited for."""

from typing import Any, Literal

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import View
from apportion.pools.schemas import Quantity as Amount
from apportion.pools.schemas import QuotaResource


class WhyNodes(View):
    """How many nodes cannot serve an ask now, for one reason, and what would change that.

    ``full`` are those of which nothing of what it wants is free; of the others something is, but no
    place for it: ``after_defragmentation`` of all would have one if what they hold lay otherwise.
    ``until`` is when the first one gets room, where that is known; ``since`` is from when on nobody
    hears of the first one, where that is the reason.
    """

    code: str
    count: int
    full: int
    after_defragmentation: int
    until: AwareDatetime | None
    since: AwareDatetime | None = None
    hint: str


class QuotaLack(View):
    """A quota that does not cover an ask, and how far: ``missing`` more would do for this one."""

    tenant_id: str
    pool_id: str
    resource: QuotaResource
    asked: Amount
    max: Amount
    used: Amount
    missing: Amount


class PoolExplained(View):
    """Why a pool does not serve an ask now: by its nodes, or by a quota; else it has room."""

    pool_id: str
    name: str
    nodes: int
    reasons: list[WhyNodes]
    quota: QuotaLack | None
    what: str = Field(description="What is looked for, in a few words: 4g.20gb placement.")
    message: str


class Suggestion(View):
    """What would make it fit: tried on what is free at that instant, and not held.

    ``request`` is an ask that would be placed if it came in now, ``limits`` are quotas with which
    the one that waits would be. ``command`` does it, where one command can.
    """

    code: Literal[
        "later_start",
        "other_pool",
        "raise_quota",
        "smaller_profile",
        "larger_profile",
        "fewer_members",
        "fewer_pieces",
        "fewer_units",
        "fewer_vcpus",
        "less_memory",
        "loosen_selector",
    ]
    message: str
    command: str | None
    request: dict[str, Any] | None
    limits: list[QuotaLack]
    start: AwareDatetime | None


class ReasonThen(View):
    """What it waited for from an instant on."""

    since: AwareDatetime
    reason: dict[str, Any]
