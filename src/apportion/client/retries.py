"""When a request that got no answer is sent again, and after how long."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ATTEMPTS: Final = 3
"""How often a request is sent at most, the first time included."""
STREAM_ATTEMPTS: Final = 10
"""How often in a row a stream that once was open is opened at most before it is given up."""
FIRST_PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait before each further try.

    Each pause is twice the one before, up to five seconds, and shortened by chance: clients that
    lost the same server do not all come back at the same moment. What the server asks for
    (Retry-After) is the least, up to those five seconds.
    """

    chance: Callable[[], float] = random.random

    def after(self, failures: int, asked_seconds: object = None) -> float:
        """Return the pause after so many failures in a row."""
        whole = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), PAUSE_SECONDS_MAX)
        pause = whole * (0.5 + self.chance() / 2)
        if isinstance(asked_seconds, int | float):
            return min(max(pause, asked_seconds), PAUSE_SECONDS_MAX)
        return pause
