"""A real PostgreSQL for tests: one server, one migrated template, a fresh copy for each test.

A copy of a database takes some 5 ms in memory and 20 to 60 on a disk, so no test needs to share
one, and none needs a pretended store. The server forgets everything at a crash: for tests only.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path

from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from apportion.store import embedded
from apportion.store.migrations import load_migrations, migrate

_BIN_VARIABLE = "APPORTION_TEST_PG_BIN"
_MEMORY = Path("/dev/shm")  # noqa: S108 (mkdtemp makes a directory of our own in it)
_MEMORY_BYTES_FREE_MIN = 2 << 30  # containers often give it 64 MiB
_PREFIX = "apportion-test-"

_copies = count(1)


@contextmanager
def running() -> Generator[str]:
    """Run a server for the block, and give its dsn; its files go with it.

    They are in memory where there is room. The variable APPORTION_TEST_PG_BIN names other programs
    than the packaged ones, such as /usr/lib/postgresql/15/bin.
    """
    other = os.environ.get(_BIN_VARIABLE)
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_FREE_MIN
    place = _MEMORY if roomy else Path(tempfile.gettempdir())
    _sweep(place)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    directory.chmod(0o711)  # started by root, the server runs under another account
    try:
        with embedded.start(directory, bin_dir=Path(other) if other else None, durable=False) as it:
            yield it.dsn
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what test runs left that were killed: they would fill the memory one by one."""
    for directory in place.glob(f"{_PREFIX}*"):
        with suppress(OSError), (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a run that lives holds it
            if (directory / "data").exists():
                shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A migrated database that is only ever copied."""

    server: str
    name: str

    @asynccontextmanager
    async def clone(self) -> AsyncGenerator[str]:
        """Give the dsn of a fresh copy, dropped at the end of the block, whoever is connected."""
        name = await self._copy()
        try:
            yield make_conninfo(self.server, dbname=name)
        finally:
            await _administer(
                self.server,
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)),
            )

    async def filled(self, fill: Callable[[str], Awaitable[None]]) -> "Template":
        """Return a template with more in it, for tests that all begin with the same rows.

        ``fill`` is given the dsn of a copy, and leaves no connection to it open.
        """
        name = await self._copy()
        await fill(make_conninfo(self.server, dbname=name))
        return Template(server=self.server, name=name)

    async def _copy(self) -> str:
        name = f"{self.name}_{os.getpid()}_{next(_copies)}"
        # FILE_COPY takes half of the default's time, because nothing is synced.
        await _administer(
            self.server,
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(self.name)
            ),
        )
        return name


async def make_template(server: str) -> Template:
    """Migrate a new database of the server, named after the migrations that it has."""
    digest = sha256("".join(step.checksum for step in load_migrations()).encode()).hexdigest()
    template = Template(server=server, name=f"apportion_{digest[:12]}")
    await _administer(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(template.name)))
    await migrate(make_conninfo(server, dbname=template.name))
    return template


async def _administer(server: str, statement: sql.Composed) -> None:
    async with await AsyncConnection.connect(server, autocommit=True) as connection:
        await connection.execute(statement)
