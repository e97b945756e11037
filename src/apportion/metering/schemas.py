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


class UsageView(View):
    """What was used within [start, end), by pool and class, and in total by meter.

    Never add up ``gpu_hours_decimal``: it is rounded to six decimals, ``gpu_hours`` is the number.
    """

    start: AwareDatetime
    end: AwareDatetime
    items: list[UsageItem]
    totals: list[UsageTotal]
