"""A reservation while its command runs: looked after, kept longer as its end comes near."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from apportion.cli.times import both_zones
from apportion.cli.waiting import tell
from apportion.errors import ApportionError, ConflictError, UnavailableError
from apportion.quantities.windows import format_instant, parse_instant

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView

_MARGIN_MAX: Final = timedelta(minutes=5)
_LOOK_MAX: Final = timedelta(seconds=30)
_LOOK_MIN: Final = timedelta(milliseconds=200)


@dataclass(slots=True)
class Lease:
    """``length`` is how much longer it is kept at a time; None where it is not kept longer.

    Asks for more when a quarter of that is left, or five minutes. A server that does not answer
    changes nothing: what was promised holds to its end.
    """

    client: "Client"
    view: "ReservationView"
    length: timedelta | None
    _told: str = field(default="", init=False)

    @property
    def look_every(self) -> timedelta:
        """Return how often to look."""
        return max(min(self._margin / 4, _LOOK_MAX), _LOOK_MIN)

    def why_over(self, now: datetime) -> str | None:
        """Look after it; says why the command has to end, where it has to."""
        self._look()
        if self.view.state != "active":
            return f"it is {self.view.state}: {self.view.reason.get('message')}"
        if self._is_near(now):
            self._keep()
        end = self.view.end
        return None if end is None or now < end else "its time is up, and it cannot be kept longer"

    @property
    def _margin(self) -> timedelta:
        return _MARGIN_MAX if self.length is None else min(self.length / 4, _MARGIN_MAX)

    def _is_near(self, now: datetime) -> bool:
        return self.view.end is not None and self.view.end - now <= self._margin

    def _look(self) -> None:
        try:
            self.view = self.client.get_reservation(self.view.id)
        except ApportionError as error:
            self._tell(f"{error.message}; it stays as it is meanwhile")

    def _keep(self) -> None:
        """Keep it longer: by its length, or as long as nobody else has what it has."""
        if self.length is None or self.view.end is None:
            return
        try:
            try:
                self._keep_until(self.view.end + self.length)
            except ConflictError as error:
                until = parse_instant(str(error.details.get("free_until")), field="free_until")
                if until <= self.view.end:
                    raise
                self._keep_until(until)
        except UnavailableError as error:
            self._tell(f"{error.message}; it stays as it is meanwhile")
        except ApportionError as error:
            end = both_zones(self.view.end)
            self._tell(f"{self.view.id} cannot be kept beyond {end}: {error.message}")

    def _keep_until(self, end: datetime) -> None:
        request = {"end": format_instant(end)}
        self.view = self.client.update_reservation(self.view.id, request)
        self._tell(f"{self.view.id} is kept until {both_zones(end)}")

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            tell(line)
