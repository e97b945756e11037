"""How changes of cuts are asked for and shown."""

from typing import Literal

from apportion.doors.schemas import View


class ReportAnswer(View):
    """What came of a report. ``generation`` is the one that the node's spec has by now.

    One that is not ``accepted`` changed nothing: the node has made a later one, which was here
    first.
    """

    accepted: bool
    reason: Literal["report_out_of_order"] | None
    generation: int
