# Made from client/aio/nodes.py by tools/unasync.py: change that one.
"""Nodes, GPUs and what can be booked of them."""

from typing import Literal

from apportion.client.requests import Document, Query, body_of, keyed, path_of
from apportion.client.sync.asking import Asking
from apportion.client.sync.page import Page
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


class Nodes(Asking):
    """What the API offers about machines."""

    def join_node(self, pool_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a node's inventory; a new node joins the pool."""
        path = path_of("pools", pool_id, "nodes")
        return self._send("POST", path, NodeView, body_of(inventory))

    def report_inventory(self, node_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a report about a node of a pool."""
        path = path_of("nodes", node_id, "inventory")
        return self._send("PUT", path, NodeView, body_of(inventory))

    def list_nodes(
        self,
        *,
        pool_id: str | None = None,
        name: str | None = None,
        health: Literal["healthy", "degraded", "no_capacity"] | None = None,
        stale: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[NodeView]:
        """List nodes by id; ``stale`` ones are those that nobody hears of."""
        query: Query = {
            "pool_id": pool_id,
            "name": name,
            "health": health,
            "stale": stale,
            "limit": limit,
        }
        return self._list(path_of("nodes"), NodeView, query, cursor)

    def get_node(self, node_id: str) -> NodeView:
        """Show a node and its host resources."""
        return self._send("GET", path_of("nodes", node_id), NodeView)

    def update_node(self, node_id: str, request: NodeUpdate | Document) -> NodeView:
        """Say where a node takes its MIG layout from."""
        return self._send("PATCH", path_of("nodes", node_id), NodeView, body_of(request))

    def get_spec(self, node_id: str) -> NodeSpec:
        """Show what a node is asked to be."""
        return self._send("GET", path_of("nodes", node_id, "spec"), NodeSpec)

    def report_node(self, node_id: str, report: NodeReport | Document) -> ReportAnswer:
        """Take in what a node says that it is."""
        path = path_of("nodes", node_id, "report")
        return self._send("POST", path, ReportAnswer, body_of(report))

    def enroll_node(self, request: EnrollRequest | Document) -> EnrollAnswer:
        """Join a pool as a machine. The request has to be signed: `apportion agent join` does."""
        return self._send("POST", path_of("join"), EnrollAnswer, body_of(request))

    def revoke_node(self, node_id: str) -> NodeView:
        """Refuse a node until it joins anew; what is booked on it stays."""
        return self._send("POST", path_of("nodes", node_id, "revoke"), NodeView)

    def create_join_token(
        self, pool_id: str, request: JoinTokenCreate | Document
    ) -> JoinTokenIssued:
        """Create a token that lets one machine join; its secret is in this answer alone."""
        path = path_of("pools", pool_id, "join-tokens")
        return self._send("POST", path, JoinTokenIssued, keyed(request))

    def list_join_tokens(
        self,
        *,
        pool_id: str | None = None,
        state: Literal["open", "used", "revoked", "expired"] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[JoinTokenView]:
        """List the join tokens of the tenant's pools, without their secrets."""
        query = {"pool_id": pool_id, "state": state, "limit": limit}
        return self._list(path_of("join-tokens"), JoinTokenView, query, cursor)

    def revoke_join_token(self, join_token_id: str) -> JoinTokenView:
        """Let a join token let nobody in any more."""
        return self._send("DELETE", path_of("join-tokens", join_token_id), JoinTokenView)

    def list_layouts(
        self,
        pool_id: str,
        *,
        state: LayoutState | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[NodeLayoutView]:
        """List what a pool's nodes are cut into, and why, by node."""
        query = {"state": state, "limit": limit}
        return self._list(path_of("pools", pool_id, "layout"), NodeLayoutView, query, cursor)

    def set_layout(self, pool_id: str, request: LayoutAsk | Document) -> LayoutChange:
        """Ask for another cut of a pool's GPUs."""
        path = path_of("pools", pool_id, "layout")
        return self._send("PUT", path, LayoutChange, body_of(request))

    def plan_layout(self, pool_id: str, request: LayoutAsk | Document) -> LayoutPlan:
        """Show what another cut of a pool's GPUs would mean."""
        path = path_of("pools", pool_id, "layout", "plan")
        return self._send("POST", path, LayoutPlan, body_of(request))

    def cancel_layout(self, pool_id: str) -> LayoutChange:
        """Drop what was not granted yet of a change of a pool's cut."""
        return self._send("POST", path_of("pools", pool_id, "layout", "cancel"), LayoutChange)

    def list_gpus(
        self,
        *,
        pool_id: str | None = None,
        node: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[GpuView]:
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
    ) -> Page[AtomView]:
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
