"""The log: a line of JSON an event, with the request it belongs to, and no secret."""

import io
import json
import logging

import pytest
import structlog

from apportion.server.logs import configure_logging

pytestmark = pytest.mark.usefixtures("log_as_before")


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_our_lines_and_those_of_libraries_are_json_of_one_kind(capsys):
    configure_logging("info", "json")
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        structlog.get_logger("ours").info("placed", count=2)
        logging.getLogger("theirs").warning("slow %s", "query")
    ours, theirs = lines(capsys)
    assert (ours["event"], ours["count"], ours["level"]) == ("placed", 2, "info")
    assert (theirs["event"], theirs["logger"]) == ("slow query", "theirs")
    assert ours["request_id"] == theirs["request_id"] == "req_1"
    assert ours["timestamp"].endswith("Z")


def test_what_is_below_the_level_is_left_out(capsys):
    configure_logging("warning", "json")
    structlog.get_logger("x").info("no")
    logging.getLogger("x").info("no")
    assert lines(capsys) == []


def test_a_fault_is_logged_with_its_traceback(capsys):
    configure_logging("info", "json")
    structlog.get_logger("x").error("internal error", exc_info=ValueError("why"))
    [line] = lines(capsys)
    assert "ValueError: why" in line["exception"]


def test_the_console_form_is_for_people(capsys):
    configure_logging("info", "console")
    structlog.get_logger("x").info("placed")
    assert "placed" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(monkeypatch, capsys, no_color, coloured):
    monkeypatch.setenv("NO_COLOR", no_color)
    configure_logging("info", "console")
    structlog.get_logger("x").info("placed")
    assert "\x1b[" not in capsys.readouterr().err
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    configure_logging("info", "auto")
    structlog.get_logger("x").info("placed")
    assert ("\x1b[" in terminal.getvalue()) == coloured


@pytest.mark.anyio
async def test_a_request_is_one_line_without_token_body_or_query(http, token, capsys):
    configure_logging("debug", "json")
    await http.post("/v1/pools?secret=1", json={"name": "hidden"}, headers={"X-Request-ID": "r1"})
    # The client of this test logs addresses in the same process; it is no part of the server.
    [line] = [each for each in lines(capsys) if each["logger"] != "httpx2"]
    text = json.dumps(line)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/pools", 400)
    assert line["request_id"] == "r1"
    assert isinstance(line["duration_us"], int)
    assert token not in text
    assert "secret" not in text
    assert "hidden" not in text


@pytest.mark.anyio
async def test_a_fault_of_ours_is_in_the_log_with_the_request_id(
    http, reservations, monkeypatch, capsys
):
    async def broken(*args):
        raise RuntimeError("the cause")

    configure_logging("info", "json")
    monkeypatch.setattr(reservations, "get", broken)
    await http.get("/v1/reservations/x", headers={"X-Request-ID": "r2"})
    [fault] = [each for each in lines(capsys) if each["event"] == "internal error"]
    assert fault["request_id"] == "r2"
    assert "RuntimeError: the cause" in fault["exception"]
