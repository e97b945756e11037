"""Taking in what nodes report: one document is a full picture of one node."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.authority.service import ROOT, Caller
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError
from apportion.events.service import Event, append
from apportion.geometry import parse_device_name
from apportion.nodes.assignments import assign_missing
from apportion.nodes.atom_rows import write_atoms
from apportion.nodes.atoms import derive, identify
from apportion.nodes.awaiting import awaited
from apportion.nodes.cuts import with_cut
from apportion.nodes.derived import Derived, NodeRows
from apportion.nodes.host_rows import write_resources
from apportion.nodes.reports import returned
from apportion.nodes.schemas import GpuReport, Inventory
from apportion.nodes.specs import GpuSpec
from apportion.pools.service import PoolRecord, hold_record
from apportion.quantities.units import from_multirange
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

# A node serves one target, fixed by its pool's class.
TARGETS: Final = {
    "metal-host": "direct",
    "vps-host": "direct",
    "kubernetes-host": "kubernetes",
    "slurm-host": "slurm",
    "provider": "none",
}


async def import_inventories(
    runtime: Runtime,
    caller: Caller,
    pool_id: str,
    documents: Sequence[Inventory],
    *,
    action: str = "compute:nodes:join",
) -> list[str]:
    """Take in the reports of some nodes of one pool, all or none; returns their node ids in order.

    A node that is new joins the pool; ``action`` is what the caller must be allowed to do to it.
    Raises NotFoundError for a pool that is not the caller's own, InvalidInputError for a GPU of
    another model or a report that contradicts itself, ConflictError for a GPU that another node
    has, InvalidStateError for a new node of an archived pool and for a tenant's own machine in a
    pool that is offered.
    """
    owners = {each.owner_tenant_id for each in documents if each.owner_tenant_id is not None}
    async with transaction(runtime.db) as connection:
        # One import of a pool at a time, on the policy that it has by then, and with it the ruler.
        pool = await hold_record(
            connection, caller, action, pool_id, members=owners, field="owner_tenant_id"
        )
        return await take_in(runtime, connection, caller, pool, documents, now=runtime.now())


async def take_in(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    pool: PoolRecord,
    documents: Sequence[Inventory],
    *,
    now: datetime,
) -> list[str]:
    """Take in the reports of some nodes of a pool that the caller holds, as of ``now``."""
    names = [document.node for document in documents]
    cursor = await connection.execute(_QUERIES["standings"], {"pool_id": pool.id, "names": names})
    standings = {row["name"]: row for row in await cursor.fetchall()}
    _check_signed(caller, standings.values())
    derived = [_as_reported(each, pool, standings.get(each.node)) for each in documents]
    _check_once(derived)
    # Whoever keeps a picture of the pool reloads it.
    holds = any((each.owner_tenant_id or pool.tenant_id) != ROOT for each in documents)
    await connection.execute(
        _QUERIES["touch_pool"], {"pool_id": pool.id, "holds_tenant_nodes": holds}
    )
    nodes = await _write_nodes(runtime, connection, pool, derived, now)
    _check_nodes(pool, derived, nodes)
    await _write_gpus(connection, pool, derived, nodes)
    await write_atoms(connection, pool, derived, nodes, now)
    await write_resources(connection, pool, derived, nodes, now)
    with_agent = [node["id"] for node in nodes.values() if node["agent"] is not None]
    await assign_missing(connection, with_agent, now)
    events = [event for each in derived for event in _events(each, pool, nodes)]
    events += _returned(pool, nodes, standings)
    await append(connection, caller, now, events)
    return [nodes[each.document.node]["uid"] for each in derived]


def _check_signed(caller: Caller, standings: Iterable[Mapping[str, Any]]) -> None:
    """Refuse what others say about a node that has a key: only what it signs counts."""
    for node in standings:
        if node["has_key"] and node["uid"] != caller.node_id:
            raise InvalidStateError(
                "the node has joined with a key of its own, and only what it signs counts",
                field="node",
                given=node["name"],
                hint=f"`apportion node revoke {node['name']}` ends that",
            )


async def derive_again(
    connection: Connection, pool: PoolRecord, nodes: Sequence[Mapping[str, Any]], now: datetime
) -> None:
    """Derive GPUs and atoms anew from the last reports: the pool says otherwise by now.

    ``nodes`` are the pool's, held by the caller, who holds the pool and its GPUs too.
    """
    derived = [_as_reported(_last_report(node), pool, node) for node in nodes]
    by_name = {node["name"]: node for node in nodes}
    await _write_gpus(connection, pool, derived, by_name)
    await write_atoms(connection, pool, derived, by_name, now)


async def compute_again(
    connection: Connection, pool: PoolRecord, nodes: Sequence[Mapping[str, Any]], now: datetime
) -> None:
    """Compute anew what hosts have to give, and have pictures of the pool loaded anew."""
    derived = [Derived(_last_report(node), (), node["health"], None) for node in nodes]
    by_name = {node["name"]: node for node in nodes}
    await write_resources(connection, pool, derived, by_name, now)
    await connection.execute(
        _QUERIES["touch_pool"], {"pool_id": pool.id, "holds_tenant_nodes": False}
    )


def _last_report(node: Mapping[str, Any]) -> Inventory:
    return Inventory.model_validate(node["inventory"])


def _as_reported(
    document: Inventory, pool: PoolRecord, standing: Mapping[str, Any] | None
) -> Derived:
    """Derive a node's GPUs from its report, cut as the node is: its pool may ask otherwise by now.

    ``standing`` is the node as it was before the report, None where it is new.
    """
    policy = with_cut(pool.policy, None if standing is None else standing["granted"])
    told = {
        row.product: {profile.name: profile for profile in row.profiles}
        for row in document.mig_profiles
    }
    gpus = tuple(
        derive(
            report,
            identify(report),
            node=document.node,
            model=_model(report, pool, f"gpus[{at}].product"),
            sharing=pool.sharing,
            policy=policy,
            awaits=awaited(pool, document.agent, standing),
            told=told.get(report.product, {}),
        )
        for at, report in enumerate(document.gpus)
    )
    failed = [gpu.report.uuid for gpu in gpus if gpu.reason == "failed"]
    if len(failed) == len(gpus):
        return Derived(document, gpus, "no_capacity", "no GPU can be used")
    failed += [
        each.uuid or f"{report.uuid}/gi{each.gi_id}"
        for report in document.gpus
        for each in report.mig.instances
        if each.failed is not None and report.uuid not in failed
    ]
    if failed:
        return Derived(document, gpus, "degraded", f"failed: {', '.join(failed)}")
    if document.problems:
        return Derived(document, gpus, "degraded", "; ".join(document.problems))
    return Derived(document, gpus, "healthy", None)


def _model(report: GpuReport, pool: PoolRecord, field: str) -> str:
    family = parse_device_name(report.product, field=field).family
    if family.casefold() != pool.gpu_model.casefold():
        raise InvalidInputError(
            f"the pool holds {pool.gpu_model} GPUs and this is of family {family}",
            field=field,
            given=report.product,
            hint="Import the machine into a pool of its model: meters and policies key on it",
        )
    return pool.gpu_model


def _check_once(derived: Sequence[Derived]) -> None:
    seen: dict[str, str] = {}
    for each in derived:
        for kind, name in [
            ("node", each.document.node),
            *(("GPU", gpu.report.uuid) for gpu in each.gpus),
        ]:
            if f"{kind} {name}" in seen:
                raise InvalidInputError(f"{kind} {name} is listed twice", field="gpus", given=name)
            seen[f"{kind} {name}"] = name
        for at, gpu in enumerate(each.gpus):
            _check_apart(gpu, f"gpus[{at}].mig.instances")


def _check_apart(gpu: GpuSpec, field: str) -> None:
    """Refuse a report in which two instances share a slice: they cannot both exist."""
    taken = 0
    for atom in gpu.atoms:
        if "migUuid" in atom.attributes and atom.start is not None:
            units = from_multirange(atom.units)
            if units & taken:
                raise InvalidInputError(
                    f"{atom.profile} at {atom.start} overlaps another one of {gpu.report.uuid}",
                    field=field,
                    given=[f"{each.profile}@{each.start}" for each in gpu.report.mig.instances],
                )
            taken |= units


async def _write_nodes(
    runtime: Runtime,
    connection: Connection,
    pool: PoolRecord,
    derived: Sequence[Derived],
    now: datetime,
) -> dict[str, dict[str, Any]]:
    cursor = await connection.execute(
        _QUERIES["upsert_nodes"],
        {
            "uids": [runtime.new_id("node") for _ in derived],
            "tenant_ids": [each.document.owner_tenant_id or pool.tenant_id for each in derived],
            "pool_id": pool.id,
            "names": [each.document.node for each in derived],
            "target": TARGETS[pool.cls],
            "controllers": [each.document.controller for each in derived],
            "healths": [each.health for each in derived],
            "health_reasons": [each.health_reason for each in derived],
            "inventories": [
                Jsonb(each.document.model_dump(mode="json", by_alias=True)) for each in derived
            ],
            "agents": [each.document.agent for each in derived],
            "now": now,
        },
    )
    return {row["name"]: row for row in await cursor.fetchall()}


def _check_nodes(pool: PoolRecord, derived: Sequence[Derived], nodes: NodeRows) -> None:
    """Refuse what joins an archived pool, and a machine that would change its owner by a report."""
    for each in derived:
        node, owner = nodes[each.document.node], each.document.owner_tenant_id
        if pool.archived and node["joined"]:
            raise InvalidStateError(
                "the pool is archived, and no node joins it any more",
                field="pool_id",
                given=pool.id,
            )
        if owner not in (None, node["tenant_id"]):
            raise InvalidStateError(
                "a machine keeps the owner that it joined with",
                field="owner_tenant_id",
                given=owner,
                allowed=node["tenant_id"],
            )


async def _write_gpus(
    connection: Connection,
    pool: PoolRecord,
    derived: Sequence[Derived],
    nodes: NodeRows,
) -> None:
    gpus = [(nodes[each.document.node]["id"], gpu) for each in derived for gpu in each.gpus]
    uuids = [gpu.report.uuid for _, gpu in gpus]
    await connection.execute(_QUERIES["hold_gpus"], {"uuids": uuids})
    await connection.execute(
        _QUERIES["upsert_gpus"],
        {
            "uuids": uuids,
            "tenant_id": pool.tenant_id,
            "pool_id": pool.id,
            "model": pool.gpu_model,
            "node_ids": [node for node, _ in gpus],
            "indexes": [gpu.report.index for _, gpu in gpus],
            "products": [gpu.report.product for _, gpu in gpus],
            "boards": [gpu.board for _, gpu in gpus],
            "pci": [gpu.report.pci_address for _, gpu in gpus],
            "memories": [gpu.report.memory_mib for _, gpu in gpus],
            "numa": [gpu.report.numa_node for _, gpu in gpus],
            "currents": [gpu.report.mig.current for _, gpu in gpus],
            "pendings": [gpu.report.mig.pending for _, gpu in gpus],
            "splits": [gpu.split for _, gpu in gpus],
            "rulers": [gpu.ruler for _, gpu in gpus],
            "nvlinks": [Jsonb([n.model_dump() for n in gpu.report.nvlink]) for _, gpu in gpus],
            "reasons": [gpu.reason for _, gpu in gpus],
        },
    )
    # Only now, when each row is locked: a GPU new to us may be new on two nodes at once.
    await _check_homes(connection, {gpu.report.uuid: node for node, gpu in gpus})
    await connection.execute(
        _QUERIES["miss_gpus"],
        {"node_ids": [node["id"] for node in nodes.values()], "uuids": uuids},
    )


async def _check_homes(connection: Connection, homes: Mapping[str, int]) -> None:
    cursor = await connection.execute(_QUERIES["homes"], {"uuids": list(homes)})
    for row in await cursor.fetchall():
        if homes[row["uuid"]] != row["node_id"]:
            raise ConflictError(
                f"GPU {row['uuid']} is on node {row['node']} already",
                field="gpus",
                details={"gpu_id": row["uuid"], "node": row["node"]},
            )


def _events(each: Derived, pool: PoolRecord, nodes: NodeRows) -> list[Event]:
    """Tell the pool's owner, and the machine's where that is somebody else."""
    node = nodes[each.document.node]
    data: dict[str, object] = {
        "pool_id": pool.id,
        "name": each.document.node,
        "gpus": len(each.gpus),
        "health": each.health,
        "health_reason": each.health_reason,
    }
    kind = "node.joined" if node["joined"] else "node.reported"
    told = [Event(kind, pool.tenant_id, node["uid"], data, after=data)]
    if node["tenant_id"] != pool.tenant_id:
        told.append(Event(kind, node["tenant_id"], node["uid"], data, actor=pool.tenant_id))
    return told


def _returned(
    pool: PoolRecord, nodes: NodeRows, standings: Mapping[str, Mapping[str, Any]]
) -> list[Event]:
    """Tell of nodes without a key that were silent: somebody has spoken for them by an import."""
    silent = {
        name: node["silent_since"]
        for name, node in standings.items()
        if node["silent_since"] is not None
    }
    return [returned(pool, nodes[name]["uid"], name, since) for name, since in silent.items()]
