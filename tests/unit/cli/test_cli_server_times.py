"""Times on the command line: read in the user's zone, shown in UTC and in it, windows drawn."""

import io
import time
from datetime import UTC, datetime, timedelta

import pytest

from apportion.cli.times import (
    both_zones,
    can_draw_windows,
    read_time,
    rough,
    short_time,
    window_lines,
)
from apportion.errors import InvalidInputError


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch):
    """Set this process's zone for one test."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize("name", ["America/New_York", "Pacific/Kiritimati", "UTC"])
def test_a_time_with_a_zone_means_the_same_everywhere(zone, name):
    zone(name)
    assert read_time("2026-12-01T09:00Z", field="--from") == at(2026, 12, 1, 9)
    assert read_time("2026-12-01T09:00+05:30", field="--from") == at(2026, 12, 1, 3, 30)


@pytest.mark.parametrize(
    ("name", "instant"),
    [
        ("America/New_York", at(2026, 12, 1, 14)),
        ("Pacific/Kiritimati", at(2026, 11, 30, 19)),
        ("Asia/Kolkata", at(2026, 12, 1, 3, 30)),
    ],
)
@pytest.mark.parametrize("text", ["2026-12-01 09:00", "2026-12-01T09:00", "2026-12-01T09:00:00"])
def test_a_time_without_a_zone_is_in_the_zone_of_the_machine(zone, name, instant, text):
    zone(name)
    assert read_time(text, field="--from") == instant


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "",
        "2026-13-01T09:00",
        "2026-12-01T09:00:60",
        "2026-12-01T23:59:60Z",
        "2026-02-30T09:00Z",
        "2026-12-01",
        "24:00",
        "9:60",
        "9",
        "someday 9:00",
        "m 9:00",
        "1764579600",
        "2026-12-01  09:00",
        "２026-12-01T09:00",  # noqa: RUF001 - a full-width digit is the point
    ],
)
def test_what_is_no_time_is_refused_as_it_was_given(zone, text):
    zone("America/New_York")
    with pytest.raises(InvalidInputError) as caught:
        read_time(text, field="--from")
    assert (caught.value.field, caught.value.given) == ("--from", text)
    assert "in your zone" in (caught.value.allowed or "")


def test_an_hour_that_clocks_show_twice_names_both_instants(zone):
    zone("America/New_York")
    with pytest.raises(InvalidInputError, match="happens twice") as caught:
        read_time("2026-11-01T01:30", field="--from")
    assert caught.value.allowed == "2026-11-01T05:30:00Z or 2026-11-01T06:30:00Z"


def test_an_hour_that_clocks_skip_is_refused(zone):
    zone("America/New_York")
    with pytest.raises(InvalidInputError, match="does not happen"):
        read_time("2026-03-08T02:30", field="--from")
    assert read_time("2026-03-08T03:30", field="--from") == at(2026, 3, 8, 7, 30)


def test_the_ends_of_the_calendar_are_refused_or_read_and_never_crash(zone):
    zone("Pacific/Kiritimati")
    for text in ("0001-01-01T00:00", "9999-12-31T23:59"):
        try:
            assert read_time(text, field="--from").tzinfo is UTC
        except InvalidInputError as error:
            assert error.given == text  # noqa: PT017 - either outcome is right


def test_an_instant_is_shown_in_both_zones(zone):
    zone("America/New_York")
    assert both_zones(at(2026, 12, 1, 14, 0, 0, 999)) == (
        "2026-12-01T14:00:00Z (2026-12-01 09:00:00 EST)"
    )
    assert short_time(at(2026, 12, 1, 14, 0, 0, 999)) == "2026-12-01 09:00:00 EST"
    assert short_time(None) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "59s"), (3599, "59m59s"), (3600, "1h"), (5430, "1h30m"), (0, "0s")]
)
def test_long_durations_lose_their_seconds(seconds, text):
    assert rough(timedelta(seconds=seconds)) == text


START, END = at(2026, 3, 2, 9), at(2026, 3, 2, 13)


def line(now: datetime, *, boxes: bool = True) -> tuple[str, str]:
    lines = window_lines(START, END, now, boxes=boxes)
    return lines[0], lines[-1]


def test_a_window_under_way_shows_what_is_gone_and_what_is_left():
    bar, words = line(at(2026, 3, 2, 11))
    assert len(bar) == 60
    assert (bar[0], bar[29], bar[-1]) == ("├", "■", "┤")
    assert set(bar[1:29]) == {"═"}
    assert set(bar[30:-1]) == {"─"}
    assert words == "4h in all, 2h gone, 2h left"


def test_a_window_ahead_stands_behind_the_way_to_it():
    bar, words = line(at(2026, 3, 2, 5))
    assert (bar[0], bar[29], bar[-1]) == ("■", "├", "┤")
    assert set(bar[1:29]) == {"·"}
    assert words == "4h in all, begins in 4h"


def test_a_window_that_is_over_lies_before_now():
    bar, words = line(at(2026, 3, 2, 17))
    assert (bar[0], bar[29], bar[-1]) == ("├", "┤", "■")
    assert words == "4h in all, over since 4h"


def test_now_is_seen_at_either_end_of_the_window():
    assert line(START)[0][0] == "■"
    assert line(END)[0][-1] == "■"


def test_a_terminal_without_box_characters_gets_ascii():
    bar, _ = line(at(2026, 3, 2, 11), boxes=False)
    assert bar.isascii()
    assert (bar[0], bar[29], bar[-1]) == ("|", "o", "|")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert not can_draw_windows(ascii_only)
    assert can_draw_windows(io.TextIOWrapper(io.BytesIO(), encoding="cp437"))
