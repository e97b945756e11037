"""How a GPU is shared, and how far the sharers are kept apart. Pure."""

from enum import StrEnum
from typing import Final

from apportion.errors import InvalidInputError


class Isolation(StrEnum):
    """What stands between two holders of one GPU, weakest first; members compare by strength.

    ``soft``: nothing, or limits that a client can overstep, and one fault domain. ``hardware``:
    memory and SMs are partitioned. ``exclusive``: there is no other holder.
    """

    SOFT = "soft"
    HARDWARE = "hardware"
    EXCLUSIVE = "exclusive"

    @property
    def strength(self) -> int:
        """Give 0 for the weakest."""
        return tuple(Isolation).index(self)

    def covers(self, minimum: "Isolation") -> bool:
        """Tell whether this is at least the minimum."""
        return self.strength >= minimum.strength


class Mechanism(StrEnum):
    """How an ask is met, in the order in which the planner tries them."""

    MIG = "mig"
    MPS = "mps"
    TIMESLICE = "timeslice"
    WHOLE = "whole"

    @property
    def isolation(self) -> Isolation:
        """Give what the mechanism really provides, never what was hoped for."""
        return _ISOLATION[self]


_ISOLATION: Final = {
    Mechanism.MIG: Isolation.HARDWARE,
    Mechanism.MPS: Isolation.SOFT,
    Mechanism.TIMESLICE: Isolation.SOFT,
    Mechanism.WHOLE: Isolation.EXCLUSIVE,
}


def parse_isolation(text: str, *, field: str = "isolation") -> Isolation:
    """Read a minimum isolation, or raise InvalidInputError that lists them."""
    try:
        return Isolation(text)
    except ValueError:
        raise InvalidInputError(
            "there is no such isolation",
            field=field,
            given=text,
            allowed="exclusive, hardware, soft",
        ) from None
