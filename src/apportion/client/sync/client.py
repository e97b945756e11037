# Made from client/aio/client.py by tools/unasync.py: change that one.
"""The client: one method an operation, named as the OpenAPI document names it."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import httpx2

from apportion.client.environment import server_tenant, server_token, server_url
from apportion.client.sync.connection import Connection
from apportion.client.sync.events import Events
from apportion.client.sync.nodes import Nodes
from apportion.client.sync.pools import Pools
from apportion.client.sync.reservations import Reservations
from apportion.client.sync.tenants import Tenants

TIMEOUT_SECONDS: Final = 30


class Client(Tenants, Pools, Nodes, Reservations, Events):
    """A server of Apportion, as the holder of a token sees it.

    With ``tenant`` it acts for that tenant, which is the token's own or one below it.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        tenant: str | None = None,
        timeout_seconds: int = TIMEOUT_SECONDS,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Connect when first asked; what cannot be a URL, token or tenant is refused at once."""
        self._connection = Connection(
            url, token, tenant=tenant, timeout_seconds=timeout_seconds, transport=transport
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read APPORTION_URL, APPORTION_TENANT, and APPORTION_TOKEN or APPORTION_TOKEN_FILE."""
        return cls(
            server_url(environment),
            server_token(environment),
            tenant=server_tenant(environment),
        )

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
        answer = self._connection.ask("GET", "/healthz")
        return str(answer["status"])

    def get_readiness(self) -> str:
        """Return ``ready`` when the server and its database do; else raises UnavailableError."""
        answer = self._connection.ask("GET", "/readyz")
        return str(answer["status"])
