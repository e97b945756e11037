"""How usage is shown."""

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import View
from apportion.nodes.schemas import AtomClass


class UsageItem(View):
    """GPU hours of one meter in one pool and class: exact, and rounded for people."""

    meter: str
    pool_id: str
    class_: AtomClass = Field(alias="class")
    gpu_hours: str
    gpu_hours_decimal: str


class UsageTotal(View):
    """GPU hours of one meter: exact, and rounded for people."""

    meter: str
    gpu_hours: str
    gpu_hours_decimal: str


class UnheardUsage(View):
    """Of a pool's hours: on how many nodes and GPUs nobody knows whether they were used.

    Nothing was heard of these nodes for a part of what is booked there, the first ``since`` then.
    """

    pool_id: str
    nodes: int
    gpus: int
    since: AwareDatetime


class UsageView(View):
    """What was used within [start, end), by pool and class, and in total by meter.

    Never add up ``gpu_hours_decimal``: it is rounded to six decimals, ``gpu_hours`` is the number.
    Hours are as booked, also on nodes that nobody hears of: ``unheard`` says how many these are.
    """

    start: AwareDatetime
    end: AwareDatetime
    items: list[UsageItem]
    totals: list[UsageTotal]
    unheard: list[UnheardUsage]
