"""The control plane put together: database, runtime, services, and what the clock does."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from apportion.authority.service import (
    ROOT,
    ensure_root,
    foreign_tokens,
    is_valid,
    issue_token,
)
from apportion.errors import ApportionError, InvalidInputError, UnavailableError
from apportion.nodes.service import Watch, sync_placements
from apportion.partitions.service import Gate
from apportion.reservations.service import Reservations
from apportion.store import embedded
from apportion.store.connections import open_pool, transaction
from apportion.store.migrations import migrate
from apportion.store.runtime import Runtime
from apportion.webhooks.service import Dispatcher, Network

TICK_SECONDS: Final = 1.0
"""How often due work is looked for; it is due by its own time, not by the tick's."""
TOKEN_FILE: Final = "root.token"  # noqa: S105 - the name of a file
KEY_FILE: Final = "server.key"
_KEY_BYTES: Final = 32

Step = Callable[[], Awaitable[object]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class System:
    """A running control plane without its doors."""

    runtime: Runtime
    reservations: Reservations
    token_file: Path
    webhook_networks: Sequence[Network]


@asynccontextmanager
async def running(
    state: Path,
    *,
    database_url: str | None = None,
    key_file: Path | None = None,
    pool_size: int = 10,
    webhook_networks: Sequence[Network] = (),
) -> AsyncGenerator[System]:
    """Start the database (our own, unless a URL is given), migrate it, and do the clock's work.

    Raises UnavailableError when the database cannot be started or reached.
    """
    _make_private(state)
    key = _server_key(key_file or state / KEY_FILE)
    async with AsyncExitStack() as stack:
        if database_url is None:
            server = await asyncio.to_thread(embedded.start, state / "postgres")
            stack.callback(server.stop)
            database_url = server.dsn
        await migrate(database_url)
        db = await stack.enter_async_context(open_pool(database_url, size=pool_size))
        runtime = Runtime(db, key=key)
        await _bootstrap(runtime, state / TOKEN_FILE)
        reservations = Reservations(runtime)
        dispatcher = Dispatcher(runtime, webhook_networks)
        # Nobody books, before the first tick, what somebody is still on.
        await reservations.lifecycle.end_due()
        steps = {
            # The gate first: what it lets go makes room for what waits.
            "gate": Gate(runtime).advance,
            "watch": Watch(runtime).advance,
            "lifecycle": reservations.lifecycle.advance,
        }
        for work in (_tick(steps, reservations.lifecycle.hint), dispatcher.run()):
            stack.push_async_callback(_cancel, asyncio.create_task(work))
        yield System(runtime, reservations, state / TOKEN_FILE, webhook_networks)


async def _bootstrap(runtime: Runtime, token_file: Path) -> None:
    async with transaction(runtime.db) as connection:
        await ensure_root(runtime, connection)
        await sync_placements(connection)
        if foreign := await foreign_tokens(runtime, connection):
            # They would be refused as unknown, and nobody could tell why.
            _log.warning("tokens were made with another server key", tokens=foreign)
        kept = _read_secret(token_file)
        if kept is not None and await is_valid(runtime, connection, kept):
            return
        issued = await issue_token(runtime, connection, tenant_id=ROOT, name="bootstrap")
        _write_secret(token_file, issued.token)


async def _tick(steps: Mapping[str, Step], hint: asyncio.Event) -> None:
    while True:
        for name, step in steps.items():
            await _attempt(name, step)
        with suppress(TimeoutError):
            await asyncio.wait_for(hint.wait(), TICK_SECONDS)
        hint.clear()


async def _attempt(name: str, step: Step) -> None:
    """Do a step of the clock; what fails in it the next tick makes up for.

    A loop that died would let windows pass unnoticed, and so would a step that kept others away.
    """
    try:
        await step()
    except ApportionError as error:
        _log.warning("step failed", step=name, code=error.code, reason=str(error))
    except Exception:  # noqa: BLE001 - a fault of ours, which must not stop the clock either
        _log.exception("step broke", step=name)


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _make_private(state: Path) -> None:
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"cannot make the state directory: {error.strerror}", field="state", given=str(state)
        ) from error


def _server_key(path: Path) -> bytes:
    """Read the server's key, or make it where there is none."""
    kept = _read_secret(path)
    if kept is None:
        kept = os.urandom(_KEY_BYTES).hex()
        _write_secret(path, kept)
    try:
        key = bytes.fromhex(kept)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidInputError(
            "holds no server key",
            field="key_file",
            given=str(path),
            allowed=f"{_KEY_BYTES} bytes in hexadecimal digits, as `openssl rand -hex 32` writes",
        )
    return key


def _read_secret(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return None


def _write_secret(path: Path, secret: str) -> None:
    """Write a file that only its owner can ever read, whole or not at all."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    fresh.replace(path)
