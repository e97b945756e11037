"""The node's side of a change: it reads what it is to be, and says what it is.

Nothing but such a report lets a granted node go: no timer does, because a node with a backlog would
then destroy what work had landed on.
"""

from apportion.authority.service import Caller, authorize
from apportion.errors import InvalidInputError
from apportion.nodes import service as nodes
from apportion.nodes.schemas import NodeReport, NodeSpec, NodeUpdate, NodeView, ReportAnswer
from apportion.nodes.service import (
    MIG_UNIT,
    SHARING_UNIT,
    Node,
    cut_text,
    takes_cut,
    why_not_cut_so,
)
from apportion.partitions.freezing import Following, follow_own_word, return_to_pool
from apportion.partitions.pinning import Pin, pin
from apportion.partitions.rows import why
from apportion.partitions.turn import Turn, hold_layout, let_go
from apportion.pools.service import PoolRecord, hold_record
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime


async def get_spec(runtime: Runtime, caller: Caller, node_id: str) -> NodeSpec:
    """Return what a node of the caller's pools is asked to be; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        # A generation says one thing only: what it asks for is read as of one instant.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        node = await nodes.find_node(connection, caller, node_id)
        pool = await nodes.pool_of(connection, caller, node)
        authorize(caller, "compute:nodes:report", pool.facts)
        return await nodes.spec_of(connection, pool, node)


async def take_report(
    runtime: Runtime, caller: Caller, node_id: str, report: NodeReport
) -> ReportAnswer:
    """Take in what a node says that it is, and let it go where that is what was granted.

    Raises NotFoundError for a node that is not in the caller's pools, InvalidInputError for another
    node's report or a generation that was never asked for, and what an inventory can be refused
    for.
    """
    if caller.node_id is not None:
        async with transaction(runtime.db) as connection:
            generation = await nodes.same_again(runtime, connection, caller, report)
        if generation is not None:
            return _taken_in(report, generation)

    async def work(connection: Connection) -> ReportAnswer:
        found = await nodes.find_node(connection, caller, node_id)
        pool = await hold_record(connection, caller, "compute:nodes:report", found["pool_id"])
        node = await nodes.find_node(connection, caller, node_id)
        following = Following(connection, caller, pool, node, runtime.now())
        await follow_own_word(following, nodes.own_layout_now(pool, node, report))
        accepted = await nodes.take_report(
            runtime, connection, caller, pool=pool, node=node, report=report
        )
        if accepted:
            await _let_go_if_done(runtime, connection, pool, node["uid"], report)
            return _taken_in(report, node["spec_generation"])
        return ReportAnswer(
            accepted=False,
            reason="report_out_of_order",
            generation=node["spec_generation"],
            sequence=node["report_sequence"],
        )

    return await retrying(runtime.db, work)


def _taken_in(report: NodeReport, generation: int) -> ReportAnswer:
    return ReportAnswer(accepted=True, reason=None, generation=generation, sequence=report.sequence)


async def _let_go_if_done(
    runtime: Runtime, connection: Connection, pool: PoolRecord, node_id: str, report: NodeReport
) -> None:
    owner = Caller(pool.tenant_id, "system")
    node = await nodes.find_node(connection, owner, node_id)
    layout = await hold_layout(connection, node["id"])
    if layout is None or layout.state != "granted":
        return
    if not _is_done(pool, node, layout.grant_generation or 0, report):
        return
    text = f"the node has reported that it is cut into {cut_text(layout.granted)}"
    turn = Turn(connection, pool, node, layout, runtime.now())
    await let_go(turn, why("applied", text, generation=report.observed_generation))


def _is_done(pool: PoolRecord, node: Node, generation: int, report: NodeReport) -> bool:
    """Tell whether a node is what it was granted to be, by its own word and by what it has.

    One that no longer takes its layout from the pool is done once it knows that.
    """
    if not takes_cut(pool, node):
        return report.observed_generation == node["spec_generation"]
    unit = MIG_UNIT if pool.sharing == "mig" else SHARING_UNIT
    if min(report.observed_generation, report.converged.get(unit, 0)) < generation:
        return False
    return why_not_cut_so(node["granted"], report.inventory) is None


async def update_node(
    runtime: Runtime, caller: Caller, node_id: str, request: NodeUpdate
) -> NodeView:
    """Say where a node takes its MIG layout from, and which; it changes through the gate.

    Raises NotFoundError for a node that is not in the caller's pools, InvalidInputError where
    nothing is said, and what `pin` raises.
    """
    if request.mig_layout_from is None and request.mig_layout is None:
        raise InvalidInputError(
            "says nothing", field="mig_layout", allowed="mig_layout, mig_layout_from, or both"
        )

    async def work(connection: Connection) -> None:
        found = await nodes.find_node(connection, caller, node_id)
        pool = await hold_record(connection, caller, "compute:nodes:manage", found["pool_id"])
        if request.mig_layout_from is not None:
            found = await nodes.find_node(connection, caller, node_id)
            source, before = request.mig_layout_from, found["mig_layout_from"]
            await nodes.set_layout_from(runtime, connection, caller, found, source)
            if (before, source) == ("node", "pool"):
                following = Following(connection, caller, pool, found, runtime.now())
                await return_to_pool(following, {})
        if request.mig_layout is not None:
            found = await nodes.find_node(connection, caller, node_id)
            await pin(Pin(runtime, connection, caller, pool, found), request.mig_layout)

    await retrying(runtime.db, work)
    return await nodes.get_node(runtime, caller, node_id)
