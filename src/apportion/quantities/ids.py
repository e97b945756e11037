"""Identifiers: a kind, an underscore and 26 characters that sort by time. Pure.

``pool_01k8…`` is 48 bits of milliseconds since 1970 and 80 bits of entropy (the layout of a ULID)
in Crockford's base 32, lower case. The kind in front makes a mixed-up id a clear error instead of a
missing row.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from apportion.errors import InvalidInputError

ENTROPY_BYTES: Final = 10

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = [high + low for high in _ALPHABET for low in _ALPHABET]
_SHIFTS: Final = range(120, -1, -10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BODY = r"[0-7][0-9a-hjkmnp-tv-z]{25}"


def make_id(prefix: str, *, now: datetime, entropy: bytes) -> str:
    """Make an id of this kind: later ones sort after earlier ones, to the millisecond.

    ``now`` is aware and ``entropy`` exactly 10 random bytes, both the caller's: this room has no
    clock.
    """
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"entropy must be {ENTROPY_BYTES} bytes, not {len(entropy)}")
    millis = (now - _EPOCH) // timedelta(milliseconds=1)
    return f"{prefix}_{_encode(millis.to_bytes(6, 'big') + entropy)}"


def derive_id(prefix: str, *parts: str) -> str:
    """Make the same id from the same parts for ever: a repeated import finds its rows again.

    Each part is hashed with its length in front: ("ab", "c") and ("a", "bc") are different things.
    """
    digest = hashlib.sha256()
    for part in (prefix, *parts):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"{prefix}_{_encode(digest.digest()[:16])}"


def check_id(prefix: str, text: str, field: str) -> str:
    """Return an id of this kind unchanged, or raise InvalidInputError that names the field."""
    if not re.fullmatch(f"{re.escape(prefix)}_{_BODY}", text):
        raise InvalidInputError(
            f"is not a {prefix} id",
            field=field,
            given=text[:60],
            allowed=f"{prefix}_ and 26 characters of 0-9 and a-z without i, l, o, u",
        )
    return text


def _encode(data: bytes) -> str:
    """Write 128 bits as 26 digits of 5 bits; the first holds only 3."""
    number = int.from_bytes(data, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
