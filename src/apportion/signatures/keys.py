"""Ed25519 keys: made of a seed, written as base64 of their 32 bytes."""

import base64
import binascii
import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey as PrivateKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PublicKey as PublicKey,
)

from apportion.errors import InvalidInputError

SEED_BYTES: Final = 32
_PUBLIC_BYTES: Final = 32
_FINGERPRINT_BYTES: Final = 16


def private_key(seed: bytes) -> PrivateKey:
    """Make a key of 32 random bytes, which are the key: who has them signs as its owner."""
    return PrivateKey.from_private_bytes(seed)


def public_text(key: PublicKey) -> str:
    """Write a public key: base64 of its 32 bytes."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def read_public(text: str, *, field: str) -> PublicKey:
    """Read a public key; InvalidInputError for what is none."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != _PUBLIC_BYTES:
        raise InvalidInputError(
            "is no Ed25519 public key",
            field=field,
            given=text,
            allowed=f"base64 of {_PUBLIC_BYTES} bytes",
        )
    return PublicKey.from_public_bytes(raw)


def fingerprint(key: PublicKey) -> str:
    """Name a public key in 22 characters that no other key can be found for."""
    digest = hashlib.sha256(key.public_bytes_raw()).digest()[:_FINGERPRINT_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
