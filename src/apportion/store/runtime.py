"""What services run on: the database, the clock, and a source of random bytes.

Clock and randomness are here so that no service reads either by itself: a test sets both.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from apportion.quantities.ids import make_id
from apportion.store.connections import Pool


def utc_now() -> datetime:
    """Return the wall clock as an aware UTC instant."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The database pool, ``now()`` as aware UTC, and ``entropy(n)`` as n random bytes."""

    db: Pool
    now: Callable[[], datetime] = utc_now
    entropy: Callable[[int], bytes] = os.urandom

    def new_id(self, prefix: str) -> str:
        """Make an id that sorts by time: ``pool_01k…``."""
        return make_id(prefix, now=self.now(), entropy=self.entropy(10))
