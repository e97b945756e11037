"""A real server on a real socket, in a thread with a loop of its own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import uvicorn

from apportion.authority.service import ROOT, issue_token
from apportion.nodes.service import Watch
from apportion.reservations.service import Reservations
from apportion.server.app import create_app
from apportion.server.launch import _listen
from apportion.store.connections import open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY


@dataclass(frozen=True)
class Served:
    url: str
    token: str
    tick: Callable[[], object]
    """Do what the clock has a server do: begin and end what is due, and miss who is silent."""


@contextmanager
def served(dsn: str, now: Callable[[], datetime] | None = None):
    """Serve the API on a free port of this machine for the block, by a clock of the caller's."""
    thread = _Serving(dsn, now)
    thread.start()
    try:
        yield thread.wait()
    finally:
        thread.stop()


class _Serving(threading.Thread):
    def __init__(self, dsn: str, now: Callable[[], datetime] | None) -> None:
        super().__init__()
        self._dsn = dsn
        self._clock = {} if now is None else {"now": now}
        self._answer: Future[tuple[Served, Callable[[], object]]] = Future()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._answer.done():
                raise
            self._answer.set_exception(error)

    def wait(self) -> Served:
        return self._answer.result(timeout=30)[0]

    def stop(self) -> None:
        if self._answer.exception() is None:
            self._answer.result()[1]()
        self.join()

    async def _serve(self) -> None:
        async with open_pool(self._dsn) as db:
            runtime = Runtime(db, key=KEY, **self._clock)
            async with transaction(db) as connection:
                token = (await issue_token(runtime, connection, tenant_id=ROOT, name="test")).token
            reservations, watch = Reservations(runtime), Watch(runtime)
            app = create_app(runtime, reservations, ready=lambda: True)
            with _listen("127.0.0.1", 0) as listener:
                server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                loop = asyncio.get_running_loop()

                async def advance() -> None:
                    await watch.advance()
                    await reservations.lifecycle.advance()

                def tick() -> None:
                    asyncio.run_coroutine_threadsafe(advance(), loop).result(timeout=60)

                def stop() -> None:
                    app.state.feed.stop()  # streams of events never end by themselves
                    server.should_exit = True

                # The socket listens already: whoever connects now waits until it is served.
                self._answer.set_result(
                    (Served(url, token, tick), lambda: loop.call_soon_threadsafe(stop))
                )
                await server._serve([listener])
