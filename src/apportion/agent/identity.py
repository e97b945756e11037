"""Which node this is, of which server, and whom it believes: written when it joins."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import httpx2
from pydantic import BaseModel, ValidationError

from apportion.agent import files
from apportion.agent.keys import own_key
from apportion.agent.link import Link
from apportion.errors import InvalidStateError
from apportion.nodes.schemas import EnrollAnswer
from apportion.signatures import read_public

FILE: Final = "node.json"


class Identity(BaseModel):
    """A node that has joined."""

    url: str
    node_id: str
    pool_id: str
    cls: str
    server_key: str

    @classmethod
    def of(cls, url: str, told: EnrollAnswer) -> "Identity":
        """Return the identity that a server gave."""
        return cls(
            url=url,
            node_id=told.node_id,
            pool_id=told.pool_id,
            cls=told.class_,
            server_key=told.server_key,
        )


def keep(state: Path, identity: Identity) -> None:
    """Write which node this is."""
    files.keep(state / FILE, identity.model_dump_json(indent=2))


def kept(state: Path) -> Identity | None:
    """Return which node this is; None where it has not joined."""
    content = files.read_if_there(state / FILE)
    if content is None:
        return None
    try:
        return Identity.model_validate_json(content)
    except ValidationError as error:
        raise InvalidStateError(
            f"does not say which node this is: {error.errors()[0]['msg']}",
            field="state",
            given=str(state / FILE),
            hint="Revoke the node, remove the file and join again",
        ) from error


def link_of(
    state: Path,
    *,
    now: Callable[[], datetime],
    entropy: Callable[[int], bytes],
    transport: httpx2.BaseTransport | None = None,
) -> Link:
    """Return the line of a node that has joined; InvalidStateError for one that has not."""
    identity = kept(state)
    if identity is None:
        raise InvalidStateError(
            "this machine has not joined",
            field="state",
            given=str(state),
            hint="`apportion agent join --server URL --token TOKEN`",
        )
    return Link(
        identity.url,
        own_key(state, entropy),
        now=now,
        entropy=entropy,
        node_id=identity.node_id,
        server_key=read_public(identity.server_key, field="server_key"),
        transport=transport,
    )
