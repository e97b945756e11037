"""The way from a thread of the synchronous client into the loop of the application."""

import httpx2
from anyio.from_thread import run as in_loop

BASE = "http://test"


class InLoop(httpx2.BaseTransport):
    """Carries the synchronous client's requests from its thread into the application's loop."""

    def __init__(self, app):
        self._asgi = httpx2.ASGITransport(app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return in_loop(self._answer, request)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        asked = httpx2.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        answer = await self._asgi.handle_async_request(asked)
        content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)
