"""Routes of nodes, GPUs and atoms."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from apportion.doors.paging import Cursor, Filter, Limit, Page, Truth, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.geometry import parse_profile
from apportion.nodes import service
from apportion.nodes.schemas import AtomClass, AtomView, GpuView, Inventory, NodeView

router = APIRouter(route_class=Door, tags=["nodes"])


class NodePage(Page[NodeView]):
    """Nodes by id."""


class GpuPage(Page[GpuView]):
    """GPUs by UUID."""


class AtomPage(Page[AtomView]):
    """Atoms by id."""


@router.post(
    "/v1/pools/{pool_id}/nodes", summary="Take in a node's inventory; a new node joins the pool"
)
async def join_node(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: Annotated[str, Path()],
    inventory: Inventory,
) -> NodeView:
    [node_id] = await service.import_inventories(runtime, caller, pool_id, [inventory])
    return await service.get_node(runtime, caller, node_id)


@router.put("/v1/nodes/{node_id}/inventory", summary="Take in a report about a node of a pool")
async def report_inventory(
    runtime: TheRuntime,
    caller: TheCaller,
    node_id: Annotated[str, Path()],
    inventory: Inventory,
) -> NodeView:
    return await service.report_inventory(runtime, caller, node_id, inventory)


@router.get("/v1/nodes", summary="List nodes")
async def list_nodes(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    name: Filter = None,
    health: Annotated[Literal["healthy", "degraded", "no_capacity"] | None, Query()] = None,
    stale: Truth = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> NodePage:
    [after] = decode_cursor("list_nodes", cursor, "")
    found = await service.list_nodes(
        runtime,
        caller,
        after=after,
        limit=limit + 1,
        pool_id=pool_id,
        name=name,
        health=health,
        stale=stale,
    )
    items, following = cut("list_nodes", found, limit, lambda node: [node.id])
    return NodePage(items=items, next_cursor=following)


@router.get("/v1/nodes/{node_id}", summary="Show a node and its host resources")
async def get_node(
    runtime: TheRuntime, caller: TheCaller, node_id: Annotated[str, Path()]
) -> NodeView:
    return await service.get_node(runtime, caller, node_id)


@router.get("/v1/gpus", summary="List GPUs")
async def list_gpus(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    node: Filter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> GpuPage:
    [after] = decode_cursor("list_gpus", cursor, "")
    found = await service.list_gpus(
        runtime, caller, after=after, limit=limit + 1, pool_id=pool_id, node=node
    )
    items, following = cut("list_gpus", found, limit, lambda gpu: [gpu.id])
    return GpuPage(items=items, next_cursor=following)


@router.get("/v1/atoms", summary="List what can be booked")
async def list_atoms(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    gpu_id: Filter = None,
    cls: Annotated[AtomClass | None, Query(alias="class")] = None,
    bookable: Truth = None,
    profile: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Such as 3g.40gb.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AtomPage:
    [after] = decode_cursor("list_atoms", cursor, "")
    found = await service.list_atoms(
        runtime,
        caller,
        after=after,
        limit=limit + 1,
        pool_id=pool_id,
        gpu_id=gpu_id,
        cls=cls,
        bookable=bookable,
        profile=None if profile is None else str(parse_profile(profile, field="profile")),
    )
    items, following = cut("list_atoms", found, limit, lambda atom: [atom.id])
    return AtomPage(items=items, next_cursor=following)
