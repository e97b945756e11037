"""The embedded server ends with the process that started it, however that process ends.

Real processes, real signals; as root in both ways of not being root, and as a plain user.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import apportion
from apportion.store import embedded

LAUNCHER = """
import sys, threading
from pathlib import Path
from apportion.store.embedded import start
server = start(Path(sys.argv[1]), bin_dir=Path(sys.argv[2]))
print(server.pid, server.dsn, flush=True)
sys.stdin.read()
"""
CLIENT = """
import asyncio, sys, psycopg
async def main():
    async with await psycopg.AsyncConnection.connect(sys.argv[1]) as connection:
        print("connected", flush=True)
        await connection.execute("SELECT pg_sleep(60)")
asyncio.run(main())
"""
GONE_SECONDS = 10
UNNAMED = 54321
SOURCE = Path(apportion.__file__).parents[1]
BIN_DIR = embedded.find_binaries(
    Path(other) if (other := os.environ.get("APPORTION_TEST_PG_BIN")) else None
)

NAMESPACES = subprocess.run(["unshare", "--user", "true"], check=False).returncode == 0
in_namespace = pytest.mark.skipif(not NAMESPACES, reason="this machine allows no user namespaces")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes users, which takes root")


def fields_of(pid: int) -> list[str]:
    """Return state, parent, … of a process from /proc (none when it is gone)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    return fields_of(pid)[:1] not in ([], ["Z"])


def family(pid: int) -> set[int]:
    """Return a process and all that descend from it."""
    everyone = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {one: int(fields[1]) for one in everyone if (fields := fields_of(one))}
    found, more = set[int](), {pid}
    while more:
        found |= more
        more = {one for one, parent in parents.items() if parent in more}
    return found


def wait_until(true, seconds: float = GONE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@contextmanager
def launched(directory: Path, *prefix: str, **options) -> Iterator[subprocess.Popen[str]]:
    command = [*(prefix or [sys.executable]), "-c", LAUNCHER, str(directory), str(BIN_DIR)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            with suppress(FileNotFoundError):  # no next start comes and removes it
                shutil.rmtree((directory / "socket").read_text())


def as_user(uid: int, directory: Path, **options):
    """Launch as another user, who may be unable to reach this test's own interpreter."""
    python = "/usr/bin/python3"
    who = {"user": uid, "group": uid, "extra_groups": [], "env": {"PYTHONPATH": str(SOURCE)}}
    try_it = "import sys, apportion.errors; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([python, "-c", try_it], check=False, **who).returncode:
        pytest.skip(f"no Python 3.11 by which user {uid} can reach the package")
    return launched(directory, python, **who, **options)


def server_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    line = process.stdout.readline().split()
    assert line, "the launcher did not start"
    return int(line[0]), line[1]


def kill_and_look(process: subprocess.Popen[str], server: int) -> None:
    """SIGKILL the launcher, and see that nothing of the server remains."""
    pids = family(server)
    assert len(pids) > 3, "the server has no workers: nothing is proved"
    process.kill()
    wait_until(lambda: not any(map(alive, pids)))


def owner_and_user(server: int) -> tuple[int, int]:
    """Return who owns the data, and who the server is, both as this process sees them."""
    data = Path(f"/proc/{server}/cwd")
    user = next(
        int(line.split()[2])
        for line in Path(f"/proc/{server}/status").read_text().splitlines()
        if line.startswith("Uid:")
    )
    return data.stat().st_uid, user


def in_own_user_namespace(server: int) -> bool:
    return Path(f"/proc/{server}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()


def test_sigkill_of_the_parent_leaves_no_process(open_path: Path):
    with launched(open_path) as process:
        server, _ = server_of(process)
        kill_and_look(process, server)


def test_sigkill_with_a_client_in_the_middle_of_a_query_leaves_no_process(open_path: Path):
    with launched(open_path) as process:
        server, dsn = server_of(process)
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, dsn],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as client:
            assert client.stdout.readline()
            kill_and_look(process, server)
            assert client.wait(GONE_SECONDS) != 0


def test_sigkill_while_the_data_directory_is_made_leaves_no_process(open_path: Path):
    with launched(open_path) as process:
        wait_until((open_path / "data.new" / "base").exists)
        pids = family(process.pid) - {process.pid}
        assert pids, "initdb was over too soon"
        process.kill()
        wait_until(lambda: not any(map(alive, pids)))
    assert not (open_path / "data").exists()
    embedded.start(open_path, bin_dir=BIN_DIR).stop()


def test_a_start_right_after_a_sigkill_waits_for_the_old_server_and_works(open_path: Path):
    with launched(open_path) as process:
        server, _ = server_of(process)
        process.kill()
        with embedded.start(open_path, bin_dir=BIN_DIR) as next_one:
            assert next_one.pid != server
            assert not alive(server)


def test_an_ordinary_end_without_a_stop_leaves_no_process(open_path: Path):
    with launched(open_path) as process:
        server, _ = server_of(process)
        pids = family(server)
        process.stdin.close()
        assert process.wait(GONE_SECONDS) == 0
        wait_until(lambda: not any(map(alive, pids)))


def test_ctrl_c_in_a_terminal_leaves_the_server_to_its_parent(open_path: Path):
    """The terminal's SIGINT goes to the whole group; what still writes must still have a server."""
    with launched(open_path, process_group=0) as process:
        server, _ = server_of(process)
        os.kill(process.pid, signal.SIGSTOP)  # so that only the server could react
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        assert alive(server)


@as_root
def test_root_runs_it_under_an_account_that_can_reach_the_data(open_path: Path):
    with launched(open_path / "state") as process:
        server, _ = server_of(process)
        owner, user = owner_and_user(server)
        assert owner == user != 0
        assert not in_own_user_namespace(server)
        kill_and_look(process, server)


@in_namespace
@as_root
def test_root_runs_it_in_a_user_namespace_where_no_account_can_reach(tmp_path: Path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with launched(private / "state") as process:
        server, _ = server_of(process)
        assert owner_and_user(server) == (0, 0)
        assert in_own_user_namespace(server)
        kill_and_look(process, server)
    with launched(private / "state") as process:
        assert owner_and_user(server_of(process)[0]) == (0, 0)


@as_root
def test_a_plain_user_runs_it_as_itself(open_path: Path):
    nobody = pwd.getpwnam("nobody")
    home = open_path / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    with as_user(nobody.pw_uid, home / "state") as process:
        server, _ = server_of(process)
        assert owner_and_user(server) == (nobody.pw_uid, nobody.pw_uid)
        kill_and_look(process, server)
    # Root after it leaves the files with their owner.
    with launched(home / "state") as process:
        assert owner_and_user(server_of(process)[0]) == (nobody.pw_uid, nobody.pw_uid)


@in_namespace
@as_root
def test_a_user_that_has_no_name_runs_it_too(open_path: Path):
    home = open_path / "home"
    home.mkdir()
    os.chown(home, UNNAMED, UNNAMED)
    with as_user(UNNAMED, home / "state") as process:
        server, _ = server_of(process)
        assert owner_and_user(server) == (UNNAMED, UNNAMED)
        kill_and_look(process, server)


@as_root
def test_data_of_another_user_is_refused_by_name(open_path: Path):
    with launched(open_path / "state") as process:
        server_of(process)
    (open_path / "state" / "lock").unlink()  # it keeps others off too, and says less
    (open_path / "state").chmod(0o777)
    with as_user(UNNAMED, open_path / "state", stderr=subprocess.PIPE) as process:
        told = process.stderr.read()
    assert re.search("UnavailableError: the data directory .* belongs to user [a-z]", told)


@in_namespace
@as_root
def test_root_that_can_do_neither_is_told_what_to_do(tmp_path: Path):
    """A container may keep root from making user namespaces: here, none may be made inside one."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    inside = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable)
    with launched(private / "state", *inside, stderr=subprocess.PIPE) as process:
        told = process.stderr.read()
    assert "no user namespace" in told
    assert "Set APPORTION_DATABASE_URL to a PostgreSQL of your own" in told


@in_namespace
@as_root
@pytest.mark.parametrize("capability", ["kill", "setuid", "dac_override"])
def test_root_without_its_powers_runs_it_in_a_namespace(open_path: Path, capability: str):
    inside = ("setpriv", "--bounding-set", f"-{capability}", sys.executable)
    with launched(open_path / "state", *inside) as process:
        server, _ = server_of(process)
        assert owner_and_user(server) == (0, 0)
        kill_and_look(process, server)


@in_namespace
@as_root
def test_root_of_a_container_without_other_users_runs_it_in_a_namespace(open_path: Path):
    inside = ("unshare", "--user", "--map-root-user", sys.executable)
    with launched(open_path / "state", *inside) as process:
        server, _ = server_of(process)
        assert owner_and_user(server) == (0, 0)
        kill_and_look(process, server)
