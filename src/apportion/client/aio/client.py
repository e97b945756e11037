"""The client: one method an operation, named as the OpenAPI document names it."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import httpx2

from apportion.client.aio.connection import AsyncConnection
from apportion.client.aio.events import AsyncEvents
from apportion.client.aio.nodes import AsyncNodes
from apportion.client.aio.pools import AsyncPools
from apportion.client.aio.reservations import AsyncReservations
from apportion.client.aio.tenants import AsyncTenants
from apportion.client.environment import server_tenant, server_token, server_url

TIMEOUT_SECONDS: Final = 30


class AsyncClient(AsyncTenants, AsyncPools, AsyncNodes, AsyncReservations, AsyncEvents):
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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect when first asked; what cannot be a URL, token or tenant is refused at once."""
        self._connection = AsyncConnection(
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

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def get_health(self) -> str:
        """Return ``ok`` when the process answers."""
        answer = await self._connection.ask("GET", "/healthz")
        return str(answer["status"])

    async def get_readiness(self) -> str:
        """Return ``ready`` when the server and its database do; else raises UnavailableError."""
        answer = await self._connection.ask("GET", "/readyz")
        return str(answer["status"])
