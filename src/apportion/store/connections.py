"""Connections to PostgreSQL, all set up alike, and the transactions that run on them.

Every connection speaks UTC and gives rows as dicts. The server ends a statement that runs or waits
for too long, and a transaction that its owner forgot, so that nobody hangs on another one's lock.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from psycopg import AsyncConnection, Error
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from apportion.errors import InvalidInputError
from apportion.store.errors import RETRYABLE, translate

T = TypeVar("T")
Connection = AsyncConnection[DictRow]
Pool = AsyncConnectionPool[Connection]

_CONNECT_SECONDS: Final = 10
_STATEMENT_SECONDS: Final = 30
_LOCK_SECONDS: Final = 10
_FORGOTTEN_SECONDS: Final = 60
_FIRST_PAUSE_SECONDS: Final = 0.01


@asynccontextmanager
async def open_pool(dsn: str, *, size: int = 10) -> AsyncGenerator[Pool]:
    """Open a pool of at most ``size`` connections, and close it at the end of the block.

    Raises InvalidInputError for a ``dsn`` that cannot be read, UnavailableError when the database
    does not answer within 10 s.
    """
    pool: Pool = AsyncConnectionPool(
        configured(dsn),
        connection_class=AsyncConnection[DictRow],
        kwargs={"row_factory": dict_row},
        min_size=1,
        max_size=size,
        timeout=_CONNECT_SECONDS,
        # One empty query a checkout: else each connection of before a restart fails one request.
        check=Pool.check_connection,
        open=False,
    )
    await _try(dsn)
    async with pool:
        yield pool


async def _try(dsn: str) -> None:
    """Fail with the reason: a pool connects in the background, and tells only its log why not."""
    try:
        async with await AsyncConnection.connect(configured(dsn)):
            pass
    except Error as error:
        raise translate(error) from error


def configured(dsn: str) -> str:
    """Return ``dsn`` with our name, UTC and the time limits; options that it has of its own win."""
    try:
        given = conninfo_to_dict(dsn)
    except Error as error:
        raise InvalidInputError(
            f"not a PostgreSQL connection string: {error}".strip(),
            field="database_url",
            allowed="postgresql://user@host/database, or key=value pairs as libpq reads them",
        ) from None
    ours = {
        "TimeZone": "UTC",
        "statement_timeout": f"{_STATEMENT_SECONDS}s",
        "lock_timeout": f"{_LOCK_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{_FORGOTTEN_SECONDS}s",
    }
    options = [f"-c {name}={value}" for name, value in ours.items()]
    given["options"] = " ".join([*options, str(given.get("options") or "")]).strip()
    return make_conninfo(
        "", **{"application_name": "apportion", "connect_timeout": _CONNECT_SECONDS, **given}
    )


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncGenerator[Connection]:
    """Run the block in one transaction; errors of the database come out in our words.

    The commit is inside: what a deferred constraint refuses is raised here too.
    """
    try:
        async with _begin(pool) as connection:
            yield connection
    except Error as error:
        raise translate(error) from error


async def retrying(
    pool: Pool,
    work: Callable[[Connection], Awaitable[T]],
    *,
    attempts: int = 5,
    jitter: Callable[[], float] = random.random,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Run ``work`` in a transaction, again from the start when the database says to try again.

    That is: a serialization failure or a deadlock (SQLSTATE 40001, 40P01), and nothing else.
    ``work`` must therefore change nothing but the database. ``jitter`` gives numbers of [0, 1), so
    that two that clashed do not meet again. Raises UnavailableError after the last attempt.
    """
    for attempt in range(1, attempts + 1):
        try:
            async with _begin(pool) as connection:
                return await work(connection)
        except RETRYABLE as error:
            if attempt == attempts:
                raise translate(error) from error
        except Error as error:
            raise translate(error) from error
        await sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * (0.5 + jitter()))
    raise ValueError("attempts: at least 1")


@asynccontextmanager
async def _begin(pool: Pool) -> AsyncGenerator[Connection]:
    async with pool.connection() as connection, connection.transaction():
        yield connection
