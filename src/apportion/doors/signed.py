"""Requests that a node signs with its own key, and answers that the server signs for it.

A node has no token. It enters only the operations below, and only as itself: for another node's id
it is told what an id that never existed is told.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, cast

from fastapi import Request, Response

from apportion.authority.service import Caller, Identities, server_key
from apportion.doors.problems import shown
from apportion.errors import ForbiddenError, NotFoundError, UnauthenticatedError
from apportion.quantities.windows import format_duration, format_instant
from apportion.signatures import (
    Proof,
    PublicKey,
    fingerprint,
    sign_answer,
    signer_of,
    verify_request,
)
from apportion.store.runtime import Runtime

CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far a node's clock may be from the server's, where the settings say nothing."""

REPORT_AGE: Final = timedelta(days=30)
"""How long a report may have lain with its node: their order tells old ones from repeated ones."""

NODE_OPERATIONS: Final[Mapping[str, timedelta | None]] = {
    "get_spec": None,
    "report_node": REPORT_AGE,
}
"""What a node may do, and how old the signature may be; None is no older than clocks differ."""


def is_signed(request: Request) -> bool:
    """Tell whether a request claims to be signed."""
    return "signature-input" in request.headers


async def identify_node(request: Request, operation: str) -> Caller:
    """Return the node that signed a request; its body is checked when it has been read.

    Raises UnauthenticatedError where the signature, its key or its time is not good, ForbiddenError
    for what no node may do, NotFoundError for another node.
    """
    caller, proof = await _prove(request)
    _check_time(request, proof, NODE_OPERATIONS.get(operation))
    if operation not in NODE_OPERATIONS:
        raise ForbiddenError(
            "a node may only read its own spec and send its own reports",
            details={"operation": operation},
        )
    given = request.path_params.get("node_id")
    if given != caller.node_id:
        raise NotFoundError("no such node", field="node_id", given=given)
    request.state.proof = proof
    request.state.routine = True
    return caller


async def _prove(request: Request) -> tuple[Caller, Proof]:
    """Verify by the key that is known, else by the one that the database has by now."""
    identities = cast("Identities", request.app.state.identities)
    node_id = signer_of(request.headers) or ""
    known = identities.known_node(node_id)
    if known is not None:
        with suppress(UnauthenticatedError):
            return known[0], _verify(request, known[1])
    caller, key = await identities.find_node(node_id)
    return caller, _verify(request, key)


async def check_body(request: Request) -> None:
    """Raise UnauthenticatedError unless the node signed the body that came."""
    proof = cast("Proof", request.state.proof)
    proof.check_body(request.headers, await request.body())


async def check_own_key(request: Request, key: PublicKey) -> None:
    """Raise UnauthenticatedError unless a machine signed its request with the key that it names."""
    proof = _verify(request, key)
    _check_time(request, proof, None)
    proof.check_body(request.headers, await request.body())
    request.state.proof = proof


def sign(request: Request, response: Response) -> None:
    """Sign an answer for the node that asked, so that it believes nobody else."""
    proof = cast("Proof | None", getattr(request.state, "proof", None))
    if proof is None:
        return
    runtime = cast("Runtime", request.app.state.runtime)
    key = server_key(runtime.key)
    headers = sign_answer(
        key,
        fingerprint(key.public_key()),
        response.status_code,
        bytes(response.body),
        created=runtime.now(),
        nonce=proof.nonce,
    )
    response.headers.update(headers)


def _verify(request: Request, key: PublicKey) -> Proof:
    path = request.scope.get("raw_path", request.url.path.encode()).decode("ascii")
    return verify_request(key, request.method, path, request.headers)


def _check_time(request: Request, proof: Proof, age: timedelta | None) -> None:
    now: datetime = request.app.state.runtime.now()
    skew: timedelta = request.app.state.clock_skew
    if now - (skew if age is None else age) <= proof.created <= now + skew:
        return
    raise UnauthenticatedError(
        f"it was signed at {format_instant(proof.created)} by the node's clock, and it is"
        f" {format_instant(now)} by the server's",
        field="Signature-Input",
        given=shown(format_instant(proof.created)),
        allowed=f"up to {format_duration(skew)} from the server's clock",
        hint="Set the node's clock, best by NTP",
        details={"server_time": format_instant(now), "reason": "clock_skew"},
    )
