"""Times in the user's words and zone: which instant is meant, and that both zones are said."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.cli import main
from apportion.cli.times import local_time, read_time
from apportion.cli.zones import chosen_zone, in_zone
from apportion.errors import InvalidInputError

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def read(text, *, after=None, past=False, zone="Europe/Berlin"):
    with in_zone(zone, field="--zone"):
        return read_time(text, field="--from", after=after, past=past)


def at(*parts):
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "past", "instant"),
    [
        ("18:00", False, at(2026, 12, 2, 17)),
        ("19:00", False, at(2026, 12, 3, 18)),  # the very instant is not the next one
        ("19:01", False, at(2026, 12, 2, 18, 1)),
        ("monday 9:00", False, at(2026, 12, 7, 8)),
        ("Wed 9:00", False, at(2026, 12, 9, 8)),
        ("WEDNESDAY 20:30:15", False, at(2026, 12, 2, 19, 30, 15)),
        ("18:00", True, at(2026, 12, 2, 17)),
        ("19:00", True, at(2026, 12, 2, 18)),
        ("19:01", True, at(2026, 12, 1, 18, 1)),
        ("monday 9:00", True, at(2026, 11, 30, 8)),
        ("wed 20:30", True, at(2026, 11, 25, 19, 30)),
    ],
)
def test_a_bare_clock_time_is_the_next_or_the_last_one(text, past, instant):
    mark = at(2026, 12, 2, 18) - (
        timedelta(hours=2) if (text, past) == ("18:00", False) else timedelta()
    )
    assert read(text, after=mark, past=past) == instant


@pytest.mark.parametrize(("word", "days"), [("yesterday", -1), ("today", 0), ("Tomorrow", 1)])
def test_a_near_day_is_counted_from_today_in_the_users_zone(word, days):
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        day = datetime.now(ZoneInfo(zone)).date() + timedelta(days=days)
        found = read(f"{word} 9:00", zone=zone).astimezone(ZoneInfo(zone))
        assert (found.date(), found.hour, found.minute) in {
            (day, 9, 0),
            (day + timedelta(days=1), 9, 0),  # midnight passed between
        }


@given(
    mark=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - the zone is given beside
    minute=st.integers(0, 1439),
    day=st.none() | st.integers(0, 6),
    past=st.booleans(),
)
def test_the_nearest_such_instant_is_found_as_a_search_of_minutes_finds_it(mark, minute, day, past):
    hour, minutes = divmod(minute, 60)
    text = f"{hour}:{minutes:02}" if day is None else f"{DAYS[day]} {hour}:{minutes:02}"
    step = timedelta(minutes=-1 if past else 1)
    probe = mark.replace(second=0, microsecond=0)
    if not past:
        probe += step
    while True:
        shown = probe.astimezone(BERLIN)
        if (shown.hour, shown.minute) == (hour, minutes) and day in (None, shown.weekday()):
            break
        probe += step
    try:
        assert read(text, after=mark, past=past) == probe
    except InvalidInputError as error:
        assert "in this zone" in error.reason  # noqa: PT017 - only where clocks change
        assert hour == 2


@pytest.mark.parametrize(
    ("text", "after", "reason", "both"),
    [
        ("2:30", at(2026, 10, 24, 12), "happens twice", "00:30:00Z or 2026-10-25T01:30:00Z"),
        ("2:30", at(2026, 10, 25, 1), "happens twice", "00:30:00Z or 2026-10-25T01:30:00Z"),
        ("sun 2:30", at(2026, 3, 28), "does not happen", "00:30:00Z or 2026-03-29T01:30:00Z"),
        ("2026-03-29T02:30", None, "does not happen", "00:30:00Z or 2026-03-29T01:30:00Z"),
    ],
)
def test_a_time_that_clocks_show_twice_or_never_is_refused_with_both_instants(
    text, after, reason, both
):
    with pytest.raises(InvalidInputError, match=reason) as caught:
        read(text, after=after)
    assert both in (caught.value.allowed or "")


@pytest.mark.parametrize(
    ("text", "zone", "said"),
    [
        ("2026-12-01T18:00", "Europe/Berlin", "Tue 2026-12-01 18:00 CET (17:00 UTC)"),
        ("2026-07-01 00:30", "Europe/Berlin", "Wed 2026-07-01 00:30 CEST (2026-06-30 22:30 UTC)"),
        ("2026-12-01T18:00:07", "Asia/Kolkata", "Tue 2026-12-01 18:00:07 IST (12:30:07 UTC)"),
    ],
)
def test_a_time_read_without_a_zone_is_said_in_both_beside_the_data(capsys, text, zone, said):
    read(text, zone=zone)
    assert capsys.readouterr() == ("", f"--from {text}: {said}\n")


def test_a_time_with_a_zone_needs_no_echo(capsys):
    assert read("2026-12-01T18:00:00Z") == at(2026, 12, 1, 18)
    assert capsys.readouterr() == ("", "")


def test_the_flag_goes_before_the_variable_and_the_variable_before_the_system(monkeypatch):
    seen = []

    def run(_args):
        seen.append(local_time(at(2026, 12, 1, 17)))
        return 0

    monkeypatch.setattr("apportion.cli.usage.run", run)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert main(["usage"]) == 0
        monkeypatch.setenv("APPORTION_ZONE", "")
        assert main(["usage"]) == 0
        monkeypatch.setenv("APPORTION_ZONE", "Asia/Tokyo")
        assert main(["usage"]) == 0
        assert main(["usage", "--zone", "Europe/Berlin"]) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    new_york = "Tue 2026-12-01 12:00 EST"
    assert seen == [new_york, new_york, "Wed 2026-12-02 02:00 JST", "Tue 2026-12-01 18:00 CET"]
    assert chosen_zone() is None


@pytest.mark.parametrize(
    "name", ["Europe/Nowhere", "", "../etc/passwd", "/etc/localtime", "Europe"]
)
def test_a_zone_that_there_is_not_is_refused_before_anything_is_done(monkeypatch, capsys, name):
    def run(_args):
        raise AssertionError("it ran")

    monkeypatch.setattr("apportion.cli.usage.run", run)
    assert main(["usage", "--zone", name]) == 2
    assert "--zone: is no time zone" in capsys.readouterr().err
    if name:
        monkeypatch.setenv("APPORTION_ZONE", name)
        assert main(["usage"]) == 2
        assert "APPORTION_ZONE: is no time zone" in capsys.readouterr().err
