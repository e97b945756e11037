"""Why one waits is printed with what would help, and each command that is printed does."""

import shlex


def test_what_waits_is_explained_and_what_is_suggested_can_be_run(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"))
    words = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "2h")
    held = cli(*words, "-o", "json").data
    view = cli(*words, "-o", "json").data
    assert view["state"] == "pending"
    said = cli("reservation", "explain", view["id"])
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{view['id']}: pending ({pool.name})")
    assert f"{pool.name}: 0 of 1 nodes: 1 has no free 3g.40gb placement" in said.out
    assert "what would make it fit:" in lines
    assert "what it waited for:" in lines
    commands = [line.strip() for line in lines if line.strip().startswith("apportion ")]
    assert len(commands) >= 2
    for command in commands:
        assert cli(*shlex.split(command)[1:], "-o", "json").data["state"] in ("placed", "active")
    told = cli("reservation", "explain", view["id"], "-o", "json").data
    assert told["reservation"]["id"] == view["id"]
    assert [each["reason"]["code"] for each in told["history"]] == ["units_booked"]
    cli("reservation", "release", held["id"], "--yes")
    cli("reservation", "release", view["id"], "--yes")
    said = cli("reservation", "explain", view["id"])
    assert (said.code, "cancelled" in said.out) == (0, True)


def test_an_unknown_reservation_is_refused_by_its_id(cli, server):
    said = cli("reservation", "explain", "res_01kzzzzzzzzzzzzzzzzzzzzzzz")
    assert (said.code, "no such reservation" in said.err) == (1, True)


def test_a_pool_is_shown_with_what_is_free_and_the_largest_that_fits(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"))
    said = cli("pool", "show", pool.name)
    [line] = [line for line in said.out.splitlines() if line.startswith("gpu.mig  ")][-1:]
    assert line.split() == ["gpu.mig", "3", "3g.40gb"]
    assert "LARGEST REQUEST" in said.out
    told = cli("pool", "show", pool.name, "-o", "json").data
    assert told["capacity"]["free"][0]["largest_profile"] == "3g.40gb"
