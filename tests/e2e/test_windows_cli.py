"""A reservation's end is moved from the command line."""


def test_an_end_is_moved_and_a_refusal_names_the_flag_and_until_when(cli, server):
    pool = server.pool("H100", "exclusive", ())
    words = ("reserve", "--pool", pool.name, "--gpus", "1")
    first = cli(*words, "--from", "2036-12-01T09:00:00Z", "--for", "1h", "-o", "json").data
    cli(*words, "--from", "2036-12-01T12:00:00Z", "--for", "1h")
    said = cli("reservation", "update", first["id"], "--for", "2h")
    assert (said.code, "2h in all" in said.out) == (0, True)
    said = cli("reservation", "update", first["id"], "--until", "2036-12-01T13:00:00Z")
    assert said.code == 1
    assert "--until: others have booked units of its GPU by then" in said.err
    assert "allowed: an end until 2036-12-01T12:00:00Z" in said.err
    said = cli(
        "reservation", "update", first["id"], "--until", "2036-12-01T12:00:00Z", "-o", "json"
    )
    assert said.data["end"] == "2036-12-01T12:00:00Z"
    said = cli("reservation", "update", first["id"], "--for", "soon")
    assert (said.code, "--for: " in said.err) == (2, True)
