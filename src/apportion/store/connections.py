"""Connections to PostgreSQL, all set up alike, and the transactions that run on them.

Every connection speaks UTC and gives rows as dicts. The server ends a statement that runs or waits
for too long, a transaction that its owner forgot, and one whose owner died, so that nobody hangs on
another one's lock. A database that went away is looked for every second until it is back.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Error
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from apportion.errors import InvalidInputError
from apportion.store.errors import RETRYABLE, translate

T = TypeVar("T")
Connection = AsyncConnection[DictRow]
Cursor = AsyncCursor[DictRow]
Pool = AsyncConnectionPool[Connection]

_CONNECT_SECONDS: Final = 10
_STATEMENT_SECONDS: Final = 30
_LOCK_SECONDS: Final = 10
_FORGOTTEN_SECONDS: Final = 60
_FIRST_PAUSE_SECONDS: Final = 0.01
_DEATH_SECONDS: Final = 1
_SILENCE_SECONDS: Final = 15
_RECONNECT_SECONDS: Final = 1
_AT_ONCE_SECONDS: Final = 0.01


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
        # By itself the pool waits twice as long after each failure: minutes after a long outage.
        reconnect_timeout=_RECONNECT_SECONDS,
        reconnect_failed=_look_again,
        # One empty query a checkout: else each connection of before a restart fails one request.
        check=Pool.check_connection,
        open=False,
    )
    await _try(dsn)
    async with pool:
        yield pool


async def _look_again(pool: Pool) -> None:
    """Let the pool try once more: it does so only when somebody asks it for a connection."""
    with suppress(PoolTimeout, PoolClosed):
        async with pool.connection(timeout=_AT_ONCE_SECONDS):
            pass


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
        # Of a client that died the server hears while it waits for a lock; else it would wait on,
        # and keep what it has locked from everybody.
        "client_connection_check_interval": f"{_DEATH_SECONDS}s",
        # One whose machine died says nothing at all.
        "tcp_keepalives_idle": f"{_SILENCE_SECONDS}s",
        "tcp_user_timeout": f"{_SILENCE_SECONDS}s",
    }
    options = [f"-c {name}={value}" for name, value in ours.items()]
    given["options"] = " ".join([*options, str(given.get("options") or "")]).strip()
    client = {
        "application_name": "apportion",
        "connect_timeout": _CONNECT_SECONDS,
        # Of a server whose machine died we hear nothing either.
        "keepalives_idle": _SILENCE_SECONDS,
        "tcp_user_timeout": _SILENCE_SECONDS * 1000,
    }
    return make_conninfo("", **{**client, **given})


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
