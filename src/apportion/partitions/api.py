"""Routes of what nodes are asked to be, what they say that they are, and of changes of cuts."""

from typing import Annotated, cast

from fastapi import APIRouter, Path, Query, Request

from apportion.doors.paging import Cursor, Limit, Page, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.nodes.schemas import NodeReport, NodeSpec, NodeUpdate, NodeView, ReportAnswer
from apportion.partitions import service
from apportion.partitions.schemas import (
    LayoutAsk,
    LayoutChange,
    LayoutPlan,
    LayoutState,
    NodeLayoutView,
)
from apportion.reservations.service import Reservations

router = APIRouter(route_class=Door, tags=["partitions"])

NodeId = Annotated[str, Path()]
PoolId = Annotated[str, Path()]


class NodeLayoutPage(Page[NodeLayoutView]):
    """Nodes by id."""


@router.get("/v1/nodes/{node_id}/spec", summary="Show what a node is asked to be")
async def get_spec(runtime: TheRuntime, caller: TheCaller, node_id: NodeId) -> NodeSpec:
    return await service.get_spec(runtime, caller, node_id)


@router.post("/v1/nodes/{node_id}/report", summary="Take in what a node says that it is")
async def report_node(
    runtime: TheRuntime, caller: TheCaller, node_id: NodeId, report: NodeReport
) -> ReportAnswer:
    return await service.take_report(runtime, caller, node_id, report)


@router.patch("/v1/nodes/{node_id}", summary="Say which MIG layout a node has, and whence")
async def update_node(
    runtime: TheRuntime, caller: TheCaller, node_id: NodeId, request: NodeUpdate
) -> NodeView:
    return await service.update_node(runtime, caller, node_id, request)


@router.get("/v1/pools/{pool_id}/layout", summary="List what a pool's nodes are cut into, and why")
async def list_layouts(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: PoolId,
    *,
    state: Annotated[LayoutState | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> NodeLayoutPage:
    [after] = decode_cursor("list_layouts", cursor, "")
    found = await service.list_layouts(
        runtime, caller, pool_id, after=after, limit=limit + 1, state=state
    )
    items, following = cut("list_layouts", found, limit, lambda node: [node.node_id])
    return NodeLayoutPage(items=items, next_cursor=following)


@router.put("/v1/pools/{pool_id}/layout", summary="Ask for another cut of a pool's GPUs")
async def set_layout(
    runtime: TheRuntime, caller: TheCaller, pool_id: PoolId, request: LayoutAsk
) -> LayoutChange:
    return await service.set_layout(runtime, caller, pool_id, request)


@router.post("/v1/pools/{pool_id}/layout/plan", summary="Show what another cut would mean")
async def plan_layout(
    runtime: TheRuntime, caller: TheCaller, pool_id: PoolId, asked: LayoutAsk, request: Request
) -> LayoutPlan:
    reservations = cast("Reservations", request.app.state.reservations)
    return await service.plan_layout(runtime, reservations, caller, pool_id, asked)


@router.post("/v1/pools/{pool_id}/layout/cancel", summary="Drop what was not granted yet")
async def cancel_layout(runtime: TheRuntime, caller: TheCaller, pool_id: PoolId) -> LayoutChange:
    return await service.cancel_layout(runtime, caller, pool_id)
