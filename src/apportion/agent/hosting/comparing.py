"""Units that only compare: what is wanted with what the host is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from apportion.agent.units import Mismatch, Outcome, Wanted

_MESSAGE_MAX: Final = 1000  # what a report takes
_ROWS_MAX: Final = 64
_TEXT_MAX: Final = 200

Look = Callable[[Wanted], Iterable[Mismatch]]
"""Gives what is otherwise than wanted; UnknownError where nothing of it can be told."""


class UnknownError(Exception):
    """Nobody can tell how the host is; the message says why."""


@dataclass(slots=True)
class Compared:
    """A unit that changes nothing. It looks again ``every`` so often, else each time."""

    name: str
    look: Look
    every: timedelta = timedelta(0)
    _last: tuple[Wanted, datetime, Outcome] | None = field(default=None, init=False)

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:
        """Say what differs; what the spec does not ask for differs from nothing."""
        if wanted is None:
            return Outcome(done=True)
        if self._last is not None:
            asked, at, said = self._last
            # A clock that was set back must not keep an old answer alive.
            if asked == wanted and abs(now - at) < self.every:
                return said
        outcome = self._looked(wanted)
        self._last = wanted, now, outcome
        return outcome

    def _looked(self, wanted: Wanted) -> Outcome:
        try:
            return compared(self.name, [*self.look(wanted)])
        except UnknownError as error:
            fields = [
                Mismatch(field=name, wanted=shown(value), found=None)
                for name, value in wanted.items()
            ]
            return _outcome(f"{self.name}_unknown", str(error), fields)


def compared(unit: str, mismatches: Sequence[Mismatch]) -> Outcome:
    """Return the outcome of a comparison: what cannot be told is not taken for equal."""
    if not mismatches:
        return Outcome(done=True)
    differs = any(each.found is not None for each in mismatches)
    message = "; ".join(_said(each) for each in mismatches)
    return _outcome(f"{unit}_{'differs' if differs else 'unknown'}", message, mismatches)


def failed(reason: str, message: str, mismatches: Sequence[Mismatch]) -> Outcome:
    """Return the outcome of a unit that could not make the host as wanted."""
    said = [message, *(_said(each) for each in mismatches)]
    return _outcome(reason, "; ".join(filter(None, said)), mismatches)


def _outcome(reason: str, message: str, mismatches: Sequence[Mismatch]) -> Outcome:
    objects = dict.fromkeys(each.object for each in mismatches if each.object is not None)
    return Outcome(
        done=False,
        reason=reason,
        message=message[:_MESSAGE_MAX],
        objects=tuple(objects)[:_ROWS_MAX],
        mismatches=tuple(mismatches[:_ROWS_MAX]),
    )


def _said(each: Mismatch) -> str:
    of = "" if each.object is None else f"{each.object} "
    found = "nobody can tell" if each.found is None else f"it is {each.found}"
    return f"{of}{each.field} is to be {each.wanted}, and {found}"


def shown(value: Any) -> str:
    """Write a value as it is shown beside others: one line, never empty, not too long."""
    match value:
        case bool():
            text = "on" if value else "off"
        case dict():
            fields = cast("dict[str, Any]", value)
            text = ", ".join(f"{name}={shown(each)}" for name, each in sorted(fields.items()))
        case list():
            text = ", ".join(map(shown, cast("list[Any]", value)))
        case _:
            text = "".join(char if char.isprintable() else " " for char in str(value)).strip()
    return text[:_TEXT_MAX] or "none"


def read(path: Path) -> str | None:
    """Return what the kernel says in a file; None where it has none, or does not say."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None
