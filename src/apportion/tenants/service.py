"""Tenants and tokens: bootstrap of the root tenant, and telling a caller from its token.

A token is ``apt_`` and 256 random bits in base64url. Only its SHA-256 is kept; with that much
entropy a slow hash would add nothing.
"""

import base64
import hashlib
from dataclasses import dataclass
from typing import Final

from apportion.errors import UnauthenticatedError
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load

ROOT: Final = "root"
_QUERIES: Final = load("apportion.tenants")

register(guards("tenants_id_form", "tokens_hash_key", "tokens_hash_length"))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who does something: the tenant it acts for, its own id, and the request it came with."""

    tenant_id: str
    actor: str
    request_id: str | None = None


SYSTEM: Final = Caller(ROOT, "system")
"""The control plane itself, where the clock or a reconciler acts."""


def hash_token(token: str) -> bytes:
    """Return what the database keeps of a token: 32 bytes."""
    return hashlib.sha256(token.encode()).digest()


async def authenticate(runtime: Runtime, token: str, request_id: str | None = None) -> Caller:
    """Return the caller that a token stands for.

    Raises UnauthenticatedError for an unknown, revoked or expired token, in one and the same words.
    """
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["find_token"], {"hash": hash_token(token), "now": runtime.now()}
        )
        row = await cursor.fetchone()
    if row is None:
        raise UnauthenticatedError(
            "the token is unknown, revoked or expired",
            hint="Send `Authorization: Bearer TOKEN`; `apportion up` wrote one to STATE/root.token",
        )
    return Caller(row["tenant_id"], row["id"], request_id)


async def ensure_root(runtime: Runtime, connection: Connection) -> None:
    """Make the root tenant and its first site where they do not exist yet."""
    await connection.execute(
        _QUERIES["ensure_root"], {"id": ROOT, "now": runtime.now(), "site": runtime.new_id("site")}
    )


async def issue_token(
    runtime: Runtime, connection: Connection, *, tenant_id: str, name: str
) -> str:
    """Make a token for a tenant and return it: the only time that it can be read."""
    secret = base64.urlsafe_b64encode(runtime.entropy(32)).rstrip(b"=").decode()
    token = f"apt_{secret}"
    await connection.execute(
        _QUERIES["insert_token"],
        {
            "id": runtime.new_id("tok"),
            "tenant_id": tenant_id,
            "name": name,
            "hash": hash_token(token),
            "now": runtime.now(),
        },
    )
    return token


async def is_valid(runtime: Runtime, connection: Connection, token: str) -> bool:
    """Tell whether a token that was kept somewhere still works."""
    cursor = await connection.execute(
        _QUERIES["find_token"], {"hash": hash_token(token), "now": runtime.now()}
    )
    return await cursor.fetchone() is not None
