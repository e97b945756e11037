"""Changing pools, and the dry run of creating and changing them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller, authorize
from apportion.doors.problems import problem_of
from apportion.errors import (
    ApportionError,
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    InvalidStateError,
)
from apportion.events.service import Event, append
from apportion.pools import validators
from apportion.pools.creating import creation_problems, is_single_tenant
from apportion.pools.offers import select_offers
from apportion.pools.policy import read_policy, unknown_fields
from apportion.pools.rows import QUERIES, Row, facts_of, find_own, hold_closed, select_pool
from apportion.pools.schemas import OfferView, PoolUpdate, PoolValidate, PoolView, Validation
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime


async def update_pool(
    runtime: Runtime, caller: Caller, pool_id: str, request: PoolUpdate
) -> PoolView:
    """Replace a pool's policy whole, or its GPU model, or both; one that changes nothing is none.

    Raises ConflictError where the pool is no longer at the version that was read,
    InvalidStateError for an archived pool, and what validators have against it.
    """

    async def work(connection: Connection) -> PoolView:
        row = await hold_closed(connection, caller, "compute:pools:manage", pool_id)
        now = runtime.now()
        change = _change(row, request, now)
        for error in await _update_problems(connection, row, request, change):
            raise error
        before = await select_pool(connection, caller, pool_id)
        if (change.gpu_model, change.policy) == (row["gpu_model"], row["policy"]):
            return before
        await _write_change(connection, row, change)
        await validators.applied(connection, caller, change, now)
        after = await select_pool(connection, caller, pool_id)
        offers = await select_offers(connection, pool_id)
        await append(connection, caller, now, _updated(caller, before, after, offers))
        return after

    return await retrying(runtime.db, work)


async def validate_pool(runtime: Runtime, caller: Caller, request: PoolValidate) -> Validation:
    """Return all that create, or update of a pool of the caller, would refuse; change nothing.

    Raises NotFoundError for a pool that is not the caller's.
    """
    async with transaction(runtime.db) as connection:
        problems, policy = await _judge(connection, caller, request, runtime.now())
    return Validation(
        valid=not problems,
        problems=[problem_of(error, caller.request_id) for error in problems],
        unknown_fields=unknown_fields(policy),
    )


async def _judge(
    connection: Connection, caller: Caller, request: PoolValidate, now: datetime
) -> tuple[list[ApportionError], Mapping[str, Any]]:
    """Return what would be refused, and the policy that it was about."""
    if request.create is not None and request.pool_id is None and request.update is None:
        found = await creation_problems(connection, caller, request.create)
        return found, request.create.policy
    if request.create is not None or request.pool_id is None or request.update is None:
        raise InvalidInputError(
            "is one dry run, of one thing",
            field="create",
            allowed="create, or pool_id and update",
        )
    row = await find_own(connection, caller, request.pool_id)
    change = _change(row, request.update, now)
    found: list[ApportionError] = []
    try:
        authorize(caller, "compute:pools:manage", facts_of(row))
    except ForbiddenError as error:
        found.append(error)
    found += await _update_problems(connection, row, request.update, change)
    return found, change.policy


def _change(row: Row, request: PoolUpdate, now: datetime) -> validators.PoolChange:
    return validators.PoolChange(
        pool_id=row["id"],
        owner=row["tenant_id"],
        cls=row["class"],
        sharing=row["sharing"],
        gpu_model=row["gpu_model"] if request.gpu_model is None else request.gpu_model,
        policy=row["policy"] if request.policy is None else request.policy,
        before=validators.PoolBefore(gpu_model=row["gpu_model"], policy=row["policy"], now=now),
    )


async def _update_problems(
    connection: Connection, row: Row, request: PoolUpdate, change: validators.PoolChange
) -> list[ApportionError]:
    found: list[ApportionError] = []
    if row["archived"]:
        found.append(
            InvalidStateError(
                "the pool is archived, and stays as it was", field="pool_id", given=row["id"]
            )
        )
    if row["version"] != request.version:
        found.append(
            ConflictError(
                "the pool was changed since that version was read",
                field="version",
                given=request.version,
                allowed=str(row["version"]),
                hint="Read the pool again, and decide on what it says now",
                details={"there": row["version"], "asked": request.version},
            )
        )
    return found + await validators.problems(connection, change)


async def _write_change(connection: Connection, row: Row, change: validators.PoolChange) -> None:
    policy = read_policy(change.policy, change.sharing)
    await connection.execute(
        QUERIES["update"],
        {
            "id": row["id"],
            "gpu_model": change.gpu_model,
            "policy": Jsonb(change.policy),
            "replicas": policy.replicas,
            "shares": policy.shares,
            "single_tenant": is_single_tenant(change.policy),
        },
    )


def _updated(
    caller: Caller, before: PoolView, after: PoolView, offers: Sequence[OfferView]
) -> list[Event]:
    changed = [
        name for name in ("gpu_model", "policy") if getattr(before, name) != getattr(after, name)
    ]
    data: dict[str, object] = {"changed": changed, "version": after.version}
    own = Event(
        "pool.updated",
        caller.tenant_id,
        after.id,
        data,
        before=before.model_dump(mode="json", by_alias=True),
        after=after.model_dump(mode="json", by_alias=True),
    )
    others = [
        Event("pool.updated", offer.tenant_id, after.id, data, actor=caller.tenant_id)
        for offer in offers
    ]
    return [own, *others]
