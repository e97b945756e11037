"""What nodes and the server sign for each other: HTTP Message Signatures (RFC 9421), Ed25519. Pure.

A request covers its method, its path and its body's digest (RFC 9530), and says who signed it, when
and with which nonce. The answer repeats the nonce, so that none of yesterday passes for today's.
"""

from apportion.signatures.keys import (
    SEED_BYTES,
    PrivateKey,
    PublicKey,
    fingerprint,
    private_key,
    public_text,
    read_public,
)
from apportion.signatures.messages import (
    Proof,
    sign_answer,
    sign_request,
    signer_of,
    verify_answer,
    verify_request,
)

__all__ = [
    "SEED_BYTES",
    "PrivateKey",
    "Proof",
    "PublicKey",
    "fingerprint",
    "private_key",
    "public_text",
    "read_public",
    "sign_answer",
    "sign_request",
    "signer_of",
    "verify_answer",
    "verify_request",
]
