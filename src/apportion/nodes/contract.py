"""What a node is asked to be, and what it says that it is: the contract with whoever runs on it.

The spec is ours and has a generation, which rises whenever anything in it changes; the report is
the node's. Messages may be late, repeated or out of order: a report counts if the node made it
after the last one that counted, which its sequence tells, and a generation that was never asked for
is refused.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg.types.json import Jsonb
from pydantic import BaseModel

from apportion.authority.service import Caller, no_key
from apportion.errors import InvalidInputError, NotFoundError
from apportion.events.service import Event, append
from apportion.nodes.assignments import assigned_to, gpus_there, note_devices, note_leaving
from apportion.nodes.awaiting import has_passed
from apportion.nodes.cuts import cut_in_force, takes_cut, why_not_cut_so
from apportion.nodes.devices import OVER, Assigned
from apportion.nodes.host_units import COMPARED
from apportion.nodes.inventory import derive_again, take_in
from apportion.nodes.own_layouts import check_can_follow_pool, note_own_layout, own_layout_of
from apportion.nodes.reports import digest_of, tell
from apportion.nodes.schemas import NodeReport, NodeSpec
from apportion.nodes.units import units_of
from apportion.pools.service import PoolRecord, own_record
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

Node = Mapping[str, Any]
"""A node's row as the contract needs it, with the cut that it was granted, if any."""


async def find_node(connection: Connection, caller: Caller, node_id: str) -> Node:
    """Return a node of the caller's own pools; NotFoundError for any other."""
    cursor = await connection.execute(
        _QUERIES["node"], {"uid": node_id, "tenant_id": caller.tenant_id}
    )
    row = await cursor.fetchone()
    if row is None:
        raise NotFoundError("no such node", field="node_id", given=node_id)
    revoked = row["revoked_at"] is not None or row["public_key"] != caller.node_key
    if caller.node_id is not None and revoked:
        raise no_key(node_id)
    return row


async def pool_of(connection: Connection, caller: Caller, node: Node) -> PoolRecord:
    """Return the pool that a node of the caller's is in, an archived one too."""
    return await own_record(connection, caller, node["pool_id"])


async def spec_of(connection: Connection, pool: PoolRecord, node: Node) -> NodeSpec:
    """Return what a node is asked to be: true to its generation where all is of one snapshot."""
    gpus = await gpus_there(connection, node["id"])
    assigned = await assigned_to(connection, node["id"])
    units = units_of(pool, node, gpus, assigned)
    return NodeSpec(
        node_id=node["uid"],
        generation=node["spec_generation"],
        units=units,
        report_every_seconds=pool.policy.report_interval // timedelta(seconds=1),
        acceptance=[]
        if node["accepted_at"] is not None
        else [step.model_dump(mode="json", by_alias=True) for step in pool.policy.acceptance],
    )


async def take_report(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    *,
    pool: PoolRecord,
    node: Node,
    report: NodeReport,
) -> bool:
    """Take in what a node says, in a pool that is held; False where it has said something later.

    Raises InvalidInputError for another node's report and for a generation that nobody asked for.
    """
    _check(node, report)
    if not is_newer(node, report):
        return False
    now, assigned = runtime.now(), await assigned_to(connection, node["id"])
    passed = has_passed(pool.policy, report.acceptance)
    await connection.execute(
        _QUERIES["take_report"],
        {
            "id": node["id"],
            "agent": report.inventory.agent,
            "sequence": report.sequence,
            "observed": report.observed_generation,
            "converged": Jsonb(report.converged),
            "done": _is_done(pool, node, report, assigned),
            "digest": digest_of(report),
            "outcomes": Jsonb(_plain(report.outcomes)),
            "acceptance": Jsonb(_plain(report.acceptance)),
            "passed": passed,
            "now": now,
        },
    )
    # First: what the node is cut into follows from it.
    await note_own_layout(runtime, connection, caller, pool=pool, node=node, report=report)
    await take_in(runtime, connection, caller, pool, [report.inventory], now=now)
    # As they are by now: what is there was just written.
    await note_devices(connection, await assigned_to(connection, node["id"]), report, now)
    await note_leaving(connection, node["id"], report, now)
    await tell(runtime, connection, caller, pool=pool, node=node, report=report, passed=passed)
    return True


def is_newer(node: Node, report: NodeReport) -> bool:
    """Tell whether a report was made after the last one that was taken in."""
    return report.sequence > (node["report_sequence"] or 0)


def own_layout_now(pool: PoolRecord, node: Node, report: NodeReport) -> str | None:
    """Return the layout of its own that a node has with a report; a late one changes none."""
    return own_layout_of(pool, report) if is_newer(node, report) else node["own_layout"]


def _plain(results: Mapping[str, BaseModel]) -> dict[str, Any]:
    return {name: each.model_dump(mode="json") for name, each in results.items()}


def _is_done(
    pool: PoolRecord, node: Node, report: NodeReport, assigned: Sequence[Assigned]
) -> bool:
    """Tell whether a node is what its spec asked for, by its own word and by what it has."""
    observed = report.observed_generation
    needed = units_of(pool, node, (), assigned).keys() - COMPARED
    if any(report.converged.get(unit) != observed for unit in needed):
        return False
    if not takes_cut(pool, node) and own_layout_of(pool, report) is None:
        return True
    places = {(each.gpu, each.profile, each.start) for each in assigned}
    own = own_layout_of(pool, report)
    cut = cut_in_force(pool, node) if own is None else {"migLayout": own}
    return why_not_cut_so(cut, report.inventory, places) is None


def _check(node: Node, report: NodeReport) -> None:
    if report.inventory.node != node["name"]:
        raise InvalidInputError(
            "is another node",
            field="inventory.node",
            given=report.inventory.node,
            allowed=node["name"],
        )
    if report.observed_generation > node["spec_generation"]:
        raise InvalidInputError(
            "was never asked for",
            field="observed_generation",
            given=report.observed_generation,
            allowed=f"at most {node['spec_generation']}",
            hint="Read the spec again: this server may have been restored from a copy",
        )
    for unit, generation in report.converged.items():
        if generation > report.observed_generation:
            raise InvalidInputError(
                "is done with a generation that the node has not seen",
                field=f"converged.{unit}",
                given=generation,
                allowed=f"at most {report.observed_generation}, which is observed_generation",
            )


async def recut(connection: Connection, pool: PoolRecord, node_id: int, now: datetime) -> None:
    """Derive a node's atoms anew, as it is cut by now; its pool is held, and its GPUs are."""
    cursor = await connection.execute(_QUERIES["hold_nodes"], {"pool_id": pool.id, "id": node_id})
    nodes = await cursor.fetchall()
    await derive_again(connection, pool, nodes, now)
    await connection.execute(
        _QUERIES["touch_pool"], {"pool_id": pool.id, "holds_tenant_nodes": False}
    )


async def hold_node(connection: Connection, pool_id: str, node_id: int) -> Node | None:
    """Hold a node's row, as those do who book its host or take in a report of it."""
    cursor = await connection.execute(_QUERIES["hold_nodes"], {"pool_id": pool_id, "id": node_id})
    return await cursor.fetchone()


async def raise_spec(connection: Connection, node_id: int, now: datetime) -> int:
    """Ask anew of a node; returns the generation that its spec has from then on."""
    parameters = {"id": node_id, "now": now, "over": Jsonb(OVER)}
    cursor = await connection.execute(_QUERIES["raise_spec"], parameters)
    [row] = await cursor.fetchall()
    return int(row["spec_generation"])


async def raise_specs(connection: Connection, pool_id: str) -> None:
    """Ask anew of all nodes of a pool."""
    await connection.execute(_QUERIES["raise_specs"], {"pool_id": pool_id})


async def set_layout_from(
    runtime: Runtime, connection: Connection, caller: Caller, node: Node, source: str
) -> None:
    """Let a node take its MIG layout from there, if it does not already; its pool is held.

    Raises InvalidStateError where the node's own file says otherwise.
    """
    if source == "pool":
        check_can_follow_pool(node)
    cursor = await connection.execute(
        _QUERIES["set_layout_from"], {"id": node["id"], "mig_layout_from": source}
    )
    row = await cursor.fetchone()
    if row is None:
        return
    told = _updated(caller, node, "mig_layout_from", source, row["spec_generation"])
    await append(connection, caller, runtime.now(), [told])


async def set_pin(
    runtime: Runtime, connection: Connection, caller: Caller, node: Node, layout: str | None
) -> bool:
    """Let a node have this MIG layout whatever its pool asks for, or follow it (None).

    Returns False where that is so already. Its pool is held.
    """
    parameters = {"id": node["id"], "layout": layout}
    cursor = await connection.execute(_QUERIES["set_pin"], parameters)
    row = await cursor.fetchone()
    if row is not None:
        told = _updated(caller, node, "pinned_layout", layout, row["spec_generation"])
        await append(connection, caller, runtime.now(), [told])
    return row is not None


def _updated(caller: Caller, node: Node, field: str, value: str | None, generation: int) -> Event:
    shown = {
        name: node[name] for name in ("name", "mig_layout_from", "pinned_layout", "own_layout")
    }
    return Event(
        "node.updated",
        caller.tenant_id,
        node["uid"],
        {"pool_id": node["pool_id"], **shown, field: value, "generation": generation},
        before={field: node[field]},
        after={field: value},
    )
