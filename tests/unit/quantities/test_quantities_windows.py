"""Instants with their zone, half-open windows, durations of fixed length."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from apportion.errors import InvalidInputError
from apportion.quantities.windows import (
    Window,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 12, 1, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-12-01T09:00Z", at(9)),
        ("2026-12-01T09:00:00Z", at(9)),
        ("2026-12-01t09:00:00z", at(9)),
        ("2026-12-01T09:00:00+05:30", at(3, 30)),
        ("2026-12-01T09:00:00-00:00", at(9)),
        ("2026-12-01T09:00:00.5Z", at(9) + timedelta(milliseconds=500)),
        ("2026-12-01T09:00:00.000001000Z", at(9) + timedelta(microseconds=1)),
        ("2028-02-29T00:00:00Z", datetime(2028, 2, 29, tzinfo=UTC)),
    ],
)
def test_an_instant_with_a_zone_is_read_as_utc(text, instant):
    value = parse_instant(text, field="start")
    assert value == instant
    assert value.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-12-01T09:00:00", "no zone"),
        ("2026-12-01T09:00", "no zone"),
        ("2026-12-01 09:00", "not an instant"),
        ("2026-12-01 09:00:00Z", "not an instant"),
        ("2026-12-01", "not an instant"),
        ("now", "not an instant"),
        ("", "not an instant"),
        ("2026-13-01T00:00:00Z", "does not exist"),
        ("2027-02-29T00:00:00Z", "does not exist"),
        ("2026-12-01T24:00:00Z", "does not exist"),
        ("2026-12-31T23:59:60Z", "leap second"),
        ("2026-12-01T09:00:61Z", "does not exist"),
        ("2026-12-01T09:00:00.0000001Z", "finer than a microsecond"),
        ("2026-12-01T09:00:00+24:00", "does not exist"),
        ("2026-12-01T09:00:00+05:60", "does not exist"),
        ("0001-01-01T00:00:00+01:00", "does not exist"),
        ("9999-12-31T23:59:59-01:00", "does not exist"),
        ("٢٠٢٦-12-01T09:00:00Z", "not an instant"),
        ("1764579600", "not an instant"),
        ("2026-12-01T09:00:00Z\n", "not an instant"),
    ],
)
def test_any_other_text_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse_instant(text, field="start")
    assert caught.value.field == "start"
    assert "2026-12-01T09:00:00Z" in (caught.value.allowed or "")


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati", "UTC"])
def test_the_machines_zone_changes_nothing(zone):
    program = (
        "from apportion.quantities.windows import *\n"
        "print(format_instant(parse_instant('2026-12-01T09:00:00+05:30', field='x')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "2026-12-01T03:30:00Z\n"


def test_instants_are_written_in_utc():
    assert format_instant(at(9)) == "2026-12-01T09:00:00Z"
    assert format_instant(at(9) + timedelta(microseconds=5)) == "2026-12-01T09:00:00.000005Z"
    assert format_instant(at(9).astimezone(timezone(timedelta(hours=2)))) == "2026-12-01T09:00:00Z"
    with pytest.raises(ValueError, match="naive"):
        format_instant(at(9).replace(tzinfo=None))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("90m", 5400),
        ("4h", 14400),
        ("1d12h", 129600),
        ("2w", 1209600),
        ("1w1d1h1m1s", 694861),
        ("P1D", 86400),
        ("PT4H", 14400),
        ("P1DT12H", 129600),
        ("P2W", 1209600),
        ("PT90M", 5400),
        ("3653d", 3653 * 86400),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "4",
        "h",
        "4 h",
        "-4h",
        "1.5h",
        "1h1d",
        "1h1h",
        "4H",
        "PT4h",
        "P1Y",
        "P1M",
        "٤h",
        "4h\n",
        "forever",
        "1" * 41 + "s",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidInputError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", "PT0S", "3654d", "P99999999W"])
def test_a_duration_has_a_range(text):
    with pytest.raises(InvalidInputError, match="out of range"):
        parse_duration(text)


def test_durations_are_written_the_short_way():
    assert format_duration(timedelta(days=1, hours=12)) == "1d12h"
    assert format_duration(timedelta(seconds=90)) == "1m30s"
    assert format_duration(timedelta(0)) == "0s"
    for bad in (timedelta(milliseconds=1), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="whole number"):
            format_duration(bad)


def test_a_window_holds_its_start_and_not_its_end():
    window = Window(start=at(10), end=at(12))
    assert window.contains(at(10))
    assert not window.contains(at(12))
    assert window.duration == timedelta(hours=2)
    assert not window.overlaps(Window(start=at(12), end=at(13)))
    assert window.overlaps(Window(start=at(11, 59), end=at(13)))
    assert window.covers(window)
    assert not window.covers(Window(start=at(11)))


def test_a_window_may_have_no_end():
    window = Window(start=at(10))
    assert window.duration is None
    assert window.contains(datetime(9999, 1, 1, tzinfo=UTC))
    assert window.overlaps(Window(start=at(20)))
    assert window.covers(Window(start=at(11), end=at(12)))
    assert not window.contains(at(9))


def test_a_window_must_end_after_it_starts():
    for end in (at(10), at(9)):
        with pytest.raises(InvalidInputError, match="end after it starts") as caught:
            Window(start=at(10), end=end)
        assert caught.value.field == "end"


def test_a_window_takes_utc_only():
    for start in (at(10).replace(tzinfo=None), at(10).astimezone(timezone(timedelta(hours=1)))):
        with pytest.raises(ValueError, match="UTC"):
            Window(start=start)
