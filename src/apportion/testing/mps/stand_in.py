"""What the stand-in for the MPS daemon does; a copy of this file is what its executables run.

So it needs nothing but the standard library. What it takes after: one server a user and one user at
a time, the others wait; 48 contexts a GPU; defaults that only servers and clients started
afterwards get; memory shown in whole GiB; ``quit`` that waits for clients; sockets and a lock that
outlive a daemon that was killed.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

CONTROL: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"
CLIENT: Final = "cuda-client"
CONTEXTS_MAX: Final = 48

SETTINGS: Final = "mps-stand-in.json"
CALLS: Final = "mps-stand-in.calls"
_ABSENT: Final = "Cannot find MPS control daemon process"
_RUNNING: Final = "An instance of this daemon is already running"
_PERCENT: Final = 100
_GIB: Final = 1024


@dataclass
class _Server:
    """One server: its process, its user, its limits and who is connected."""

    pid: int
    uid: int
    percentage: int
    memory: dict[str, int]
    clients: dict[int, socket.socket] = field(default_factory=dict)


class _Daemon:
    """The daemon's state, and what its commands do to it."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe
        self.percentage = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self.memory: dict[str, int] = {}
        self.servers: dict[int, _Server] = {}
        self.quitting = False
        self.changed = threading.Condition()

    def answer(self, line: str) -> str:
        """Do one command and return what it prints."""
        words = line.split()
        if not words:
            return ""
        faults = _settings()
        if words[0] in faults.get("hangs", ()):
            time.sleep(3600)
        if words[0] in faults.get("refuses", ()):
            return f"{words[0]}: operation not permitted"
        known = getattr(self, f"do_{words[0]}", None)
        if known is None:
            return f"Unknown command: {words[0]}"
        with self.changed:
            try:
                return str(known(*words[1:]))
            except (TypeError, ValueError, KeyError):
                return f"Invalid arguments: {line}"

    def do_get_server_list(self) -> str:
        return "\n".join(str(pid) for pid in self.servers)

    def do_get_server_status(self, pid: str) -> str:
        return "ACTIVE" if int(pid) in self.servers else f"Server {pid} not found"

    def do_start_server(self, flag: str, uid: str) -> str:
        if flag != "-uid":
            return f"Unknown option: {flag}"
        others = [one for one in self.servers.values() if one.uid != int(uid)]
        if others:
            return "Server of another user is running"
        self.server_for(int(uid))
        return ""

    def do_get_client_list(self, pid: str) -> str:
        return "\n".join(str(client) for client in self.servers[int(pid)].clients)

    def do_get_default_active_thread_percentage(self) -> str:
        return f"{self.percentage}.0"

    def do_set_default_active_thread_percentage(self, value: str) -> str:
        self.percentage = _percentage(value)
        return ""

    def do_get_active_thread_percentage(self, pid: str) -> str:
        return f"{self.servers[int(pid)].percentage}.0"

    def do_set_active_thread_percentage(self, pid: str, value: str) -> str:
        self.servers[int(pid)].percentage = _percentage(value)
        return ""

    def do_get_default_device_pinned_mem_limit(self, device: str) -> str:
        return _shown(self.memory.get(device))

    def do_set_default_device_pinned_mem_limit(self, device: str, value: str) -> str:
        self.memory[device] = _memory_mib(value)  # the device is not validated, as in the original
        return ""

    def do_get_device_pinned_mem_limit(self, pid: str, device: str) -> str:
        return _shown(self.servers[int(pid)].memory.get(device))

    def do_set_device_pinned_mem_limit(self, pid: str, device: str, value: str) -> str:
        self.servers[int(pid)].memory[device] = _memory_mib(value)
        return ""

    def do_quit(self, flag: str | None = None, seconds: str = "0") -> str:
        """Quit when the clients are gone; with ``-t`` they are ended after so long."""
        self.quitting = True
        self.changed.wait_for(
            lambda: not any(one.clients for one in self.servers.values()),
            timeout=int(seconds) if flag == "-t" else None,
        )
        for server in list(self.servers.values()):
            self.end(server)
        return ""

    def server_for(self, uid: int) -> _Server:
        """Return the user's server, started if need be; waits for the one of another user."""
        self.changed.wait_for(
            lambda: not any(one.uid != uid and one.clients for one in self.servers.values())
        )
        for server in list(self.servers.values()):
            if server.uid == uid:
                return server
            self.end(server)
        server = _Server(_start_server(), uid, self.percentage, dict(self.memory))
        self.servers[server.pid] = server
        threading.Thread(target=self.watch, args=(server,), daemon=True).start()
        return server

    def watch(self, server: _Server) -> None:
        """Drop a server that died: its clients lose their context."""
        os.waitpid(server.pid, 0)
        with self.changed:
            self.end(server)

    def end(self, server: _Server) -> None:
        """End a server and cut its clients off."""
        self.servers.pop(server.pid, None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        for connection in server.clients.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.clients.clear()
        self.changed.notify_all()

    def serve_client(self, connection: socket.socket, wanted: dict[str, Any]) -> None:
        """Connect an application, and keep it till one of the two goes."""
        pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        with self.changed:
            if self.quitting:
                _say(connection, {"error": "MPS server not ready"})
                return
            server = self.server_for(uid)
            if sum(len(one.clients) for one in self.servers.values()) >= CONTEXTS_MAX:
                _say(connection, {"error": "MPS max clients"})
                return
            server.clients[pid] = connection
            _say(connection, {"server": server.pid, **_granted(server, wanted)})
        with contextlib.suppress(OSError):
            connection.recv(1)
        with self.changed:
            server.clients.pop(pid, None)
            self.changed.notify_all()


def _granted(server: _Server, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a client's limits: it can only lower what the server allows."""
    memory = dict(server.memory)
    for device, mib in wanted["memory"].items():
        memory[device] = min(mib, memory.get(device, mib))
    return {"percentage": min(server.percentage, wanted["percentage"]), "memory": memory}


def _percentage(text: str) -> int:
    value = int(text)
    if not 0 < value <= _PERCENT:
        raise ValueError(text)
    return value


def _memory_mib(text: str) -> int:
    return int(text[:-1]) * {"G": _GIB, "M": 1}[text[-1]]


def _shown(mib: int | None) -> str:
    """Show memory as the driver does: whole GiB from one on, rounded down."""
    if mib is None:
        return ""
    return f"{mib // _GIB}G" if mib >= _GIB else f"{mib}M"


def _here() -> Path:
    return Path(__file__).resolve().parent


def _settings() -> dict[str, Any]:
    return dict(json.loads((_here() / SETTINGS).read_text("utf-8")))


def _note(what: str) -> None:
    with (_here() / CALLS).open("a", encoding="utf-8") as calls:
        calls.write(f"{what}\n")


def _pipe() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108


def _say(connection: socket.socket, what: object) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def _start_server() -> int:
    """Start a server's process: it ends with the daemon, by the pipe between, or outlives it."""
    reading, _ = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(reading, 0)
        os.execv(_here() / SERVER, [SERVER])  # noqa: S606
    os.close(reading)
    return pid


def _serve(pipe: Path) -> None:
    """Be the daemon: take connections till it is asked to quit."""
    daemon = _Daemon(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        place = pipe / "control"
        place.unlink(missing_ok=True)
        listening.bind(str(place))
        place.chmod(0o666)
        listening.listen(128)
        (pipe / f"{CONTROL}.pid").write_text(f"{os.getpid()}\n", "utf-8")
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_converse, args=(daemon, connection), daemon=True).start()


def _converse(daemon: _Daemon, connection: socket.socket) -> None:
    with connection, connection.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("{"):
                daemon.serve_client(connection, json.loads(line))
                return
            _say(connection, daemon.answer(line))
            if line.split()[:1] == ["quit"] and "quit" not in _settings().get("refuses", ()):
                (daemon.pipe / f"{CONTROL}.pid").unlink(missing_ok=True)
                os._exit(0)


def _start() -> int:
    """Start the daemon in the background: exit 0 when it takes connections."""
    _note("-d")
    fault = _settings().get("start")
    if fault == "refuses":
        sys.stdout.write("Failed to initialize CUDA\n")
        return 1
    if fault == "hangs":
        time.sleep(3600)
    if not _log("Start", full=fault == "log_full"):
        sys.stdout.write("Cannot write to the log directory: No space left on device\n")
        return 1
    lock = os.open(_pipe() / "control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stdout.write(f"{_RUNNING}\n")
        return 1
    (_pipe() / f"{CONTROL}.pid").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        _be_daemon(dies=fault == "dies")
    while not (_pipe() / f"{CONTROL}.pid").exists():
        if os.waitpid(child, os.WNOHANG)[0]:
            if fault == "dies":
                return 0
            sys.stdout.write(f"{_ABSENT}\n")
            return 1
        time.sleep(0.005)
    _kill_caller("-d")
    return 0


def _be_daemon(*, dies: bool) -> None:
    """Run as the daemon, cut off from whoever started it; a socket that it cannot bind ends it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    with contextlib.suppress(OSError):
        if not dies:
            _serve(_pipe())
    os._exit(1)


def _log(what: str, *, full: bool) -> bool:
    directory = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
    try:
        with (directory / "control.log").open("a", encoding="utf-8") as log:
            log.write(f"[{time.strftime('%F %T')} Control {os.getpid()}] {what}\n")
    except OSError:
        return False
    return not full


def _command() -> int:
    """Hand what comes on standard input to the daemon, and print what it says."""
    try:
        connection = _connect()
    except OSError:
        sys.stdout.write(f"{_ABSENT}\n")
        return 1
    with connection, connection.makefile("r", encoding="utf-8") as answers:
        for line in sys.stdin:
            _note(line.strip())
            connection.sendall(line.encode())
            answer = answers.readline()
            if not answer:  # the daemon has quit, or died
                _kill_caller(line.split()[0])
                return 0 if line.strip().startswith("quit") else 1
            _kill_caller(line.split()[0])
            text = json.loads(answer)
            sys.stdout.write(f"{text}\n" if text else "")
    return 0


def _kill_caller(command: str) -> None:
    if _settings().get("kills_caller") == command:
        os.kill(os.getppid(), signal.SIGKILL)


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(_pipe() / "control"))
    return connection


def _client() -> int:
    """Be an application: beside MPS where it finds no daemon, which it does not even notice."""
    percentage = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
    wanted = {"percentage": percentage, "memory": dict(_wanted_memory())}
    try:
        connection = _connect()
    except OSError:
        sys.stdout.write(json.dumps({"server": None, "percentage": 100, "memory": {}}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        return 0
    with connection, connection.makefile("r", encoding="utf-8") as answers:
        _say(connection, wanted)
        answer = json.loads(answers.readline() or '{"error": "MPS client terminated"}')
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if "error" in answer:
            return 1
        sys.stdin.read()
    return 0


def _wanted_memory() -> Iterator[tuple[str, int]]:
    """Read the limits of the environment; one about a GPU that is not visible voids them all."""
    entries = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    limits = dict(entry.split("=") for entry in entries.split(",") if entry)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(device in visible for device in limits):
        yield from ((device, _memory_mib(value)) for device, value in limits.items())


def _be_server() -> int:
    """Be a server: there till the daemon's end of the pipe closes, or for good as an orphan."""
    sys.stdin.read()
    while _settings().get("orphans"):
        time.sleep(0.05)
    return 0


def main(role: str) -> int:
    """Be what the installed file's name says; returns the exit code."""
    if role == "server":
        return _be_server()
    if role == "client":
        return _client()
    return _start() if "-d" in sys.argv else _command()
