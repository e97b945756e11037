"""Signing and verifying requests and answers.

The library judges form and signature; whose key it is, and whether the time and the nonce are good,
is for whoever knows the clock and what was asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import http_sf
from http_message_signatures.algorithms import (
    ED25519,  # pyright: ignore[reportPrivateImportUsage] - its public door, as documented
)
from http_message_signatures.exceptions import InvalidSignature
from http_message_signatures.resolvers import HTTPSignatureKeyResolver
from http_message_signatures.signatures import HTTPMessageSigner, HTTPMessageVerifier
from http_message_signatures.structures import VerifyResult

from apportion.errors import UnauthenticatedError
from apportion.signatures.keys import PrivateKey, PublicKey

_REQUEST_TAG: Final = "apportion-node"
_ANSWER_TAG: Final = "apportion-server"
_NONCE_MAX: Final = 100
# Proxies change a request's host and scheme, never its path.
_HERE: Final = "http://here"

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Proof:
    """A request whose signature holds: who signed it, when, and with which nonce."""

    signer: str
    created: datetime
    nonce: str
    result: VerifyResult

    def check_body(self, headers: Headers, body: bytes) -> None:
        """Raise UnauthenticatedError unless the signature covers this body."""
        try:
            _Verifier.of(None).verify_body(  # pyright: ignore[reportUnknownMemberType] - untyped
                _Message(headers), [self.result], body
            )
        except InvalidSignature as error:
            raise _refused(str(error)) from None


def sign_request(
    key: PrivateKey,
    signer: str,
    method: str,
    path: str,
    body: bytes | None,
    *,
    created: datetime,
    nonce: str,
) -> dict[str, str]:
    """Return the headers that sign a request; ``body`` None is one that has none."""
    return _sign(
        key,
        _Request(method, path),
        signer=signer,
        covered=("@method", "@path"),
        tag=_REQUEST_TAG,
        body=body,
        created=created,
        nonce=nonce,
    )


def sign_answer(
    key: PrivateKey, signer: str, status: int, body: bytes, *, created: datetime, nonce: str
) -> dict[str, str]:
    """Return the headers that sign an answer to the request that had this nonce."""
    return _sign(
        key,
        _Answer(status),
        signer=signer,
        covered=("@status",),
        tag=_ANSWER_TAG,
        body=body,
        created=created,
        nonce=nonce,
    )


def signer_of(headers: Headers) -> str | None:
    """Return who claims to have signed a request, None where nobody does; nothing is proven yet."""
    given = headers.get("signature-input")
    if given is None:
        return None
    try:
        parsed = cast("dict[str, Any]", http_sf.parse(given.encode(), tltype="dictionary"))
        [(_, parameters)] = parsed.values()
        signer = parameters["keyid"]
    except (ValueError, TypeError, KeyError):
        signer = None
    if not isinstance(signer, str):
        raise _refused("Signature-Input has to have one signature, and it a keyid")
    return signer


def verify_request(key: PublicKey, method: str, path: str, headers: Headers) -> Proof:
    """Return what a signed request proves; UnauthenticatedError where its signature is not good.

    The body is checked apart (`Proof.check_body`), so that nobody's is read before.
    """
    result = _verify(key, _Request(method, path, headers), _REQUEST_TAG, ("@method", "@path"))
    nonce = result.nonce or ""
    if not 1 <= len(nonce) <= _NONCE_MAX:
        raise _refused(f"it has to have a nonce of up to {_NONCE_MAX} characters")
    return Proof(str(result.parameters["keyid"]), _created(result), nonce, result)


def verify_answer(
    key: PublicKey, status: int, headers: Headers, body: bytes, *, nonce: str
) -> datetime:
    """Return when the server signed this answer to the request that had the nonce.

    Raises UnauthenticatedError where the signature is not good, or answers something else.
    """
    result = _verify(key, _Answer(status, headers), _ANSWER_TAG, ("@status", "content-digest"))
    if result.nonce != nonce:
        raise _refused("it answers another request")
    Proof("", _created(result), nonce, result).check_body(headers, body)
    return _created(result)


class _Message:
    """What the library takes for a message: it adds headers to it, or reads them."""

    def __init__(self, headers: Headers | None = None) -> None:
        self.headers: dict[str, str] = dict(headers or {})


class _Request(_Message):
    def __init__(self, method: str, path: str, headers: Headers | None = None) -> None:
        super().__init__(headers)
        self.method = method
        self.url = _HERE + path


class _Answer(_Message):
    def __init__(self, status: int, headers: Headers | None = None) -> None:
        super().__init__(headers)
        self.status_code = status


class _Key(HTTPSignatureKeyResolver):
    """The one key that a message is signed with, or verified by."""

    def __init__(self, key: PrivateKey | PublicKey | None) -> None:
        self._key = key

    def resolve_private_key(self, key_id: str) -> Any:
        del key_id
        return self._key

    def resolve_public_key(self, key_id: str) -> Any:
        del key_id
        return self._key


class _Verifier(HTTPMessageVerifier):
    """The library's, but for the clock: whoever asks has one of its own."""

    @classmethod
    def of(cls, key: PublicKey | None) -> "_Verifier":
        return cls(signature_algorithm=ED25519, key_resolver=_Key(key))

    def validate_created_and_expires(
        self, sig_input: Any, max_age: timedelta | None = None
    ) -> None:
        """Leave the time to the caller, but not its presence."""
        del max_age
        if type(sig_input.params.get("created")) is not int:
            raise InvalidSignature("it has to say when it was created")


def _sign(
    key: PrivateKey,
    message: _Message,
    *,
    signer: str,
    covered: tuple[str, ...],
    tag: str,
    body: bytes | None,
    created: datetime,
    nonce: str,
) -> dict[str, str]:
    maker = HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_Key(key))
    maker.sign(  # pyright: ignore[reportUnknownMemberType] - untyped there
        message,
        key_id=signer,
        created=created,
        nonce=nonce,
        label="apportion",
        tag=tag,
        covered_component_ids=covered,
        body=body,
    )
    return message.headers


def _verify(key: PublicKey, message: _Message, tag: str, required: tuple[str, ...]) -> VerifyResult:
    try:
        [result] = _Verifier.of(key).verify(  # pyright: ignore[reportUnknownMemberType] - the same
            message, expect_tag=tag, require_components=required
        )
    except InvalidSignature as error:
        raise _refused(str(error) or "it is not made with this key") from None
    return result


def _created(result: VerifyResult) -> datetime:
    try:
        return datetime.fromtimestamp(int(result.parameters["created"]), UTC)
    except (ValueError, OverflowError, OSError):
        raise _refused("it was created at no time that there is") from None


def _refused(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"the signature is not good: {why}", field="Signature")
