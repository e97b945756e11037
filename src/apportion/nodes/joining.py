"""Machines that join by themselves: let in by who vouches for them, known by a key from then on."""

from collections.abc import Mapping
from typing import Any, Final

from apportion.authority.service import Caller, server_key
from apportion.errors import ForbiddenError, InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.nodes.attesting import Voucher, find_attestor
from apportion.nodes.contract import find_node
from apportion.nodes.inventory import take_in
from apportion.nodes.schemas import EnrollAnswer, EnrollRequest
from apportion.pools.service import PoolRecord, hold_record, own_record
from apportion.quantities.windows import format_instant
from apportion.signatures import PublicKey, public_text, read_public
from apportion.store.connections import Connection, retrying
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

register(guards("nodes_public_key_length", "nodes_enrolled_whole", "nodes_revoked_had_key"))

AGENT: Final = "apportion"
"""Who follows the spec of a node that joined by itself and names nobody."""


def key_of(request: EnrollRequest) -> PublicKey:
    """Return the key that a machine says is its own, which its request has to be signed with."""
    return read_public(request.public_key, field="public_key")


async def enroll(runtime: Runtime, request_id: str | None, request: EnrollRequest) -> EnrollAnswer:
    """Let a machine join the pool that it is vouched for; whoever calls has checked its signature.

    It is safe to repeat: the same key with the same evidence gets the same answer. Raises
    UnauthenticatedError for evidence that lets nobody in, ForbiddenError for an attestor that the
    pool does not accept, InvalidStateError for the name of a node that has another key.
    """
    key = key_of(request).public_bytes_raw()
    attestor = find_attestor(request.attestor)

    async def work(connection: Connection) -> EnrollAnswer:
        voucher = await attestor.vouch(runtime, connection, request.evidence, key)
        caller = Caller(voucher.tenant_id, voucher.id, request_id)
        if voucher.node_id is not None:
            pool = await own_record(connection, caller, voucher.pool_id)
            return _answer(runtime, pool, voucher.node_id)
        pool = await hold_record(connection, caller, "compute:nodes:join", voucher.pool_id)
        _check_accepted(pool, request)
        node = await _take_node(runtime, connection, caller, pool, request)
        await attestor.spend(connection, voucher, node["id"], runtime.now())
        await append(connection, caller, runtime.now(), [_enrolled(pool, node, voucher, request)])
        return _answer(runtime, pool, node["uid"])

    return await retrying(runtime.db, work)


async def _take_node(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    pool: PoolRecord,
    request: EnrollRequest,
) -> Mapping[str, Any]:
    """Give the node its key, before and after its inventory: a new one is not there before."""
    document, now = request.inventory, runtime.now()
    agent = document.agent or AGENT
    parameters = {
        "pool_id": pool.id,
        "name": document.node,
        "public_key": key_of(request).public_bytes_raw(),
        "attestor": request.attestor,
        "agent": agent,
        "now": now,
    }
    cursor = await connection.execute(_QUERIES["enroll"], parameters)
    node = await cursor.fetchone()
    known = None if node is None else Caller(caller.tenant_id, caller.actor, node_id=node["uid"])
    document = document.model_copy(update={"agent": agent})
    await take_in(runtime, connection, known or caller, pool, [document], now=now)
    if node is None:
        cursor = await connection.execute(_QUERIES["enroll"], parameters)
        [node] = await cursor.fetchall()
    return node


def _check_accepted(pool: PoolRecord, request: EnrollRequest) -> None:
    if request.attestor not in pool.policy.join_attestors:
        raise ForbiddenError(
            "the pool does not accept that it vouches for machines",
            field="attestor",
            given=request.attestor,
            allowed=", ".join(pool.policy.join_attestors),
        )
    if request.inventory.owner_tenant_id not in (None, pool.tenant_id):
        raise InvalidInputError(
            "a machine cannot say by itself whose it is",
            field="inventory.owner_tenant_id",
            given=request.inventory.owner_tenant_id,
            allowed=f"{pool.tenant_id}, who has the pool, or left out",
        )


def _enrolled(
    pool: PoolRecord, node: Mapping[str, Any], voucher: Voucher, request: EnrollRequest
) -> Event:
    facts = {
        "pool_id": pool.id,
        "name": request.inventory.node,
        "attestor": request.attestor,
        "voucher": voucher.id,
        "public_key": request.public_key,
    }
    return Event("node.enrolled", pool.tenant_id, node["uid"], facts, after=facts)


def _answer(runtime: Runtime, pool: PoolRecord, node_id: str) -> EnrollAnswer:
    return EnrollAnswer.model_validate(
        {
            "node_id": node_id,
            "pool_id": pool.id,
            "class": pool.cls,
            "server_key": public_text(server_key(runtime.key).public_key()),
        }
    )


async def revoke_node(runtime: Runtime, caller: Caller, node_id: str) -> None:
    """Refuse a node from now on, until it joins anew; what is booked on it stays.

    One that is revoked stays as it is. Raises NotFoundError for a node that is not in the caller's
    pools, InvalidStateError for one that has no key.
    """

    async def work(connection: Connection) -> None:
        node = await find_node(connection, caller, node_id)
        pool = await hold_record(connection, caller, "compute:nodes:manage", node["pool_id"])
        if node["public_key"] is None:
            raise InvalidStateError(
                "the node has no key: its reports are taken of whoever has a token for them",
                field="node_id",
                given=node_id,
                hint="Revoke the token instead: `apportion token revoke`",
            )
        now = runtime.now()
        parameters = {"id": node["id"], "now": now}
        cursor = await connection.execute(_QUERIES["revoke_node"], parameters)
        if await cursor.fetchone() is None:
            return
        touched = {"pool_id": pool.id, "holds_tenant_nodes": False}
        await connection.execute(_QUERIES["touch_pool"], touched)
        facts = {"pool_id": pool.id, "name": node["name"]}
        after = {"revoked_at": format_instant(now)}
        told = Event(
            "node.revoked", pool.tenant_id, node_id, facts, before={"revoked_at": None}, after=after
        )
        await append(connection, caller, now, [told])

    await retrying(runtime.db, work)
