"""Nodes, GPUs and what can be booked of them."""

from typing import Literal

from apportion.client.aio.asking import AsyncAsking
from apportion.client.aio.page import AsyncListing
from apportion.client.requests import Document, Query, body_of, keyed, path_of
from apportion.nodes.schemas import (
    AtomClass,
    AtomView,
    EnrollAnswer,
    EnrollRequest,
    GpuView,
    Inventory,
    JoinTokenCreate,
    JoinTokenIssued,
    JoinTokenView,
    NodeReport,
    NodeSpec,
    NodeUpdate,
    NodeView,
    ReportAnswer,
)
from apportion.partitions.schemas import (
    LayoutAsk,
    LayoutChange,
    LayoutPlan,
    LayoutState,
    NodeLayoutView,
)


class AsyncNodes(AsyncAsking):
    """What the API offers about machines."""

    async def join_node(self, pool_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a node's inventory; a new node joins the pool."""
        path = path_of("pools", pool_id, "nodes")
        return await self._send("POST", path, NodeView, body_of(inventory))

    async def report_inventory(self, node_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a report about a node of a pool."""
        path = path_of("nodes", node_id, "inventory")
        return await self._send("PUT", path, NodeView, body_of(inventory))

    def list_nodes(
        self,
        *,
        pool_id: str | None = None,
        name: str | None = None,
        health: Literal["healthy", "degraded", "no_capacity"] | None = None,
        stale: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[NodeView]:
        """List nodes by id; ``stale`` ones are those that nobody hears of."""
        query: Query = {
            "pool_id": pool_id,
            "name": name,
            "health": health,
            "stale": stale,
            "limit": limit,
        }
        return self._list(path_of("nodes"), NodeView, query, cursor)

    async def get_node(self, node_id: str) -> NodeView:
        """Show a node and its host resources."""
        return await self._send("GET", path_of("nodes", node_id), NodeView)

    async def update_node(self, node_id: str, request: NodeUpdate | Document) -> NodeView:
        """Say where a node takes its MIG layout from."""
        return await self._send("PATCH", path_of("nodes", node_id), NodeView, body_of(request))

    async def get_spec(self, node_id: str) -> NodeSpec:
        """Show what a node is asked to be."""
        return await self._send("GET", path_of("nodes", node_id, "spec"), NodeSpec)

    async def report_node(self, node_id: str, report: NodeReport | Document) -> ReportAnswer:
        """Take in what a node says that it is."""
        path = path_of("nodes", node_id, "report")
        return await self._send("POST", path, ReportAnswer, body_of(report))

    async def enroll_node(self, request: EnrollRequest | Document) -> EnrollAnswer:
        """Join a pool as a machine. The request has to be signed: `apportion agent join` does."""
        return await self._send("POST", path_of("join"), EnrollAnswer, body_of(request))

    async def revoke_node(self, node_id: str) -> NodeView:
        """Refuse a node until it joins anew; what is booked on it stays."""
        return await self._send("POST", path_of("nodes", node_id, "revoke"), NodeView)

    async def create_join_token(
        self, pool_id: str, request: JoinTokenCreate | Document
    ) -> JoinTokenIssued:
        """Create a token that lets one machine join; its secret is in this answer alone."""
        path = path_of("pools", pool_id, "join-tokens")
        return await self._send("POST", path, JoinTokenIssued, keyed(request))

    def list_join_tokens(
        self,
        *,
        pool_id: str | None = None,
        state: Literal["open", "used", "revoked", "expired"] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[JoinTokenView]:
        """List the join tokens of the tenant's pools, without their secrets."""
        query = {"pool_id": pool_id, "state": state, "limit": limit}
        return self._list(path_of("join-tokens"), JoinTokenView, query, cursor)

    async def revoke_join_token(self, join_token_id: str) -> JoinTokenView:
        """Let a join token let nobody in any more."""
        return await self._send("DELETE", path_of("join-tokens", join_token_id), JoinTokenView)

    def list_layouts(
        self,
        pool_id: str,
        *,
        state: LayoutState | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[NodeLayoutView]:
        """List what a pool's nodes are cut into, and why, by node."""
        query = {"state": state, "limit": limit}
        return self._list(path_of("pools", pool_id, "layout"), NodeLayoutView, query, cursor)

    async def set_layout(self, pool_id: str, request: LayoutAsk | Document) -> LayoutChange:
        """Ask for another cut of a pool's GPUs."""
        path = path_of("pools", pool_id, "layout")
        return await self._send("PUT", path, LayoutChange, body_of(request))

    async def plan_layout(self, pool_id: str, request: LayoutAsk | Document) -> LayoutPlan:
        """Show what another cut of a pool's GPUs would mean."""
        path = path_of("pools", pool_id, "layout", "plan")
        return await self._send("POST", path, LayoutPlan, body_of(request))

    async def cancel_layout(self, pool_id: str) -> LayoutChange:
        """Drop what was not granted yet of a change of a pool's cut."""
        return await self._send("POST", path_of("pools", pool_id, "layout", "cancel"), LayoutChange)

    def list_gpus(
        self,
        *,
        pool_id: str | None = None,
        node: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[GpuView]:
        """List GPUs by UUID; ``node`` is a node's name."""
        query = {"pool_id": pool_id, "node": node, "limit": limit}
        return self._list(path_of("gpus"), GpuView, query, cursor)

    def list_atoms(
        self,
        *,
        pool_id: str | None = None,
        gpu_id: str | None = None,
        class_: AtomClass | None = None,
        bookable: bool | None = None,
        profile: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[AtomView]:
        """List what can be booked."""
        query: Query = {
            "pool_id": pool_id,
            "gpu_id": gpu_id,
            "class": class_,
            "bookable": bookable,
            "profile": profile,
            "limit": limit,
        }
        return self._list(path_of("atoms"), AtomView, query, cursor)
