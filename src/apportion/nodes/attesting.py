"""Who may vouch for a machine that joins: a registry, with one-time join tokens built in.

An attestor says by its evidence which pool a machine may join, and spends the evidence in the
transaction in which the machine does. A pool's ``joinAttestors`` names those that it accepts.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from apportion.authority.service import server_key
from apportion.errors import InvalidInputError, UnauthenticatedError
from apportion.pools.policy import register_attestor
from apportion.signatures import fingerprint
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

JOIN_TOKEN: Final = "join-token"  # noqa: S105 - an attestor's name
_SECRET_BYTES: Final = 32

Evidence = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Voucher:
    """Which pool a machine may join, whose it is, and what vouches for it.

    ``node_id`` is the node that this evidence has let in already, with this very key.
    """

    id: str
    tenant_id: str
    pool_id: str
    node_id: str | None = None


class Attestor(Protocol):
    """Vouches for machines by evidence of its kind."""

    async def vouch(
        self, runtime: Runtime, connection: Connection, evidence: Evidence, public_key: bytes
    ) -> Voucher:
        """Say what the evidence lets into; UnauthenticatedError where it lets nobody in."""
        ...

    async def spend(
        self, connection: Connection, voucher: Voucher, node_id: int, now: datetime
    ) -> None:
        """Note that it let this node in; UnauthenticatedError where it was spent meanwhile."""
        ...


_attestors: Final[dict[str, Attestor]] = {}


def add_attestor(name: str, attestor: Attestor) -> None:
    """Let pools accept somebody who vouches for machines."""
    _attestors[name] = attestor
    register_attestor(name)


def find_attestor(name: str) -> Attestor:
    """Return who vouches by this name; InvalidInputError where nobody does."""
    found = _attestors.get(name)
    if found is None:
        raise InvalidInputError(
            "nobody of this name vouches for machines",
            field="attestor",
            given=name,
            allowed=", ".join(sorted(_attestors)),
        )
    return found


def new_join_token(runtime: Runtime) -> str:
    """Make a join token: ``apj_``, 256 random bits, a dot, and whom its bearer is to believe."""
    secret = base64.urlsafe_b64encode(runtime.entropy(_SECRET_BYTES)).rstrip(b"=").decode()
    return f"apj_{secret}.{fingerprint(server_key(runtime.key).public_key())}"


def hash_join_token(key: bytes, token: str) -> bytes:
    """Return what the database keeps of a join token: 32 bytes."""
    return hmac.digest(key, f"join token:{token}".encode(), "sha256")


class JoinTokens:
    """Vouches for who shows a join token that nobody has used."""

    async def vouch(
        self, runtime: Runtime, connection: Connection, evidence: Evidence, public_key: bytes
    ) -> Voucher:
        """Find the token; one that let this key in already does so again: an answer was lost."""
        hashed = hash_join_token(runtime.key, evidence.get("token", ""))
        parameters = {"hash": hashed, "now": runtime.now()}
        cursor = await connection.execute(_QUERIES["find_join_token"], parameters)
        row = await cursor.fetchone()
        if row is None or (row["used_at"] is not None and row["public_key"] != public_key):
            raise _no_good()
        return Voucher(row["id"], row["tenant_id"], row["pool_id"], row["node_id"])

    async def spend(
        self, connection: Connection, voucher: Voucher, node_id: int, now: datetime
    ) -> None:
        """Use the token up, for good."""
        cursor = await connection.execute(
            _QUERIES["use_join_token"], {"id": voucher.id, "node_id": node_id, "now": now}
        )
        if await cursor.fetchone() is None:
            raise _no_good()


def _no_good() -> UnauthenticatedError:
    return UnauthenticatedError(
        "the join token is unknown, used, revoked or expired",
        field="evidence.token",
        hint="`apportion node join-token create POOL` makes another one",
    )


add_attestor(JOIN_TOKEN, JoinTokens())
