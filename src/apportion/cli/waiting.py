"""Waiting for a reservation: what is told meanwhile, and when it is over."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from apportion.cli.connection import PoolNames
from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.cli.reservation_text import head, says_no_more
from apportion.cli.times import both_zones, rough
from apportion.errors import UnavailableError
from apportion.quantities.windows import parse_duration

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView

Goal = Literal["placed", "active", "ended"]
GOALS: Final[tuple[Goal, ...]] = ("placed", "active", "ended")

_REACHED: Final = {"placed": ("placed", "active"), "active": ("active",), "ended": ("ended",)}
_OVER: Final = {
    "placed": ("ending", "ended", "failed"),
    "active": ("ending", "ended", "failed"),
    "ended": ("ended", "failed"),
}
_SOONEST = timedelta(milliseconds=250)
_LATEST = timedelta(seconds=5)
_HELP = """\
It ends when the reservation is what --state says, when it never will be, or at the --timeout.
While it waits, each change of its state and its reason is a line on stderr.

examples:
  apportion reservation wait res_01k...
  apportion reservation wait res_01k... --timeout 30m && ./start.sh
  apportion reservation wait res_01k... --state ended

exit codes: 0 it is what was waited for; 1 it never will be (failed, cancelled, over), or the time
is up and it still waits: its state is printed; 2 bad input"""


def add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which reservation, what to wait for and how long."""
    parser.epilog = _HELP
    parser.add_argument("id", metavar="ID", help="its id")
    parser.add_argument(
        "--state", choices=GOALS, default="active", help="what to wait for (default: active)"
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", help="at most so long: 30m, 2h (default: as it takes)"
    )


def run_wait(args: argparse.Namespace, client: "Client") -> int:
    """Wait, print what came of it; 0 where that is what was waited for."""
    timeout = None if args.timeout is None else parse_duration(args.timeout, field="--timeout")
    goal: Goal = args.state
    view = Wait(client, goal, _sleep, timeout=timeout).until_over(args.id)
    if args.output != "table":
        print_data(data_of(view), args.output)
    else:
        why = "" if says_no_more(view) else f": {view.reason.get('message')}"
        sys.stdout.write(f"{head(view, PoolNames(client))}{why}\n")
    return 0 if is_reached(view, goal) else 1


def is_reached(view: "ReservationView", goal: Goal) -> bool:
    """Tell whether a reservation is what was waited for."""
    return view.state in _REACHED[goal]


@dataclass(slots=True)
class Wait:
    """One wait: it asks again and again, ever more slowly until something changes.

    ``pause`` sleeps for so long; what it raises ends the wait.
    """

    client: "Client"
    goal: Goal
    pause: Callable[[timedelta], None]
    timeout: timedelta | None = None
    _told: str = field(default="", init=False)

    def until_over(self, reservation_id: str) -> "ReservationView":
        """Return the reservation when it is what is waited for, never will be, or time is up.

        Raises UnavailableError where time is up and no server says how it stands.
        """
        began = datetime.now(UTC)
        step = _SOONEST
        while True:
            view = self._ask(reservation_id, began)
            now = datetime.now(UTC)
            left = self._left(began)
            if is_reached(view, self.goal) or view.state in _OVER[self.goal]:
                return view
            if left is not None and left <= timedelta():
                self._tell(f"still {view.state} after {rough(now - began)}")
                return view
            step = _SOONEST if self._tell(_line(view, now)) else min(2 * step, _LATEST)
            self.pause(step if left is None else min(step, left))

    def _ask(self, reservation_id: str, began: datetime) -> "ReservationView":
        """Ask until somebody answers: a server that is started again has what was reserved."""
        while True:
            try:
                return self.client.get_reservation(reservation_id)
            except UnavailableError as error:
                left = self._left(began)
                if left is not None and left <= timedelta():
                    raise
                self._tell(f"{error.message}; trying on")
                self.pause(_LATEST if left is None else min(_LATEST, left))

    def _left(self, began: datetime) -> timedelta | None:
        """Say how much is left of the time to wait; None for as long as it takes."""
        return None if self.timeout is None else began + self.timeout - datetime.now(UTC)

    def _tell(self, line: str) -> bool:
        """Say what is new; tells whether it was."""
        if line == self._told:
            return False
        self._told = line
        tell(line)
        return True


def tell(line: str) -> None:
    """Write a line of progress; a terminal that went away must not end what is under way."""
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _line(view: "ReservationView", now: datetime) -> str:
    """Say where it stands and why, or when its window begins."""
    start = view.start if view.delayed_from is None else None
    if view.state == "placed" and start is not None and start > now:
        return f"{view.id}: placed, begins {both_zones(start)}"
    if says_no_more(view):
        return f"{view.id}: {view.reason.get('message')}"
    return f"{view.id}: {view.state}, {view.reason.get('code')}: {view.reason.get('message')}"


def _sleep(pause: timedelta) -> None:
    time.sleep(pause / timedelta(seconds=1))
