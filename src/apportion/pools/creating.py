"""Creating pools, and what speaks against it: create raises the first, the dry run shows all."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import Caller, PoolFacts, authorize, hold_tenant
from apportion.errors import ApportionError, ConflictError, InvalidInputError
from apportion.events.service import Event, append
from apportion.pools import validators
from apportion.pools.policy import read_policy
from apportion.pools.quotas import counting_equivalents, limit_problems, read_limits, set_limits
from apportion.pools.rows import QUERIES, Row, name_taken, select_pool
from apportion.pools.schemas import PoolCreate, PoolView
from apportion.pools.sites import hold_site
from apportion.quantities.ids import derive_id
from apportion.store.connections import Connection, retrying
from apportion.store.runtime import Runtime

_TOLD: Final = ("name", "site_id", "class", "gpu_model", "sharing", "agent")


async def create_pool(runtime: Runtime, caller: Caller, request: PoolCreate) -> PoolView:
    """Create a pool with its owner's quota, or return the one that the same key created.

    Raises NotFoundError for a site that the tenant does not own, ForbiddenError where policies
    forbid such a pool, InvalidInputError for what can never be, ConflictError for a taken name or
    a key that was used for another pool.
    """

    async def work(connection: Connection) -> PoolView:
        await hold_tenant(connection, caller.tenant_id)
        pool_id, there = await _by_key(connection, caller, request)
        site = await _site(connection, caller, request, there)
        authorize(caller, "compute:pools:create", _facts(caller, request, site))
        if there is not None:
            return await _same(connection, caller, there, request, site)
        for error in await _problems(connection, caller, request, pool_id):
            raise error
        new_id = pool_id or runtime.new_id("pool")
        return await _write(connection, caller, request, site, pool_id=new_id, now=runtime.now())

    return await retrying(runtime.db, work)


async def creation_problems(
    connection: Connection, caller: Caller, request: PoolCreate
) -> list[ApportionError]:
    """Return everything that create would refuse, in the order in which it looks."""
    found: list[ApportionError] = []
    pool_id, there = await _by_key(connection, caller, request)
    try:
        site = await _site(connection, caller, request, there)
        authorize(caller, "compute:pools:create", _facts(caller, request, site))
        if there is not None:
            _check_same(there, request, site)
    except ApportionError as error:
        found.append(error)
    if there is None:
        found += await _problems(connection, caller, request, pool_id)
    return found


def agent_of(request: PoolCreate) -> str:
    """Return who runs on the pool's machines: our agent, or nobody at a provider's."""
    return request.agent or ("none" if request.class_ == "provider" else "apportion")


async def _by_key(
    connection: Connection, caller: Caller, request: PoolCreate
) -> tuple[str | None, Row | None]:
    """Return the id that the request's key gives, and the pool that has it already."""
    if request.idempotency_key is None:
        return None, None
    pool_id = derive_id("pool", caller.tenant_id, caller.actor, request.idempotency_key)
    cursor = await connection.execute(
        QUERIES["find_own"], {"id": pool_id, "tenant_id": caller.tenant_id}
    )
    return pool_id, await cursor.fetchone()


async def _site(
    connection: Connection, caller: Caller, request: PoolCreate, there: Row | None
) -> Row:
    made_in = None if there is None else there["site_id"]
    return await hold_site(connection, caller, request.site_id or made_in)


async def _same(
    connection: Connection, caller: Caller, there: Row, request: PoolCreate, site: Row
) -> PoolView:
    _check_same(there, request, site)
    return await select_pool(connection, caller, there["id"])


def _check_same(there: Row, request: PoolCreate, site: Row) -> None:
    """Refuse a key that made a pool which differs in what a pool never changes, or in its model.

    Its name, policy and quotas may have changed since; they are no business of a retry.
    """
    asked = {
        "site_id": site["id"],
        "class": request.class_,
        "sharing": request.sharing,
        # Left out, it asks for no other one: earlier versions had none to choose.
        "agent": request.agent or there["agent"],
        "provider_account_id": request.provider_account_id,
        "gpu_model": request.gpu_model,
    }
    for field, value in asked.items():
        if there[field] != value:
            raise ConflictError(
                f"the same key created a pool with another {field}",
                field="idempotency_key",
                details={"pool_id": there["id"], "there": there[field], "asked": value},
            )


async def _problems(
    connection: Connection, caller: Caller, request: PoolCreate, pool_id: str | None
) -> list[ApportionError]:
    cursor = await connection.execute(
        QUERIES["name_is_taken"],
        {"tenant_id": caller.tenant_id, "name": request.name, "id": pool_id},
    )
    taken = await cursor.fetchone() is not None
    change = validators.PoolChange(
        pool_id=None,
        owner=caller.tenant_id,
        cls=request.class_,
        sharing=request.sharing,
        gpu_model=request.gpu_model,
        policy=request.policy,
        before=None,
    )
    return [
        *_provider_problems(request),
        *limit_problems(request.owner_quota, field="owner_quota"),
        *await validators.problems(connection, change),
        *([name_taken(request.name)] if taken else []),
    ]


def _provider_problems(request: PoolCreate) -> list[ApportionError]:
    found: list[ApportionError] = []
    is_provider = request.class_ == "provider"
    if is_provider != (request.provider_account_id is not None):
        found.append(
            InvalidInputError(
                "a provider pool needs it" if is_provider else f"a {request.class_} pool has none",
                field="provider_account_id",
                given=request.provider_account_id,
            )
        )
    if is_provider and agent_of(request) != "none":
        found.append(
            InvalidInputError(
                "nothing of ours runs on a provider's machines",
                field="agent",
                given=request.agent,
                allowed="none",
            )
        )
    return found


async def _write(
    connection: Connection,
    caller: Caller,
    request: PoolCreate,
    site: Row,
    *,
    pool_id: str,
    now: datetime,
) -> PoolView:
    policy = read_policy(request.policy, request.sharing)
    row: dict[str, Any] = {
        "id": pool_id,
        "tenant_id": caller.tenant_id,
        "site_id": site["id"],
        "name": request.name,
        "class": request.class_,
        "gpu_model": request.gpu_model,
        "sharing": request.sharing,
        "agent": agent_of(request),
        "provider_account_id": request.provider_account_id,
        "replicas": policy.replicas,
        "shares": policy.shares,
        "single_tenant": is_single_tenant(request.policy),
        "now": now,
    }
    cursor = await connection.execute(QUERIES["insert"], {**row, "policy": Jsonb(request.policy)})
    if await cursor.fetchone() is None:
        # Somebody was faster, by less than one look: with the same key, or with the same name.
        _, there = await _by_key(connection, caller, request)
        if there is None:
            raise name_taken(request.name)
        return await _same(connection, caller, there, request, site)
    limits = read_limits(counting_equivalents(request.owner_quota), field="owner_quota")
    await set_limits(connection, caller.tenant_id, row["id"], limits)
    pool = await select_pool(connection, caller, row["id"])
    data = {key: row[key] for key in _TOLD}
    event = Event(
        "pool.created",
        caller.tenant_id,
        pool.id,
        data,
        after=pool.model_dump(mode="json", by_alias=True),
    )
    await append(connection, caller, now, [event])
    return pool


def is_single_tenant(policy: Mapping[str, Any]) -> bool:
    """Tell whether a policy that was validated keeps the pool to one tenant besides its owner."""
    return policy.get("singleTenant") is True


def _facts(caller: Caller, request: PoolCreate, site: Row) -> PoolFacts:
    return PoolFacts(
        id=None,
        owner=caller.tenant_id,
        gpu_model=request.gpu_model,
        cls=request.class_,
        sharing=request.sharing,
        region=site["region"],
    )
