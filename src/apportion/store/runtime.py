"""What services run on: the database, the clock, a source of random bytes, and the server's key.

Clock and randomness are here so that no service reads either by itself: a test sets both.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from apportion.quantities.ids import make_id
from apportion.store.connections import Pool


def utc_now() -> datetime:
    """Return the wall clock as an aware UTC instant."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The database pool, ``now()`` as aware UTC, and ``entropy(n)`` as n random bytes.

    ``key`` is the server's secret of 32 bytes, the same in all servers of one database: tokens are
    hashed with it and webhook secrets derived from it.
    """

    db: Pool
    now: Callable[[], datetime] = utc_now
    entropy: Callable[[int], bytes] = os.urandom
    key: bytes = field(kw_only=True, repr=False)

    def new_id(self, prefix: str) -> str:
        """Make an id that sorts by time: ``pool_01k…``."""
        return make_id(prefix, now=self.now(), entropy=self.entropy(10))
