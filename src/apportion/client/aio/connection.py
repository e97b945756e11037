"""Requests to a server: retries, problems as the errors that they were, and streams."""

# sync: from collections.abc import Callable, Generator
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2

from apportion.client.answers import (
    error_of,
    error_of_failure,
    json_of,
    mark_uncertain,
    no_stream,
)
from apportion.client.requests import Query, checked_url, headers_of, parameters_of
from apportion.client.retries import ATTEMPTS, Pauses
from apportion.errors import ConflictError, InvalidStateError, NotFoundError, UnavailableError

STREAM_SILENCE_SECONDS: Final = 60
"""How long a stream may be silent (the server says that it lives every 15) before it is broken."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

Repeat = Literal["always", "unsent"]
"""When to send again: whenever no answer came, or only where nothing can have been done."""


async def _sleep(seconds: float) -> None:
    # Not at the top: nearly no request pauses, and a command that waits for nothing pays nothing.
    import asyncio

    await asyncio.sleep(seconds)


class AsyncConnection:
    """A server at a URL, and how to ask it.

    Nearly every operation may be repeated (those that create carry an idempotency key), so what a
    broken connection or an unavailable server swallowed is asked again, three times in all.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        tenant: str | None = None,
        timeout_seconds: int,
        transport: httpx2.AsyncBaseTransport | None,
        # sync: sleep: Callable[[float], object] = _sleep,
        sleep: Callable[[float], Awaitable[object]] = _sleep,
        pauses: Pauses = Pauses(),  # noqa: B008 - it never changes
    ) -> None:
        self.url = checked_url(url)
        self.pauses = pauses
        self.sleep = sleep
        self._stream_timeout = httpx2.Timeout(timeout_seconds, read=STREAM_SILENCE_SECONDS)
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers=headers_of(token, tenant),
            timeout=timeout_seconds,
            transport=transport,
            # A proxy of the environment cannot reach this machine's own loopback.
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        repeat: Repeat = "always",
    ) -> Any:
        """Return the JSON answer; raises the error that the server told of.

        Where a try that got no answer may have been carried out and so be the reason, its details
        say so with ``uncertain``.
        """
        sent = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, path, query or {}, body)
            except (ConflictError, InvalidStateError, NotFoundError) as error:
                if sent and method != "GET":
                    mark_uncertain(error)
                raise
            except UnavailableError as error:
                sent = sent or error.details.get("sent") is not False
                again = error.details.get("again") is not False
                if attempt == ATTEMPTS or not again or (sent and repeat == "unsent"):
                    if sent and method != "GET":
                        mark_uncertain(error)
                    raise
                asked = error.details.get("retry_after_seconds")
                await self.sleep(self.pauses.after(attempt, asked))
        raise AssertionError("the last attempt returns or raises")

    async def listen(
        self, path: str, query: Query, last_event_id: str | None
    ) -> AsyncGenerator[httpx2.ServerSentEvent]:
        """Give what a stream tells until it ends; UnavailableError where it breaks."""
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        try:
            async with self._http.sse(
                path,
                params=parameters_of(query),
                headers=headers,
                timeout=self._stream_timeout,
            ) as source:
                if not source.response.is_success:
                    await source.response.aread()
                if error := no_stream(source.response):
                    raise error
                async for told in source:
                    yield told
        except httpx2.TransportError as failure:
            raise error_of_failure(self.url, failure) from failure

    async def _once(self, method: str, path: str, query: Query, body: object) -> Any:
        try:
            response = await self._http.request(
                method, path, params=parameters_of(query), json=body
            )
        except httpx2.TransportError as failure:
            raise error_of_failure(self.url, failure) from failure
        if not response.is_success:
            raise error_of(response)
        return json_of(response)
