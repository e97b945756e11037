"""The line to the server: every request signed by the node, every answer by the server."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import httpx2
from pydantic import BaseModel

from apportion.client.answers import error_of, error_of_failure
from apportion.client.requests import checked_url, path_of
from apportion.errors import UnauthenticatedError
from apportion.nodes.schemas import EnrollAnswer, NodeSpec, ReportAnswer
from apportion.signatures import (
    PrivateKey,
    PublicKey,
    fingerprint,
    public_text,
    read_public,
    sign_request,
    verify_answer,
)

V = TypeVar("V", bound=BaseModel)

_TIMEOUT_SECONDS: Final = 30
_NONCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Signed:
    """A request as it was signed: it can lie on disk, and be sent at any later time."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    nonce: str


class Link:
    """A server at a URL, asked with a key. ``now`` and ``entropy`` are the caller's."""

    def __init__(
        self,
        url: str,
        key: PrivateKey,
        *,
        now: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        node_id: str | None = None,
        server_key: PublicKey | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Ask nothing yet; a URL that can be none is refused."""
        self._key = key
        self._now = now
        self._entropy = entropy
        self._node_id = node_id
        self._server_key = server_key
        self._url = checked_url(url)
        self._http = httpx2.Client(
            base_url=self._url, timeout=_TIMEOUT_SECONDS, transport=transport
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def join(self, token: str, inventory: Mapping[str, Any], attestor: str) -> EnrollAnswer:
        """Join with a join token, and believe the server that the token names from then on.

        Raises UnauthenticatedError where the token lets nobody in, or another server answers.
        """
        document = {
            "attestor": attestor,
            "evidence": {"token": token},
            "public_key": public_text(self._key.public_key()),
            "inventory": dict(inventory),
        }
        signed = self.sign("POST", path_of("join"), document)
        answer = self._ask(signed)
        told = EnrollAnswer.model_validate(answer.json())
        key = read_public(told.server_key, field="server_key")
        if fingerprint(key) != token.rpartition(".")[2]:
            raise UnauthenticatedError(
                "another server answers than the one that made the join token",
                field="server",
                given=self._url,
            )
        _check(answer, key, signed)
        self._server_key, self._node_id = key, told.node_id
        return told

    def read_spec(self) -> NodeSpec:
        """Return what the node is asked to be."""
        signed = self.sign("GET", path_of("nodes", self._node_id or "", "spec"), None)
        return self._believed(signed, NodeSpec)

    def sign_report(self, report: Mapping[str, Any]) -> Signed:
        """Sign a report by the clock as it is, to be sent now or later."""
        return self.sign("POST", path_of("nodes", self._node_id or "", "report"), report)

    def send(self, signed: Signed) -> ReportAnswer:
        """Send a report; raises what the server refuses it for."""
        return self._believed(signed, ReportAnswer)

    def sign(self, method: str, path: str, document: Mapping[str, Any] | None) -> Signed:
        """Sign a request with the node's key."""
        body = None if document is None else json.dumps(document).encode()
        return self.sign_again(Signed(method, path, {}, body, ""))

    def sign_again(self, signed: Signed) -> Signed:
        """Sign the same request by the clock as it is by now."""
        nonce = self._entropy(_NONCE_BYTES).hex()
        headers = sign_request(
            self._key,
            self._node_id or public_text(self._key.public_key()),
            signed.method,
            signed.path,
            signed.body,
            created=self._now(),
            nonce=nonce,
        )
        if signed.body is not None:
            headers["Content-Type"] = "application/json"
        return Signed(signed.method, signed.path, headers, signed.body, nonce)

    def _believed(self, signed: Signed, view: type[V]) -> V:
        answer = self._ask(signed)
        if self._server_key is None:
            raise UnauthenticatedError("the node has not joined, and believes no server")
        _check(answer, self._server_key, signed)
        return view.model_validate(answer.json())

    def _ask(self, signed: Signed) -> httpx2.Response:
        try:
            answer = self._http.request(
                signed.method, signed.path, content=signed.body, headers=dict(signed.headers)
            )
        except httpx2.TransportError as failure:
            raise error_of_failure(self._url, failure) from failure
        if not answer.is_success:
            raise error_of(answer)
        return answer


def _check(answer: httpx2.Response, key: PublicKey, signed: Signed) -> None:
    """See that the server itself answers, and to this request."""
    verify_answer(key, answer.status_code, answer.headers, answer.content, nonce=signed.nonce)
