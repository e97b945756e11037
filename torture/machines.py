"""A private database and several server processes on it, made to be killed and started again."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

from apportion.client import AsyncClient
from apportion.errors import UnavailableError
from apportion.store import embedded
from apportion.store.embedded import EmbeddedPostgres

CRASHES = ("killed", "immediate", "backend")
"""The ways in which a database ends; `Database.crash` says what they are."""

_MEMORY = Path("/dev/shm")  # noqa: S108 (mkdtemp makes a directory of our own in it)
_MEMORY_BYTES_FREE_MIN = 2 << 30
_START_SECONDS = 60.0
_ANSWER_SECONDS = 15


@contextmanager
def place() -> Generator[Path]:
    """Make a directory for the block, in memory where there is room."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_FREE_MIN
    parent = _MEMORY if roomy else Path(tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="apportion-torture-", dir=parent))
    directory.chmod(0o711)  # started by root, the database runs under another account
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Database:
    """A PostgreSQL that keeps what it has committed, at one address whenever it runs.

    Its socket's directory is another after each start; a link to it has the name that is told.
    """

    def __init__(self, directory: Path) -> None:
        """Start it."""
        self._directory = directory
        self._link = directory / "socket-now"
        self._server = self._start()
        self.dsn = f"postgresql://apportion@/postgres?host={quote(str(self._link), safe='')}"
        self.up = asyncio.Event()
        self.up.set()

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    async def crash(self, kind: str) -> None:
        """End it as ``kind`` says, at once, and start it again where it does not by itself.

        ``killed``: SIGKILL to its first process. ``immediate``: its own quick exit, without a
        checkpoint. ``backend``: SIGKILL to one that serves, after which it recovers by itself.
        """
        self.up.clear()
        if kind == "backend":
            with suppress(psycopg.Error):
                os.kill(await self._any_backend(), signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                number = signal.SIGKILL if kind == "killed" else signal.SIGQUIT
                os.kill(self._server.pid, number)
            await asyncio.to_thread(self._restart)
        await self._answers()
        self.up.set()

    async def _any_backend(self) -> int:
        async with await psycopg.AsyncConnection.connect(
            self.dsn, autocommit=True, application_name="torture"
        ) as connection:
            cursor = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                " ORDER BY application_name = 'apportion' DESC, state = 'active' DESC LIMIT 1"
            )
            row = await cursor.fetchone()
        return 0 if row is None else int(row[0])

    async def _answers(self) -> None:
        ends = monotonic() + _START_SECONDS
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
                    await connection.execute("SELECT 1")
            except psycopg.Error:
                if monotonic() > ends:
                    raise
                await asyncio.sleep(0.02)
            else:
                return

    def _restart(self) -> None:
        self._server.stop()
        ends = monotonic() + _START_SECONDS
        while True:
            # Processes of the killed one may not have noticed yet, and keep its memory.
            try:
                self._server = self._start()
            except UnavailableError:
                if monotonic() > ends:
                    raise
            else:
                return

    def _start(self) -> EmbeddedPostgres:
        server = embedded.start(self._directory / "postgres", seconds=_START_SECONDS)
        [socket] = parse_qs(urlsplit(server.dsn).query)["host"]
        fresh = self._link.with_name("socket-next")
        fresh.symlink_to(socket)
        fresh.replace(self._link)
        return server


@dataclass(slots=True, eq=False)
class Server:
    """One process of ``apportion up``, and clients of it."""

    process: Process
    url: str
    token: str
    killed_at: float | None = None
    _clients: dict[str, AsyncClient] = field(default_factory=dict[str, AsyncClient])

    def client(self, tenant: str = "root") -> AsyncClient:
        """Return a client that acts for a tenant."""
        if tenant not in self._clients:
            self._clients[tenant] = AsyncClient(
                self.url, self.token, tenant=tenant, timeout_seconds=_ANSWER_SECONDS
            )
        return self._clients[tenant]

    def kill(self) -> None:
        """End it as nothing else does: at once."""
        self.killed_at = monotonic()
        with suppress(ProcessLookupError):
            self.process.kill()

    async def aclose(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            await client.aclose()


@dataclass(slots=True)
class Servers:
    """So many processes; one that was killed is replaced by another, which starts from nothing."""

    directory: Path
    dsn: str
    live: list[Server] = field(default_factory=list[Server])
    written: list[str] = field(default_factory=list[str])
    """What they wrote, as far as they have ended, of errors that nobody caught."""
    some: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while at least one of them lives."""
    _token: str = ""
    _all: list[Server] = field(default_factory=list[Server])
    _processes: list[Process] = field(default_factory=list[Process])

    def make_key(self) -> None:
        """Make the key that all of them have."""
        (self.directory / "server.key").write_text(secrets.token_hex(32))

    async def start_one(self) -> None:
        """Start one more, again where the database is away at that moment."""
        ends = monotonic() + _START_SECONDS
        while (server := await self._try()) is None:
            if monotonic() > ends:
                raise UnavailableError("no server starts")
        self.live.append(server)
        self.some.set()
        self._all.append(server)

    async def _try(self) -> Server | None:
        state = self.directory / f"server-{len(self._processes)}"
        process = await self._spawn(state)
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async for line in process.stdout:
            if found := re.search(rb"answers at (http://\S+)", line):
                # One token for all: a key is its caller's, and each server makes one of its own.
                self._token = self._token or (state / "root.token").read_text().strip()
                return Server(process, found[1].decode(), self._token)
        await process.wait()
        return None

    async def _spawn(self, state: Path) -> Process:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
        with state.with_suffix(".log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "apportion", "up", "--no-demo", "--port", "0"),
                *("--state", str(state)),
                stdout=PIPE,
                stderr=log,
                env={
                    **clean,
                    "APPORTION_DATABASE_URL": self.dsn,
                    "APPORTION_KEY_FILE": str(self.directory / "server.key"),
                    "APPORTION_LOG_LEVEL": "error",
                },
            )
        self._processes.append(process)
        return process

    def kill(self, server: Server) -> None:
        """Kill one of those that live."""
        self.live.remove(server)
        if not self.live:
            self.some.clear()
        server.kill()

    async def stop(self) -> None:
        """End all of them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for server in self._all:
            await server.aclose()
        for log in sorted(self.directory.glob("server-*.log")):
            text = log.read_text(errors="replace")
            if "Traceback" in text:
                self.written.append(text[text.index("Traceback") :][:2000])


@asynccontextmanager
async def machines(many: int) -> AsyncGenerator[tuple[Database, Servers]]:
    """Give a database and so many servers on it, all gone at the end of the block."""
    with place() as directory:
        database = await asyncio.to_thread(Database, directory)
        servers = Servers(directory, database.dsn)
        servers.make_key()
        try:
            await asyncio.gather(*(servers.start_one() for _ in range(many)))
            yield database, servers
        finally:
            await servers.stop()
            await asyncio.to_thread(database.stop)
