"""Waiting for a reservation: told meanwhile why, over when it runs or never will."""

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

ASK = ("--mig", "3g.40gb", "--for", "1h")


@pytest.fixture
def held(cli, server):
    """Give a pool of one instance, which is held, and the words that ask for it."""
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    words = ("reserve", "--pool", pool.name, *ASK, "-o", "json")
    return cli(*words).data, words


@contextmanager
def waiting(server, *words: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "reservation", "wait", *words],
        env=server.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_runs_is_waited_for_no_longer(cli, held):
    view, _ = held
    said = cli("reservation", "wait", view["id"])
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{view['id']}: active in ")


def test_what_waits_is_told_with_its_reason_until_it_runs(cli, server, held):
    holder, words = held
    view = cli(*words).data
    with waiting(server, view["id"], "-o", "json") as process:
        first = process.stderr.readline()
        assert first.startswith(f"{view['id']}: pending, units_booked: ")
        assert process.poll() is None
        cli("reservation", "release", holder["id"], "--yes")
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, '"state": "active"' in out) == (0, True)


def test_what_never_will_run_ends_the_wait_with_1_and_says_why(cli, server, held):
    _, words = held
    view = cli(*words).data
    with waiting(server, view["id"]) as process:
        process.stderr.readline()
        cli("reservation", "release", view["id"], "--yes")
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert (f"{view['id']}: ended" in out, "cancelled" in out) == (True, True)


def test_the_time_is_up_with_1_and_changes_nothing(cli, held):
    _, words = held
    view = cli(*words).data
    began = time.monotonic()
    said = cli("reservation", "wait", view["id"], "--timeout", "1s")
    assert said.code == 1
    assert 1 <= time.monotonic() - began < 10
    assert "still pending after 1s" in said.err
    assert f"{view['id']}: pending" in said.out
    assert cli("reservation", "show", view["id"], "-o", "json").data["state"] == "pending"
    cli("reservation", "release", view["id"], "--yes")


def test_a_window_to_come_is_placed_and_its_begin_is_told(cli, held):
    _, words = held
    later = (*words[:-4], "--from", "2036-12-01T09:00:00Z", "--until", "2036-12-01T10:00:00Z")
    view = cli(*later, "-o", "json").data
    said = cli("reservation", "wait", view["id"], "--state", "placed")
    assert (said.code, said.err) == (0, "")
    said = cli("reservation", "wait", view["id"], "--timeout", "1s")
    assert (said.code, "placed, begins 2036-12-01T09:00:00Z" in said.err) == (1, True)


def test_an_end_can_be_waited_for(cli, held):
    view, _ = held
    assert cli("reservation", "wait", view["id"], "--state", "ended", "--timeout", "1s").code == 1
    cli("reservation", "release", view["id"], "--yes")
    said = cli("reservation", "wait", view["id"], "--state", "ended")
    assert (said.code, "ended" in said.out) == (0, True)
    assert cli("reservation", "wait", view["id"]).code == 1


def test_a_wrong_flag_is_2_and_names_it(cli, held):
    said = cli("reservation", "wait", held[0]["id"], "--timeout", "soon")
    assert (said.code, "--timeout" in said.err) == (2, True)
    said = cli("reservation", "wait", "res_01kzzzzzzzzzzzzzzzzzzzzzzz")
    assert (said.code, "no such reservation" in said.err) == (1, True)
