"""Routes of what nodes are asked to be, what they say that they are, and of changes of cuts."""

from typing import Annotated

from fastapi import APIRouter, Path

from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.nodes.schemas import NodeReport, NodeSpec, NodeUpdate, NodeView
from apportion.partitions import service
from apportion.partitions.schemas import ReportAnswer

router = APIRouter(route_class=Door, tags=["partitions"])

NodeId = Annotated[str, Path()]


@router.get("/v1/nodes/{node_id}/spec", summary="Show what a node is asked to be")
async def get_spec(runtime: TheRuntime, caller: TheCaller, node_id: NodeId) -> NodeSpec:
    return await service.get_spec(runtime, caller, node_id)


@router.post("/v1/nodes/{node_id}/report", summary="Take in what a node says that it is")
async def report_node(
    runtime: TheRuntime, caller: TheCaller, node_id: NodeId, report: NodeReport
) -> ReportAnswer:
    return await service.take_report(runtime, caller, node_id, report)


@router.patch("/v1/nodes/{node_id}", summary="Say where a node takes its MIG layout from")
async def update_node(
    runtime: TheRuntime, caller: TheCaller, node_id: NodeId, request: NodeUpdate
) -> NodeView:
    return await service.update_node(runtime, caller, node_id, request)
