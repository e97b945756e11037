"""A reservation's end is moved from the command line, within what its pool takes."""

import shlex
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "windows.md").read_text("utf-8")


def test_an_end_is_moved_and_a_refusal_names_the_flag_and_until_when(cli, server):
    pool = server.pool("H100", "exclusive", ())
    words = ("reserve", "--pool", pool.name, "--gpus", "1")
    first = cli(*words, "--from", "2036-12-01T09:00:00Z", "--for", "1h", "-o", "json").data
    cli(*words, "--from", "2036-12-01T12:00:00Z", "--for", "1h")
    said = cli("reservation", "update", first["id"], "--for", "2h")
    assert (said.code, "2h in all" in said.out) == (0, True)
    said = cli("reservation", "update", first["id"], "--until", "2036-12-01T13:00:00Z")
    assert said.code == 1
    # As the guide shows it.
    [shown] = [line.strip() for line in GUIDE.splitlines() if "--until: others" in line]
    assert shown in said.err
    said = cli(
        "reservation", "update", first["id"], "--until", "2036-12-01T12:00:00Z", "-o", "json"
    )
    assert said.data["end"] == "2036-12-01T12:00:00Z"
    said = cli("reservation", "update", first["id"], "--for", "soon")
    assert (said.code, "--for: " in said.err) == (2, True)


def test_a_window_in_words_is_reserved_as_it_was_said(cli, server):
    pool = server.pool("H100", "exclusive", ())
    [line] = [line.strip() for line in GUIDE.splitlines() if "'monday 9:00' --until" in line]
    said = cli(*shlex.split(line.replace("notebooks", pool.name))[1:], "-o", "json")
    start, end = (datetime.fromisoformat(said.data[key]) for key in ("start", "end"))
    shown = start.astimezone(ZoneInfo("Europe/Berlin"))
    assert (shown.weekday(), shown.hour, end - start) == (0, 9, timedelta(hours=8))
    assert "--from monday 9:00: Mon " in said.err
    assert f"({start:%H:%M} UTC)" in said.err
    listed = cli("reservation", "list", "--pool", pool.name)
    assert f"{start.astimezone():%Y-%m-%d %H:%M:%S %Z}" in listed.out
    wrong = ("--from", "2036-10-26T02:30", "--zone", "Europe/Berlin", "--for", "1h")
    said = cli("reserve", "--pool", pool.name, "--gpus", "1", *wrong)
    [shown] = [line.strip() for line in GUIDE.splitlines() if "happens twice in this" in line]
    assert (said.code, shown in said.err) == (2, True)


def test_a_pool_takes_windows_as_the_guide_sets_them(cli, server):
    pool = server.pool("H100", "exclusive", ())
    [line] = [line.strip() for line in GUIDE.splitlines() if "pool update" in line]
    assert cli(*line.replace("notebooks", pool.name).split()[1:]).code == 0
    words = ("reserve", "--pool", pool.name, "--gpus", "1", "--for")
    said = cli(*words, "100m")
    assert (said.code, "--for: " in said.err, "1h30m or 2h" in said.err) == (2, True, True)
    assert cli(*words, "9h").code == 2
    said = cli(*words, "2h", "-o", "json")
    assert said.data["bookings"][0]["held_until"] > said.data["bookings"][0]["end"]


def test_a_length_with_slack_is_placed_where_it_fits_and_waits_only_where_it_never_does(
    cli, server
):
    pool = server.pool("H100", "exclusive", ())
    [line] = [line.strip() for line in GUIDE.splitlines() if "--before" in line]
    words = line.replace("notebooks", pool.name).split()[1:]
    starts = [cli(*words, "-o", "json").data["start"] for _ in range(3)]
    assert starts == ["2036-12-01T12:00:00Z", "2036-12-01T14:00:00Z", "2036-12-01T16:00:00Z"]
    said = cli(*words)
    assert (said.code, "is to be over by" in said.out) == (1, True)
    words = ("reserve", "--pool", pool.name, "--gpus", "1")
    before = ("--before", "2036-12-01T18:00:00Z")
    for wrong, flag in [
        (
            ("--from", "2036-12-01T12:00:00Z", "--until", "2036-12-01T13:00:00Z", *before),
            "--before",
        ),
        (("--for", "2h", "--from", "2036-12-01T12:00:00Z", *before), "--from"),
        (("--for", "2h", "--after", "2036-12-01T12:00:00Z"), "--after"),
        (("--for", "2h", "--before", "2020-01-01T00:00:00Z"), "--before"),
    ]:
        said = cli(*words, *wrong)
        assert (said.code, said.err.splitlines()[0].partition(": ")[2][: len(flag)]) == (2, flag)


def test_when_it_could_start_is_told_and_drawn(cli, server):
    pool = server.pool("H100", "exclusive", ())
    ask = ("--pool", pool.name, "--gpus", "1", "--for", "2h")
    for line in (line.strip() for line in GUIDE.splitlines()):
        if line.startswith(("apportion reservation earliest", "apportion reservation free")):
            assert cli(*line.replace("notebooks", pool.name).split()[1:]).code == 0
    said = cli("reservation", "earliest", *ask)
    assert "could start now on" in said.out
    assert "nothing is booked behind it" in said.out
    cli("reserve", *ask)
    held = cli("reservation", "list", "--pool", pool.name, "-o", "json").data["items"][0]
    said = cli("reservation", "earliest", *ask, "-o", "json")
    [found] = said.data["pools"]
    assert (found["window"]["start"], found["window"]["until"]) == (held["end"], None)
    said = cli("reservation", "free-windows", *ask, "-k", "3")
    assert (said.code, said.out.count("├"), said.out.count(" in ")) == (0, 1, 1)
    said = cli("reservation", "earliest", "--pool", pool.name, "--gpus", "2", "--for", "2h")
    assert (said.code, "larger_than_any_node" in said.out) == (1, True)
    said = cli("reservation", "free-windows", *ask, "-k", "51")
    assert (said.code, "-k: " in said.err) == (2, True)


def test_windows_that_come_again_are_reserved_shown_and_released(cli, server):
    pool = server.pool("H100", "exclusive", ())
    [line] = [line.strip() for line in GUIDE.splitlines() if "--every" in line]
    words = line.replace("notebooks", pool.name).split()[1:]
    said = cli(*words, "-o", "json")
    made = said.data
    assert (said.code, made["states"], len(made["reservations"])) == (0, {"placed": 23}, 23)
    assert made["reservations"][0]["start"] == "2036-12-01T08:00:00Z"
    said = cli("series", "show", made["id"])
    assert (said.code, said.out.count("placed")) == (0, 24)
    said = cli(*words)
    assert (said.code, "23 of 23 windows have no room" in said.err) == (1, True)
    said = cli("series", "list", "--live")
    assert (made["id"] in said.out, "23 placed" in said.out) == (True, True)
    said = cli("series", "release", made["id"], "--yes", "-o", "json")
    assert said.data["states"] == {"ended": 23}
    [listed] = [
        each
        for each in cli("series", "list", "-o", "json").data["items"]
        if each["id"] == made["id"]
    ]
    assert listed["states"] == {"ended": 23}
    assert made["id"] not in cli("series", "list", "--live", "--all").out
    for wrong, flag in [
        (("--zone", "Europe/Atlantis"), "--zone"),
        (("--every", "someday"), "--every"),
        (("--to", "25:00"), "--to"),
        (("--starting", "2036-13-01"), "--starting"),
    ]:
        said = cli(*words, *wrong)
        assert (said.code, f" {flag}" in said.err) == (2, True), said.err
    said = cli(*words[:5], "--for", "2h", "--starting", "2036-12-01")
    assert (said.code, "--starting: " in said.err) == (2, True)


def test_a_reservation_without_an_end_says_so_until_it_is_given_one(cli, server):
    pool = server.pool("H100", "exclusive", (), openEnded=True)
    [line] = [line.strip() for line in GUIDE.splitlines() if "--open-ended" in line]
    words = line.replace("notebooks", pool.name).split()[1:]
    said = cli("reservation", "earliest", *words[1:])
    assert (said.code, "could start now on" in said.out) == (0, True)
    said = cli("reservation", "free-windows", *words[1:])
    assert (said.code, "9999" in said.out) == (0, False)
    said = cli(*words)
    assert (said.code, "until no end" in said.out, "9999" in said.out) == (0, True, False)
    said = cli("reservation", "list", "--pool", pool.name)
    assert (said.code, "no end" in said.out, "9999" in said.out) == (0, True, False)
    [made] = cli("reservation", "list", "--pool", pool.name, "-o", "json").data["items"]
    assert (made["end"], made["open_ended"]) == (None, True)
    said = cli("quota", "explain", pool.name, "gpu")
    assert (said.code, "no end" in said.out) == (0, True)
    said = cli("reservation", "earliest", "--pool", pool.name, "--gpus", "1", "--for", "2h")
    assert (said.code, "no start is in sight" in said.out) == (1, True)
    said = cli("reservation", "update", made["id"], "--for", "2h", "-o", "json")
    assert (said.code, said.data["open_ended"], said.data["end"] is None) == (0, False, False)


def test_no_end_is_refused_where_the_pool_or_another_flag_says_otherwise(cli, server):
    pool = server.pool("H100", "exclusive", ())
    words = ("reserve", "--pool", pool.name, "--gpus", "1", "--open-ended")
    said = cli(*words)
    assert (said.code, "--open-ended: " in said.err, "openEnded" in said.err) == (2, True, True)
    for wrong, flag in [
        (("--for", "2h"), "--for"),
        (("--before", "2036-12-01T18:00:00Z"), "--before"),
        (("--every", "weekday", "--from", "09:00", "--to", "17:00", "--zone", "UTC"), "--until"),
    ]:
        said = cli(*words, *wrong)
        assert (said.code, flag in said.err) == (2, True), said.err
