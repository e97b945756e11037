"""The client: one method an operation, named as the OpenAPI document names it."""

import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from apportion.client.connection import Connection, Query, error_of_problem
from apportion.client.environment import server_token, server_url
from apportion.client.page import Page
from apportion.errors import ApportionError
from apportion.events.schemas import EventView
from apportion.metering.schemas import UsageView
from apportion.nodes.schemas import AtomClass, AtomView, GpuView, Inventory, NodeView
from apportion.pools.schemas import PoolCreate, PoolView, QuotaSet, QuotaView, Sharing, SiteView
from apportion.quantities.windows import format_instant
from apportion.reservations.schemas import ReservationCreate, ReservationView, State

TIMEOUT_SECONDS: Final = 30

V = TypeVar("V", bound=BaseModel)
Document = Mapping[str, Any]
"""A body as JSON has it: the server checks it, and says what is wrong with it."""


class Client:
    """A server of Apportion, as the holder of a token sees it. Not for several threads at once."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: int = TIMEOUT_SECONDS,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Connect when first asked; a URL or token that cannot be one is refused at once."""
        self._connection = Connection(
            url, token, timeout_seconds=timeout_seconds, transport=transport
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read APPORTION_URL, and APPORTION_TOKEN or APPORTION_TOKEN_FILE."""
        return cls(server_url(environment), server_token(environment))

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def get_health(self) -> str:
        """Return ``ok`` when the process answers."""
        return str(self._connection.ask("GET", "/healthz")["status"])

    def get_readiness(self) -> str:
        """Return ``ready`` when the server and its database do; else raises UnavailableError."""
        return str(self._connection.ask("GET", "/readyz")["status"])

    def list_sites(self, *, limit: int = 100, cursor: str | None = None) -> Page[SiteView]:
        """List sites by id."""
        return self._list("/v1/sites", SiteView, {"limit": limit}, cursor)

    def create_pool(self, request: PoolCreate | Document) -> PoolView:
        """Create a pool."""
        return self._send("POST", "/v1/pools", PoolView, _keyed(request))

    def list_pools(
        self,
        *,
        name: str | None = None,
        gpu_model: str | None = None,
        sharing: Sharing | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[PoolView]:
        """List pools by id."""
        query = {"name": name, "gpu_model": gpu_model, "sharing": sharing, "limit": limit}
        return self._list("/v1/pools", PoolView, query, cursor)

    def get_pool(self, pool_id: str) -> PoolView:
        """Show a pool and its quotas."""
        return self._send("GET", f"/v1/pools/{_part(pool_id)}", PoolView)

    def join_node(self, pool_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a node's inventory; a new node joins the pool."""
        path = f"/v1/pools/{_part(pool_id)}/nodes"
        return self._send("POST", path, NodeView, _body(inventory))

    def report_inventory(self, node_id: str, inventory: Inventory | Document) -> NodeView:
        """Take in a report about a node of a pool."""
        path = f"/v1/nodes/{_part(node_id)}/inventory"
        return self._send("PUT", path, NodeView, _body(inventory))

    def list_nodes(
        self,
        *,
        pool_id: str | None = None,
        name: str | None = None,
        health: Literal["healthy", "degraded", "no_capacity"] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[NodeView]:
        """List nodes by id."""
        query = {"pool_id": pool_id, "name": name, "health": health, "limit": limit}
        return self._list("/v1/nodes", NodeView, query, cursor)

    def get_node(self, node_id: str) -> NodeView:
        """Show a node and its host resources."""
        return self._send("GET", f"/v1/nodes/{_part(node_id)}", NodeView)

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
        return self._list("/v1/gpus", GpuView, query, cursor)

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
        return self._list("/v1/atoms", AtomView, query, cursor)

    def list_quotas(
        self, *, pool_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[QuotaView]:
        """List quotas by pool and resource."""
        query = {"pool_id": pool_id, "limit": limit}
        return self._list("/v1/quotas", QuotaView, query, cursor)

    def set_quota(self, request: QuotaSet | Document) -> QuotaView:
        """Set a limit; one below what is used stops new work."""
        return self._send("PUT", "/v1/quotas", QuotaView, _body(request))

    def create_reservation(self, request: ReservationCreate | Document) -> ReservationView:
        """Reserve; what has no room waits."""
        return self._send("POST", "/v1/reservations", ReservationView, _keyed(request))

    def create_reservations(
        self, requests: Sequence[ReservationCreate | Document]
    ) -> list[ReservationView | ApportionError]:
        """Reserve up to 500 at once; each stands alone, with its own answer or error."""
        body = {"reservations": [_keyed(each) for each in requests]}
        answer = self._connection.ask("POST", "/v1/reservations/batch", body=body)
        return [
            error_of_problem(item["error"])
            if "error" in item
            else ReservationView.model_validate(item["reservation"])
            for item in answer["items"]
        ]

    def list_reservations(
        self,
        *,
        pool_id: str | None = None,
        states: Sequence[State] | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ReservationView]:
        """List reservations, newest first."""
        query: Query = {
            "pool_id": pool_id,
            "state": None if states is None else list(states),
            "name": name,
            "limit": limit,
        }
        return self._list("/v1/reservations", ReservationView, query, cursor)

    def get_reservation(self, reservation_id: str) -> ReservationView:
        """Show a reservation and what it has."""
        return self._send("GET", f"/v1/reservations/{_part(reservation_id)}", ReservationView)

    def release_reservation(self, reservation_id: str) -> ReservationView:
        """End a reservation now, or cancel it."""
        path = f"/v1/reservations/{_part(reservation_id)}/release"
        return self._send("POST", path, ReservationView)

    def get_usage(self, start: datetime | str, end: datetime | str | None = None) -> UsageView:
        """Return exact GPU hours within [start, end); till now without an end."""
        query = {"start": _instant(start), "end": None if end is None else _instant(end)}
        return UsageView.model_validate(self._connection.ask("GET", "/v1/usage", query=query))

    def list_events(
        self,
        *,
        subject: str | None = None,
        type_prefix: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[EventView]:
        """List what happened, in order; the last page has a next_cursor too, for what comes."""
        query = {"subject": subject, "type": type_prefix, "limit": limit}
        return self._list("/v1/events", EventView, query, cursor)

    def _send(self, method: str, path: str, view: type[V], body: object = None) -> V:
        return view.model_validate(self._connection.ask(method, path, body=body))

    def _list(self, path: str, view: type[V], query: Query, cursor: str | None) -> Page[V]:
        answer = self._connection.ask("GET", path, query={**query, "cursor": cursor})
        items = [view.model_validate(each) for each in answer["items"]]
        return Page(items, answer["next_cursor"], partial(self._list, path, view, query))


def _keyed(request: BaseModel | Document) -> dict[str, Any]:
    """Return a body with an idempotency key, so that it may be sent again."""
    body = _body(request)
    if body.get("idempotency_key") is None:
        body["idempotency_key"] = secrets.token_urlsafe(18)
    return body


def _body(request: BaseModel | Document) -> dict[str, Any]:
    if isinstance(request, BaseModel):
        return request.model_dump(mode="json", by_alias=True)
    return dict(request)


def _part(text: str) -> str:
    """Write an id as one part of a path, whatever is in it."""
    return quote(text, safe="")


def _instant(instant: datetime | str) -> str:
    return instant if isinstance(instant, str) else format_instant(instant)
