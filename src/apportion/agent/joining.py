"""Joining: a key of the node's own, a server that the token names, and both written down."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from apportion.agent.files import make_private
from apportion.agent.identity import Identity, keep, kept
from apportion.agent.keys import own_key
from apportion.agent.link import Link
from apportion.errors import InvalidStateError


def join(
    state: Path,
    url: str,
    token: str,
    inventory: Mapping[str, Any],
    *,
    now: Callable[[], datetime],
    entropy: Callable[[int], bytes],
    attestor: str = "join-token",
    transport: httpx2.BaseTransport | None = None,
) -> Identity:
    """Join a server's pool with a join token, and write down which node this is from now on.

    It is safe to repeat after a crash at any moment: the key is on disk before it is shown, and the
    server gives the same key the same answer. Raises InvalidStateError for a machine that has
    joined, and what the server refuses.
    """
    there = kept(state)
    if there is not None:
        raise InvalidStateError(
            f"this machine is {there.node_id} of {there.url} already",
            field="state",
            given=str(state),
            hint="Another --state is another node; to leave, revoke this one and remove its state",
        )
    make_private(state)
    link = Link(url, own_key(state, entropy), now=now, entropy=entropy, transport=transport)
    try:
        identity = Identity.of(url, link.join(token, inventory, attestor))
    finally:
        link.close()
    keep(state, identity)
    return identity
