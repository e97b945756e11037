"""A refusal and what stands behind its counts in one sentence, for people.

``0 of 18 nodes: 11 have no free 4g.20gb placement (7 would after defragmentation), 4 reserved until
14:00, 3 unhealthy``. The counts add up to the nodes.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Protocol

from apportion.placement.verdicts import WORDS


class Told(Protocol):
    """Why some nodes cannot serve an ask: see `Finding`."""

    @property
    def code(self) -> str:
        """Which reason."""
        ...

    @property
    def count(self) -> int:
        """How many nodes."""
        ...

    @property
    def full(self) -> int:
        """Those of them of which nothing is free."""
        ...

    @property
    def after_defragmentation(self) -> int:
        """Those of them that would have room if what they hold lay otherwise."""
        ...

    @property
    def until(self) -> datetime | None:
        """When the first of them gets room."""
        ...


def sentence(
    nodes: int, reasons: Iterable[Told], what: str, show: Callable[[datetime], str]
) -> str:
    """Write it; ``what`` is asked for (``4g.20gb placement``), ``show`` writes an instant."""
    if not nodes:
        return "the pool has no nodes"
    parts = [part for reason in reasons for part in _parts(reason, what, show)]
    return f"0 of {nodes} nodes: {', '.join(parts)}"


def _parts(reason: Told, what: str, show: Callable[[datetime], str]) -> Iterator[str]:
    if reason.code != "units_booked":
        when = f" until {show(reason.until)}" if reason.until is not None else ""
        yield f"{reason.count} {WORDS[reason.code]}{when}"
        return
    scattered = reason.count - reason.full
    when = f" until {show(reason.until)}" if reason.until is not None else ""
    if scattered:
        would = reason.after_defragmentation
        helped = f" ({would} would after defragmentation)" if would else ""
        have = "has" if scattered == 1 else "have"
        yield f"{scattered} {have} no free {what}{helped}{'' if reason.full else when}"
    if reason.full:
        yield f"{reason.full} reserved{when}"
