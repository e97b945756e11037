"""Bring a database to the schema of this version: numbered files, each applied once, in order.

``schema.sql`` is the schema as it is, ``migrations/0001_name.sql`` and so on are how a database
gets there; a test proves the two equal. Any number of servers may start at once: one migrates, the
others wait and find the work done. Each file is one transaction: a failure leaves whole versions.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from psycopg import AsyncConnection, Error, errors

from apportion.errors import InvalidStateError, UnavailableError
from apportion.store.connections import configured
from apportion.store.errors import translate

SERVER_VERSION_MIN: Final = 15

_FILE: Final = re.compile(r"(\d{4})_([a-z][a-z0-9_]*)\.sql")
_LOCK_KEY: Final = 0x4150504F5254  # "APPORT": one number that nothing else in the database locks
_WAIT_SECONDS: Final = 120  # for another server that migrates
_TABLE_LOCK_SECONDS: Final = 10  # for readers of a table that a migration changes

_NOT_POSSIBLE: Final = (
    errors.InsufficientPrivilege,
    errors.FeatureNotSupported,
    errors.UndefinedFile,  # the extension's control file
)

_BOOK: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer CONSTRAINT schema_migrations_pkey PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: its number from 1 on, its name, its SQL."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the SQL, in hexadecimal digits."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


def load_migrations() -> list[Migration]:
    """Read this version's files. A name that does not fit, a gap or a double is a ValueError."""
    found = [
        _read(entry.name, entry.read_text("utf-8"))
        for entry in files(__package__ or "").joinpath("migrations").iterdir()
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must count 1, 2, 3, …: {', '.join(map(str, found))}")
    return found


def _read(file_name: str, sql: str) -> Migration:
    match = _FILE.fullmatch(file_name)
    if match is None:
        raise ValueError(f"{file_name} is no name of a migration (want 0001_name.sql)")
    return Migration(number=int(match[1]), name=match[2], sql=sql)


async def migrate(dsn: str, migrations: Sequence[Migration] | None = None) -> Sequence[Migration]:
    """Apply what the database lacks, and return it (nothing when another process was first).

    Raises UnavailableError when the server is too old, cannot be reached, is locked by another
    migration for two minutes or lacks btree_gist; InvalidStateError when the database is newer than
    this version or a migration that it has was changed since.
    """
    wanted = load_migrations() if migrations is None else migrations
    try:
        async with await AsyncConnection.connect(configured(dsn), autocommit=True) as connection:
            _check_server(connection.info.server_version)
            await _lock(connection)  # let go of at the end of the connection
            missing = await _missing(connection, wanted)
            for migration in missing:
                await _apply(connection, migration)
    except _NOT_POSSIBLE as error:
        raise UnavailableError(
            f"the database cannot be migrated: {error.diag.message_primary or error}",
            hint="The role needs CREATE on the database and on the schema public, and the server "
            "the extension btree_gist (an administrator can run CREATE EXTENSION btree_gist).",
        ) from error
    except Error as error:
        raise translate(error) from error
    return missing


def _check_server(version: int) -> None:
    major, minor = divmod(version, 10000)
    if major < SERVER_VERSION_MIN:
        raise UnavailableError(
            f"PostgreSQL {major}.{minor} is too old",
            allowed=f"PostgreSQL {SERVER_VERSION_MIN} or newer",
        )


async def _lock(connection: AsyncConnection[Any]) -> None:
    await connection.execute("SET statement_timeout = 0")
    await _set_lock_timeout(connection, _WAIT_SECONDS)
    try:
        await connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK_KEY])
    except errors.LockNotAvailable:
        raise UnavailableError(
            f"another process has been migrating the database for {_WAIT_SECONDS} s"
        ) from None
    await _set_lock_timeout(connection, _TABLE_LOCK_SECONDS)


async def _set_lock_timeout(connection: AsyncConnection[Any], seconds: int) -> None:
    await connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds}s"])


async def _missing(
    connection: AsyncConnection[Any], wanted: Sequence[Migration]
) -> Sequence[Migration]:
    """Compare what the database has with what we know, and refuse any difference but a lack."""
    await connection.execute(_BOOK)
    cursor = await connection.execute(
        "SELECT number, name, checksum FROM schema_migrations ORDER BY number"
    )
    applied = await cursor.fetchall()
    if len(applied) > len(wanted):
        number, name, _ = applied[-1]
        raise InvalidStateError(
            f"the database is newer than this Apportion: it has {number:04}_{name}, this one knows "
            f"up to {wanted[-1] if wanted else 'nothing'}",
            hint="Install the version that migrated it, or a newer one.",
        )
    for migration, row in zip(wanted, applied, strict=False):
        if (migration.number, migration.checksum) != (row[0], row[2]):
            raise InvalidStateError(
                f"the migration {migration} is not the one that the database has",
                hint="Applied migrations never change: install a release, or restore a backup.",
            )
    return wanted[len(applied) :]


async def _apply(connection: AsyncConnection[Any], migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(migration.sql.encode())
        await connection.execute(
            "INSERT INTO schema_migrations (number, name, checksum) VALUES (%s, %s, %s)",
            [migration.number, migration.name, migration.checksum],
        )
