"""Calendars on the command line: lines of time with the gap marked, in the user's zone."""


def test_a_gpus_calendar_draws_windows_and_their_gap(cli, server):
    pool = server.pool("H100", "exclusive", ())
    words = ("pool", "update", pool.name, "--set", "window.gap=6h")
    assert cli(*words).code == 0
    day = ("--from", "2036-12-01T00:00:00Z", "--until", "2036-12-02T00:00:00Z")
    words = ("reserve", "--pool", pool.name, "--gpus", "1", "--name", "sweep")
    held = cli(*words, "--from", "2036-12-01T06:00:00Z", "--for", "6h", "-o", "json").data
    gpu_id = held["bookings"][0]["gpu_id"]
    said = cli("gpu", "calendar", gpu_id, *day, "--zone", "Europe/Berlin")
    assert said.code == 0, said.err
    lane = "·" * 15 + "■" * 15 + "─" * 15 + "·" * 15
    assert f"{lane}  whole GPU" in said.out
    assert "■ held  ─ kept free behind it  · free" in said.out
    assert "sweep" in said.out
    assert "2036-12-01 07:00:00 CET" in said.out
    assert "2036-12-01 19:00:00 CET" in said.out
    data = cli("gpu", "calendar", gpu_id, *day, "-o", "json").data
    [window] = data["windows"]
    assert (window["reservation_id"], window["held_until"]) == (held["id"], "2036-12-01T18:00:00Z")
    drawn = cli("pool", "calendar", pool.name, *day)
    assert (drawn.code, f"GPU 0 ({gpu_id})" in drawn.out, lane in drawn.out) == (0, True, True)
    for wrong, flag in [
        (("gpu", "calendar", "GPU-nobody"), "GPU"),
        (("gpu", "calendar", gpu_id, "--until", "2099-01-01T00:00:00Z"), "--until"),
        (("pool", "calendar", pool.name, "--limit", "0"), "--limit"),
    ]:
        refused = cli(*wrong)
        assert refused.code != 0
        assert f"error: {flag}: " in refused.err


def test_a_pools_calendar_draws_so_many_gpus_and_says_that_there_are_more(cli, server):
    pool = server.pool("T4", "exclusive", (), (), ())
    said = cli("pool", "calendar", pool.name, "--limit", "2")
    assert (said.code, said.out.count(" GPU "), said.out.count("·" * 60)) == (0, 2, 2)
    assert "(2 GPUs drawn" in said.err
    data = cli("pool", "calendar", pool.name, "-o", "json").data
    assert [len(each["windows"]) for each in data["calendars"]] == [0, 0, 0]
