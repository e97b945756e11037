"""A real PostgreSQL for tests: one server, one migrated template, a fresh copy for each test.

A copy of a database takes some 20 ms, so no test needs to share one, and none needs a pretended
store. The server forgets everything at a crash (nothing is synced to disk): for tests only.
"""

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path

from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from apportion.store import embedded
from apportion.store.migrations import load_migrations, migrate

_BIN_VARIABLE = "APPORTION_TEST_PG_BIN"

_copies = count(1)


@contextmanager
def running(directory: Path) -> Generator[str]:
    """Run a server below ``directory`` for the block, and give its dsn.

    The variable APPORTION_TEST_PG_BIN names other programs than the packaged ones, such as
    /usr/lib/postgresql/15/bin.
    """
    other = os.environ.get(_BIN_VARIABLE)
    bin_dir = Path(other) if other else None
    with embedded.start(directory, bin_dir=bin_dir, durable=False) as server:
        yield server.dsn


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A migrated database that is only ever copied."""

    server: str
    name: str

    @asynccontextmanager
    async def clone(self) -> AsyncGenerator[str]:
        """Give the dsn of a fresh copy, dropped at the end of the block, whoever is connected."""
        name = f"{self.name}_{os.getpid()}_{next(_copies)}"
        # FILE_COPY takes a third of the default's time here, because nothing is synced.
        await _administer(
            self.server,
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(self.name)
            ),
        )
        try:
            yield make_conninfo(self.server, dbname=name)
        finally:
            await _administer(
                self.server,
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)),
            )


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
