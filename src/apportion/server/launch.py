"""`apportion up`: one process that serves the API, with its database as its child.

Signals end it cleanly: no new requests, open ones finish, then the clock's work, then the database.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import uvicorn

from apportion.errors import InvalidInputError, UnavailableError
from apportion.server.app import create_app
from apportion.server.system import System, running
from apportion.webhooks.service import Network

_KEEP_ALIVE_SECONDS: Final = 30

Started = Callable[[System, str], Coroutine[Any, Any, None]]
"""Called when the server answers, with the system and its URL."""


async def up(
    state: Path,
    *,
    host: str,
    port: int,
    database_url: str | None,
    key_file: Path | None,
    pool_size: int,
    webhook_networks: Sequence[Network],
    clock_skew: timedelta,
    started: Started,
    once: bool,
) -> None:
    """Serve until a signal comes, or with ``once`` until ``started`` is done.

    Raises UnavailableError when the port is taken or the database cannot be had.
    """
    listener = _listen(host, port)
    stop = asyncio.Event()
    _spare_the_collector()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with (
            running(
                state,
                database_url=database_url,
                key_file=key_file,
                pool_size=pool_size,
                webhook_networks=webhook_networks,
            ) as system,
            _serving(system, listener, stop, clock_skew),
        ):
            url = _url(*listener.getsockname()[:2])
            work = asyncio.create_task(started(system, url))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                if not once:
                    await stopping
            else:
                work.cancel()
            stopping.cancel()
            await asyncio.gather(work, stopping, return_exceptions=True)
    finally:
        listener.close()


@asynccontextmanager
async def _serving(
    system: System, listener: socket.socket, stop: asyncio.Event, clock_skew: timedelta
) -> AsyncGenerator[None]:
    app = create_app(
        system.runtime,
        system.reservations,
        ready=lambda: not stop.is_set(),
        webhook_networks=system.webhook_networks,
        clock_skew=clock_skew,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        # Agents come every ten seconds: by itself each would have to connect anew.
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        app.state.feed.stop()  # streams of events never end by themselves
        server.should_exit = True
        await serving


def _spare_the_collector() -> None:
    """Look for garbage in cycles less often, and never among what was there at the start.

    What a request leaves behind is freed by its count: requests make no cycles. What they have
    under way would be searched in vain every time: thousands of asks, for a second each, which is a
    tenth of the time of a busy server. So it is looked at only when there is much more of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000, 5, 5)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: `up` decides what ends when."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the process's signals alone."""
        yield


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)
    except socket.gaierror as error:
        raise InvalidInputError(
            "is no address of this machine", field="host", given=host
        ) from error
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen there: {os.strerror(error.errno or 0)}",
            field="port",
            given=port,
            hint="Another server may be running; choose another --port",
        ) from error
    # What is accepted takes it over. asyncio sets it only where the protocol is named; without it
    # the second packet of an answer waits 40 ms for the caller's receipt of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
