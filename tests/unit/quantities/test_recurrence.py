"""Windows that come again, held against another expansion, and where clocks change."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.quantities.recurrence import Recurrence, instant_in

MONDAY = "2026-03-02"
BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kathmandu",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "UTC",
]


def every(days="0123456", start="09:00", end="17:00", *, zone=BERLIN, first=MONDAY, last=None):
    return Recurrence(
        days=frozenset(map(int, days)),
        start=time.fromisoformat(start),
        end=time.fromisoformat(end),
        zone=zone,
        first=date.fromisoformat(first),
        last=None if last is None else date.fromisoformat(last),
    )


def shown(windows):
    return [f"{start:%Y-%m-%dT%H:%M}/{end:%Y-%m-%dT%H:%M}" for start, end in windows]


def test_weekdays_from_nine_to_five_keep_their_hours_over_a_change_of_clocks():
    found = every("01234", first="2026-03-26", last="2026-03-31").windows()
    assert shown(found) == [
        "2026-03-26T08:00/2026-03-26T16:00",
        "2026-03-27T08:00/2026-03-27T16:00",
        "2026-03-30T07:00/2026-03-30T15:00",
        "2026-03-31T07:00/2026-03-31T15:00",
    ]


def test_an_end_that_is_not_later_is_the_next_day_s():
    assert shown(every("4", "22:00", "06:00", last="2026-03-08").windows()) == [
        "2026-03-06T21:00/2026-03-07T05:00"
    ]
    assert shown(every("0", "09:00", "09:00", last="2026-03-02").windows()) == [
        "2026-03-02T08:00/2026-03-03T08:00"
    ]


def test_a_time_that_clocks_jump_over_is_the_first_instant_after():
    # On 29 March 2026 02:00 in Berlin becomes 03:00.
    assert shown(every("6", "02:30", "04:00", first="2026-03-29", last="2026-03-29").windows()) == [
        "2026-03-29T01:00/2026-03-29T02:00"
    ]


def test_a_time_that_is_there_twice_is_the_first():
    # On 25 October 2026 03:00 becomes 02:00.
    assert shown(every("6", "02:30", "04:00", first="2026-10-25", last="2026-10-25").windows()) == [
        "2026-10-25T00:30/2026-10-25T03:00"
    ]


def test_a_window_within_the_hour_that_is_not_there_is_left_out():
    found = every("6", "02:10", "02:50", first="2026-03-22", last="2026-04-05")
    assert shown(found.windows()) == [
        "2026-03-22T01:10/2026-03-22T01:50",
        "2026-04-05T00:10/2026-04-05T00:50",
    ]


def test_a_day_that_a_zone_never_had_is_passed_over():
    # Samoa went from 29 to 31 December 2011.
    found = every(zone=ZoneInfo("Pacific/Apia"), first="2011-12-29", last="2011-12-31").windows()
    assert shown(found) == [
        "2011-12-29T19:00/2011-12-30T03:00",
        "2011-12-30T19:00/2011-12-31T03:00",
    ]


def test_it_goes_on_until_the_calendar_ends():
    found = every(zone=UTC, first="9999-12-30")
    assert len(list(found.windows())) == 2
    assert len(list(every(zone=UTC, start="22:00", end="06:00", first="9999-12-30").windows())) == 1
    assert len(list(islice(every().windows(), 366))) == 366


def first_shown(zone, local):
    """Find when clocks first show a time, or a later one that day, by looking at each minute."""
    start = datetime.combine(local.date(), time(), tzinfo=UTC) - timedelta(hours=26)
    for minute in range(60 * 24 * 4):
        instant = start + timedelta(minutes=minute)
        seen = instant.astimezone(zone).replace(tzinfo=None)
        if seen >= local:
            return instant
    raise AssertionError(local)


changes = st.sampled_from(
    [
        date(2026, 3, 29),
        date(2026, 10, 25),
        date(2026, 3, 8),
        date(2026, 11, 1),
        date(2026, 4, 5),
        date(2026, 10, 4),
        date(2011, 12, 29),
        date(2018, 11, 4),
        date(2018, 2, 17),
    ]
)


@given(st.sampled_from(ZONES), changes, st.integers(-1, 1), st.times())
def test_an_instant_is_the_first_at_which_clocks_are_there(name, day, off, at):
    zone = ZoneInfo(name)
    local = datetime.combine(day + timedelta(days=off), at.replace(second=0, microsecond=0))
    assert instant_in(zone, local) == first_shown(zone, local)


@pytest.mark.parametrize("name", ZONES)
def test_windows_are_in_order_and_never_empty(name):
    zone = ZoneInfo(name)
    for start, end in (("00:00", "23:59"), ("23:30", "00:30"), ("02:00", "03:00")):
        found = list(islice(every("0123456", start, end, zone=zone).windows(), 366))
        assert all(a < b for a, b in found)
        assert [a for a, _ in found] == sorted({a for a, _ in found})
