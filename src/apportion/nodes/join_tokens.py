"""Join tokens: each lets one machine join one pool, once, before it expires."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.events.service import Event, append
from apportion.nodes.attesting import JOIN_TOKEN, hash_join_token, new_join_token
from apportion.nodes.schemas import JoinTokenCreate, JoinTokenIssued, JoinTokenView
from apportion.pools.service import PoolRecord, hold_record
from apportion.quantities.ids import derive_id
from apportion.quantities.windows import format_duration, parse_duration
from apportion.store.connections import Connection, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

LONGEST: Final = timedelta(days=30)
"""How long a join token may lie about unused."""

register(
    guards(
        "join_tokens_hash_key",
        "join_tokens_hash_length",
        "join_tokens_ends",
        "join_tokens_used_by_node",
    )
)


async def create_join_token(
    runtime: Runtime, caller: Caller, pool_id: str, request: JoinTokenCreate
) -> JoinTokenIssued:
    """Create a token that lets one machine join a pool, and return it with its secret, this once.

    Raises NotFoundError for a pool that is not the caller's, InvalidStateError for one that is
    archived or does not accept join tokens, ConflictError for a key that was used.
    """
    now = runtime.now()
    length = _length(request.expires_in)
    async with transaction(runtime.db) as connection:
        pool = await hold_record(connection, caller, "compute:nodes:manage", pool_id)
        _check_pool(pool, request)
        token = new_join_token(runtime)
        key = request.idempotency_key
        own_id = key and derive_id("join", caller.tenant_id, caller.actor, key)
        parameters = {
            "id": own_id or runtime.new_id("join"),
            "tenant_id": caller.tenant_id,
            "pool_id": pool_id,
            "name": request.name,
            "class": pool.cls,
            "hash": hash_join_token(runtime.key, token),
            "created_by": caller.actor,
            "now": now,
            "expires_at": now + length,
        }
        cursor = await connection.execute(_QUERIES["insert_join_token"], parameters)
        if not cursor.rowcount:
            raise ConflictError(
                "the same key made a join token already, and its secret was shown then",
                field="idempotency_key",
                hint="Revoke it and make another one",
                details={"join_token_id": own_id},
            )
        view = await _find(runtime, connection, caller, str(parameters["id"]))
        await append(connection, caller, now, [_created(caller, view)])
    return JoinTokenIssued(token=token, record=view)


async def list_join_tokens(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    pool_id: str | None = None,
    state: str | None = None,
) -> list[JoinTokenView]:
    """Return the join tokens of the caller's pools by id, and no secret of theirs."""
    filters = {"pool_id": pool_id, "state": state, "after": after, "limit": limit}
    async with transaction(runtime.db) as connection:
        return await _list(runtime, connection, caller, filters)


async def revoke_join_token(runtime: Runtime, caller: Caller, join_token_id: str) -> JoinTokenView:
    """Let a join token let nobody in any more; one that was used, or is revoked, stays as it is.

    Raises NotFoundError for one that is not of the caller's pools.
    """
    now = runtime.now()
    async with transaction(runtime.db) as connection:
        before = await _find(runtime, connection, caller, join_token_id)
        await hold_record(connection, caller, "compute:nodes:manage", before.pool_id)
        parameters = {"id": join_token_id, "now": now}
        cursor = await connection.execute(_QUERIES["revoke_join_token"], parameters)
        if await cursor.fetchone() is None:
            return before
        view = await _find(runtime, connection, caller, join_token_id)
        await append(connection, caller, now, [_revoked(caller, before, view)])
    return view


def _length(text: str) -> timedelta:
    length = parse_duration(text, field="expires_in")
    if length > LONGEST:
        raise InvalidInputError(
            "is too long for what lets a machine in",
            field="expires_in",
            given=text,
            allowed=f"up to {format_duration(LONGEST)}",
        )
    return length


def _check_pool(pool: PoolRecord, request: JoinTokenCreate) -> None:
    if pool.archived:
        raise InvalidStateError(
            "the pool is archived, and no node joins it any more", field="pool_id", given=pool.id
        )
    if JOIN_TOKEN not in pool.policy.join_attestors:
        raise InvalidStateError(
            "the pool does not accept join tokens",
            field="policy.joinAttestors",
            given=list(pool.policy.join_attestors),
            allowed=f"a list with {JOIN_TOKEN} in it",
        )
    if request.class_ not in (None, pool.cls):
        raise InvalidInputError(
            "is not the pool's", field="class", given=request.class_, allowed=pool.cls
        )


async def _find(
    runtime: Runtime, connection: Connection, caller: Caller, join_token_id: str
) -> JoinTokenView:
    found = await _list(runtime, connection, caller, {"id": join_token_id})
    if not found:
        raise NotFoundError("no such join token", field="join_token_id", given=join_token_id)
    return found[0]


async def _list(
    runtime: Runtime, connection: Connection, caller: Caller, filters: Mapping[str, Any]
) -> list[JoinTokenView]:
    everything = {"id": None, "pool_id": None, "state": None, "after": "", "limit": 1}
    mine = {"tenant_id": caller.tenant_id, "now": runtime.now()}
    cursor = await connection.execute(
        _QUERIES["list_join_tokens"], {**everything, **filters, **mine}
    )
    return [JoinTokenView.model_validate(row) for row in await cursor.fetchall()]


def _created(caller: Caller, after: JoinTokenView) -> Event:
    facts = {"pool_id": after.pool_id, "name": after.name}
    return Event("join_token.created", caller.tenant_id, after.id, facts, after=_shown(after))


def _revoked(caller: Caller, before: JoinTokenView, after: JoinTokenView) -> Event:
    return Event(
        "join_token.revoked",
        caller.tenant_id,
        after.id,
        {"pool_id": after.pool_id, "name": after.name},
        before=_shown(before),
        after=_shown(after),
    )


def _shown(view: JoinTokenView) -> dict[str, object]:
    return view.model_dump(mode="json", by_alias=True)
