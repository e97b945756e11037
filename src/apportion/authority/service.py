"""Who is calling, and may it. Below all rooms, because every one of them asks.

A token is ``apt_`` and 256 random bits in base64url. What the database keeps of it is an
HMAC-SHA256 with the server's key: whoever reads the database alone can neither use a token nor test
a guess.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from apportion.authority.actions import ACTIONS, GRANTS, Role, covers
from apportion.authority.engine import (
    BUILT_IN,
    Policy,
    Question,
    Ruling,
    Value,
    check_policy,
    decide,
    effect_of,
)
from apportion.errors import ConflictError, ForbiddenError, NotFoundError, UnauthenticatedError
from apportion.signatures import PrivateKey, PublicKey, private_key
from apportion.store.batches import as_rows
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.groups import READ_MAX, GoOn, Groups
from apportion.store.runtime import Runtime
from apportion.store.sql import load

# What other rooms need of the engine.
__all__ = ["BUILT_IN", "Policy", "Ruling", "Value", "check_policy", "effect_of"]

ROOT: Final = "root"
EVERYTHING: Final = ("*",)
"""The action scope of a token that its role alone bounds."""

_QUERIES: Final = load("apportion.authority")
_KNOWN_MAX: Final = 100_000
"""The most nodes whose keys are kept in mind."""
_USE_NOTED_EVERY: Final = timedelta(minutes=1)

register(
    guards(
        "tokens_hash_key",
        "tokens_previous_hash_key",
        "tokens_hash_length",
        "tokens_role_known",
        "tokens_actions_given",
        "tokens_previous_ends",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What a token may do: its role, its action scope, and the policies that operators added."""

    token_id: str
    role: Role
    home: str
    actions: tuple[str, ...]
    expires_at: datetime | None
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who does something: the tenant it acts for, its own id, and the request it came with.

    ``ancestors`` is the way from root to the tenant, itself included. ``authority`` is None for the
    control plane itself and for code that uses the services as a library: what it asks is done.
    ``node_id`` is the node that signed the request: the door lets it do nothing but be that node.
    ``node_key`` is the key that it signed with, which may be that of before: what is done for the
    node looks whether it still holds, in the transaction in which it is done.
    """

    tenant_id: str
    actor: str
    request_id: str | None = None
    ancestors: tuple[str, ...] = field(default=(), kw_only=True)
    authority: Authority | None = field(default=None, kw_only=True)
    node_id: str | None = field(default=None, kw_only=True)
    node_key: bytes | None = field(default=None, kw_only=True)

    @property
    def lineage(self) -> tuple[str, ...]:
        """The tenant and those above it, itself first: whose offers reach it."""
        return tuple(reversed(self.ancestors)) or (self.tenant_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What policies see of a pool; ``id`` None is one that is to be created."""

    id: str | None
    owner: str
    gpu_model: str
    cls: str
    sharing: str
    region: str


SYSTEM: Final = Caller(ROOT, "system", ancestors=(ROOT,))
"""The control plane itself, where the clock or a reconciler acts."""


def hash_token(key: bytes, token: str) -> bytes:
    """Return what the database keeps of a token: 32 bytes."""
    return hmac.digest(key, f"token:{token}".encode(), "sha256")


@cache
def server_key(key: bytes) -> PrivateKey:
    """Return the key that all servers of a database sign with: nodes know it by its public half."""
    return private_key(hmac.digest(key, b"server key", "sha256"))


def key_id(key: bytes) -> str:
    """Return a name of the server's key that tells nothing about it."""
    return hashlib.sha256(b"apportion key:" + key).hexdigest()[:16]


class Identities:
    """Who tokens stand for, as the database has it when they are shown.

    Of tokens nothing is kept: one that is revoked and a policy that is changed count for whoever
    comes next. Those who come while others are looked up go together, in the next query.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._groups = Groups(self._find, most=READ_MAX)
        self._nodes = Groups(self._find_nodes, most=READ_MAX)
        self._known: dict[str, tuple[Caller, PublicKey]] = {}

    async def authenticate(
        self, token: str, request_id: str | None = None, *, tenant_id: str | None = None
    ) -> Caller:
        """Return the caller that a token stands for, for its own tenant or one below it.

        Raises UnauthenticatedError for an unknown, revoked or expired token, in one and the same
        words; NotFoundError for a tenant that the token's tenant is not above of.
        """
        row = await self._groups.ask(None, (hash_token(self._runtime.key, token), tenant_id))
        if row is None:
            raise UnauthenticatedError(
                "the token is unknown, revoked or expired",
                hint="Send `Authorization: Bearer TOKEN`;"
                " `apportion up` wrote one to STATE/root.token",
            )
        if row["acting"] is None:
            raise no_tenant(tenant_id or row["tenant_id"])
        return _caller(row, request_id)

    async def find_node(self, node_id: str) -> tuple[Caller, PublicKey]:
        """Return the caller that a node is, for its pool's owner, and the key that proves it.

        Raises UnauthenticatedError, in the same words, for one without a key or a revoked one.
        """
        row = await self._nodes.ask(None, node_id)
        if row is None:
            raise no_key(node_id)
        caller = Caller(
            row["tenant_id"],
            node_id,
            ancestors=tuple(row["ancestors"]),
            node_id=node_id,
            node_key=row["public_key"],
        )
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        known = self._known[node_id] = caller, PublicKey.from_public_bytes(row["public_key"])
        return known

    def known_node(self, node_id: str) -> tuple[Caller, PublicKey] | None:
        """Return a node as it was when it was last looked up here; None where it never was.

        A fleet reports all the time, and a lookup costs as much as taking in what it says.
        """
        return self._known.get(node_id)

    async def _find_nodes(self, asked: Sequence[str], _: GoOn) -> list[Mapping[str, Any] | None]:
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(_QUERIES["find_nodes"], {"ids": sorted({*asked})})
            found = {row["uid"]: row for row in await cursor.fetchall()}
        return [found.get(each) for each in asked]

    async def _find(
        self, asked: Sequence[tuple[bytes, str | None]], _: GoOn
    ) -> list[Mapping[str, Any] | None]:
        now = self._runtime.now()
        different = list(dict.fromkeys(asked))
        async with transaction(self._runtime.db) as connection:
            found = await _find_tokens(connection, different, now)
            stale = {row["id"] for row in found.values() if _use_is_stale(row["last_used_at"], now)}
            if stale:
                await connection.execute(_QUERIES["note_use"], {"ids": sorted(stale), "now": now})
        return [found.get(each) for each in asked]


async def _find_tokens(
    connection: Connection, asked: Sequence[tuple[bytes, str | None]], now: datetime
) -> dict[tuple[bytes, str | None], Mapping[str, Any]]:
    """Return what is known of tokens by their hashes, each for the tenant that it is to act for."""
    rows = [
        {"at": at, "hash": hashed, "tenant_id": tenant_id}
        for at, (hashed, tenant_id) in enumerate(asked)
    ]
    parameters = {"asked": as_rows(rows), "now": now}
    cursor = await connection.execute(_QUERIES["find_tokens"], parameters)
    return {asked[row["at"]]: row for row in await cursor.fetchall()}


def _caller(row: Mapping[str, Any], request_id: str | None) -> Caller:
    return Caller(
        row["acting"],
        row["id"],
        request_id,
        ancestors=tuple(row["ancestors"]),
        authority=Authority(
            token_id=row["id"],
            role=row["role"],
            home=row["tenant_id"],
            actions=tuple(row["actions"]),
            expires_at=row["expires_at"],
            policies=tuple(Policy(**policy) for policy in row["policies"]),
        ),
    )


def no_key(node_id: str) -> UnauthenticatedError:
    """Return the refusal of a node whose key does not hold, or that is none."""
    return UnauthenticatedError(
        "the node has no key here, or it is revoked",
        field="keyid",
        given=node_id,
        hint="Let it join again: `apportion node join-token create POOL`",
    )


def no_tenant(tenant_id: str, *, field: str = "tenant_id") -> NotFoundError:
    """Return the refusal of a tenant that does not exist for the caller."""
    return NotFoundError("no such tenant", field=field, given=tenant_id)


async def hold_tenant(
    connection: Connection, tenant_id: str, *, field: str = "tenant_id"
) -> tuple[str, ...]:
    """Keep a tenant from being deleted until the transaction ends; return the way from root to it.

    Whatever is made for a tenant begins with this: after the gates of pools, before any other lock.
    The foreign key alone would wait for a deletion and then let through what the deletion has not
    seen. NotFoundError where it is deleted or never was.
    """
    cursor = await connection.execute(_QUERIES["hold_tenant"], {"id": tenant_id})
    row = await cursor.fetchone()
    if row is None:
        raise no_tenant(tenant_id, field=field)
    return tuple(row["ancestors"])


def authorize_at_door(caller: Caller, action: str) -> None:
    """Refuse with ForbiddenError what the caller can never do, before anything else is read.

    An action on the tenant is decided here for good. One on a pool passes when the role grants it
    or an added policy might; `authorize` decides it once the pool is known.
    """
    authority = caller.authority
    if authority is None:
        return
    _check_scope(authority, action)
    if ACTIONS[action].kind == "tenant":
        _enforce(caller, action, None, {})
        return
    granted = ACTIONS[action].group in GRANTS[authority.role]
    if not granted and not any(effect_of(policy.text) == "permit" for policy in authority.policies):
        raise _forbidden(action, ())


def authorize(
    caller: Caller, action: str, pool: PoolFacts, ask: Mapping[str, Value] | None = None
) -> None:
    """Refuse with ForbiddenError what the caller may not do to a pool; names the policies."""
    if caller.authority is None:
        return
    _check_scope(caller.authority, action)
    _enforce(caller, action, pool, ask or {})


def ruling(
    caller: Caller,
    authority: Authority,
    action: str,
    pool: PoolFacts | None,
    ask: Mapping[str, Value],
) -> Ruling:
    """Return how the policies decide what a token asks in the caller's tenant."""
    facts: dict[str, Value] = {}
    if pool is not None:
        facts = {
            "gpuModel": pool.gpu_model,
            "class": pool.cls,
            "sharing": pool.sharing,
            "region": pool.region,
            "owned": pool.owner == caller.tenant_id,
        }
    question = Question(
        token=authority.token_id,
        role=authority.role,
        home=authority.home,
        action=action,
        tenants=caller.ancestors,
        pool=None if pool is None or pool.id is None else (pool.id, pool.owner),
        context={**facts, **ask},
    )
    return decide(question, authority.policies)


def _enforce(caller: Caller, action: str, pool: PoolFacts | None, ask: Mapping[str, Value]) -> None:
    assert caller.authority is not None  # noqa: S101 - both callers have looked
    found = ruling(caller, caller.authority, action, pool, ask)
    if not found.allowed:
        raise _forbidden(action, found.policies)


def _check_scope(authority: Authority, action: str) -> None:
    if not any(covers(pattern, action) for pattern in authority.actions):
        raise ForbiddenError(
            f"the token's scope does not cover {action}",
            details={"right": action, "scope": list(authority.actions)},
        )


def _forbidden(action: str, policies: Sequence[Policy]) -> ForbiddenError:
    named = ", ".join(policy.name for policy in policies)
    return ForbiddenError(
        f"needs the right {action}" + (f", and it is forbidden by {named}" if named else ""),
        hint=f"`apportion policy check {action}` shows how this is decided",
        details={"right": action, "policies": [policy.id for policy in policies]},
    )


def _use_is_stale(last_used_at: datetime | None, now: datetime) -> bool:
    return last_used_at is None or now - last_used_at >= _USE_NOTED_EVERY


async def ensure_root(runtime: Runtime, connection: Connection) -> None:
    """Make the root tenant and its first site where they do not exist yet."""
    await connection.execute(
        _QUERIES["ensure_root"], {"id": ROOT, "now": runtime.now(), "site": runtime.new_id("site")}
    )


@dataclass(frozen=True, slots=True)
class Issued:
    """A new token: its id, and itself, which can be read only now."""

    id: str
    token: str


async def issue_token(
    runtime: Runtime,
    connection: Connection,
    *,
    tenant_id: str,
    name: str,
    role: Role = "owner",
    actions: Sequence[str] = EVERYTHING,
    expires_at: datetime | None = None,
    created_by: str = SYSTEM.actor,
    token_id: str | None = None,
) -> Issued:
    """Make a token for a tenant and return it: the only time that it can be read.

    Raises ConflictError where ``token_id`` is taken: its secret cannot be shown again.
    """
    token = new_secret(runtime)
    own_id = token_id or runtime.new_id("tok")
    cursor = await connection.execute(
        _QUERIES["insert_token"],
        {
            "id": own_id,
            "tenant_id": tenant_id,
            "name": name,
            "role": role,
            "actions": list(actions),
            "hash": hash_token(runtime.key, token),
            "key_id": key_id(runtime.key),
            "created_by": created_by,
            "expires_at": expires_at,
            "now": runtime.now(),
        },
    )
    if not cursor.rowcount:
        raise ConflictError(
            "the same key made a token already, and its secret was shown then",
            field="idempotency_key",
            hint=f"`apportion token rotate {own_id}` gives it a new secret",
            details={"token_id": own_id},
        )
    return Issued(own_id, token)


def new_secret(runtime: Runtime) -> str:
    """Make the text of a token: ``apt_`` and 256 random bits."""
    return "apt_" + base64.urlsafe_b64encode(runtime.entropy(32)).rstrip(b"=").decode()


async def is_valid(runtime: Runtime, connection: Connection, token: str) -> bool:
    """Tell whether a token that was kept somewhere still works."""
    hashed = hash_token(runtime.key, token)
    return bool(await _find_tokens(connection, [(hashed, None)], runtime.now()))


async def foreign_tokens(runtime: Runtime, connection: Connection) -> int:
    """Count the tokens that could work but were hashed with another key than this server's."""
    cursor = await connection.execute(
        _QUERIES["foreign_tokens"], {"key_id": key_id(runtime.key), "now": runtime.now()}
    )
    row: dict[str, Any] | None = await cursor.fetchone()
    return 0 if row is None else row["count"]
