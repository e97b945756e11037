"""What a first user does, and does wrongly: each refusal names the flag, each hint can be typed."""

import re
import shlex

import pytest


@pytest.fixture
def lent(cli, server, tmp_path):
    """Give a pool that is offered to a tenant, and the flags by which one acts for that."""
    pool = server.pool("H100", "mig", ("3g.40gb@4", "1g.10gb@0"))
    tenant = f"t-{pool.name}"
    assert cli("tenant", "create", tenant).code == 0
    assert cli("pool", "offer", pool.name, tenant, "--quota", "gpu.mig=1").code == 0
    return pool, ("--tenant", tenant)


OWNERS = [
    ("layout", "status", "POOL"),
    ("layout", "plan", "POOL", "all-1g.10gb"),
    ("defrag", "POOL"),
    ("pool", "update", "POOL", "--set", "maxPending=1h"),
    ("pool", "archive", "POOL", "--yes"),
    ("pool", "offers", "POOL"),
    ("pool", "unoffer", "POOL", "root", "--yes"),
    ("node", "join-token", "create", "POOL"),
    ("node", "import", "POOL", "-"),
]


@pytest.mark.parametrize("words", OWNERS, ids=lambda words: " ".join(words[:2]))
def test_who_only_uses_a_pool_is_told_whose_it_is_and_not_that_there_is_none(cli, lent, words):
    pool, acting = lent
    given = [pool.name if word == "POOL" else word for word in words]
    said = cli(*given, *acting, stdin='{"node": "n"}')
    assert (said.code, said.out) == (1, "")
    assert f"POOL: is root's, who offers it; only its owner does that (given: '{pool.name}')" in (
        said.err
    )
    assert pool.id not in said.err


def test_a_tenant_that_cannot_be_acted_for_is_refused_by_its_flag_or_variable(cli, monkeypatch):
    said = cli("pool", "list", "--tenant", "nobody")
    assert (said.code, said.err) == (1, "error: --tenant: no such tenant (given: 'nobody')\n")
    monkeypatch.setenv("APPORTION_TENANT", "nobody")
    said = cli("pool", "list")
    assert said.err == "error: APPORTION_TENANT: no such tenant (given: 'nobody')\n"
    monkeypatch.delenv("APPORTION_TENANT")
    said = cli("tenant", "show", "nobody")
    assert said.err.startswith("error: ID: no such tenant (given: 'nobody')")


def test_a_quota_that_is_used_up_is_told_with_the_name_of_the_pool(cli, lent):
    pool, acting = lent
    ask = ("reserve", "--pool", pool.name, "--mig", "1g.10gb", "--count", "2", "--for", "1h")
    said = cli(*ask, *acting)
    assert said.code == 1
    assert f"asks for 2 gpu.mig of {pool.name}, and there is 1 left" in said.err


def test_what_waits_is_followed_by_what_explains_it_and_what_waits_for_it(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    ask = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "1h")
    assert "reservation explain" not in cli(*ask).out
    said = cli(*ask)
    assert said.code == 1
    following = said.out.partition("Next:\n")[2].splitlines()
    assert [line.split()[2] for line in following] == ["explain", "wait", "release"]
    explain, wait, release = (shlex.split(line)[1:] for line in following)
    assert cli(*explain).code == 0
    assert cli(*wait, "--timeout", "1s").code == 1
    over = cli(*release, "--yes")
    assert "cancelled" in over.out
    env = cli("env", release[-1])
    assert (env.code, "it has no devices while it is ended" in env.err) == (1, True)
    assert "reservation wait" not in env.err


def test_a_placed_one_is_not_said_to_be_placed_twice(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    ask = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--from", "2036-01-01T00:00Z")
    view = cli(*ask, "--for", "1h", "-o", "json").data
    said = cli("reservation", "wait", view["id"], "--timeout", "1s")
    assert said.out == f"{view['id']}: placed in {pool.name} on {pool.name}-n\n"


def test_a_slip_in_a_policy_is_stored_and_said(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    update = ("pool", "update", pool.name)
    said = cli(*update, "--set", "maxpending=6h", "--set", "windw.gap=10m")
    assert said.code == 0
    assert said.err.splitlines() == [
        "unknown: maxpending is stored as given; did you mean maxPending?",
        "unknown: windw is stored as given; did you mean window?",
    ]
    assert cli(*update, "--unset", "windw").err == ""
    slip = ("--gpu-model", "H100", "--policy", '{"maxpending": "6h"}')
    assert "did you mean maxPending?" in cli("pool", "create", f"{pool.name}-slip", *slip).err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--set", "window.gap=10x"), "--set (policy.window.gap): is not a duration"),
        (("--policy", '{"maxPending": "x"}'), "--policy (policy.maxPending): is not a duration"),
    ],
)
def test_a_bad_policy_is_refused_by_the_flag_that_it_came_in_by(cli, server, flags, named):
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    said = cli("pool", "update", pool.name, *flags)
    assert (said.code, named in said.err) == (2, True)
    checked = cli("pool", "validate", "--pool", pool.name, *flags)
    assert (checked.code, named in checked.out) == (1, True)


def test_the_hint_of_an_empty_list_of_series_can_be_typed(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",), openEnded=True)
    hint = cli("series", "list", "--name", "nobody").out.partition("Make one: apportion ")[2]
    given = {"POOL": pool.name, "--gpus": "--mig", "1": "3g.40gb"}
    given |= {"ZONE": "Europe/Berlin", "DATE": "2036-01-31"}
    words = [given.get(word, word) for word in hint.split()]
    made = cli(*words, "--starting", "2036-01-01")
    assert made.code == 0
    series = re.search(r"ser_\w+", made.out)[0]
    assert f"apportion series release {series}" in made.out
    over = cli("series", "release", series, "--yes")
    assert "Next:" not in over.out


def test_what_is_drawn_of_a_pool_are_its_first_gpus(cli, server):
    pool = server.pool("H100", "mig", *[("3g.40gb@4",) for _ in range(6)])
    first = [f"{pool.name}-n GPU {at}" for at in range(3)]
    drawn = cli("pool", "calendar", pool.name, "--limit", "3").out
    assert re.findall(rf"{pool.name}-n GPU \d", drawn) == first
    drawn = cli("pool", "show", pool.name, "--draw", "--limit", "3").out
    assert re.findall(rf"{pool.name}-n GPU \d", drawn) == first


def test_what_others_hold_is_drawn_as_held(cli, lent):
    pool, acting = lent
    draw = ("pool", "show", pool.name, "--draw")
    assert "1g.10gb free" in cli(*draw).out.replace("a = ", "")
    ask = ("reserve", "--pool", pool.name, "--mig", "1g.10gb", "--for", "1h", "--name", "theirs")
    assert cli(*ask, *acting).code == 0
    ours = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "1h", "--name", "ours")
    assert cli(*ours).code == 0
    seen = {who: cli(*draw, *flags).out for who, flags in (("owner", ()), ("user", acting))}
    assert "1g.10gb theirs" in seen["owner"]
    assert "3g.40gb ours" in seen["owner"]
    assert "1g.10gb theirs" in seen["user"]
    assert "3g.40gb reserved" in seen["user"]
    assert "ours" not in seen["user"]
    assert all("gb free" not in text for text in seen.values())
    [told] = cli(*draw, *acting, "-o", "json").data["gpus"]
    assert {(each["what"], each["name"]) for each in told["holders"]} == {
        ("reservation", "theirs"),
        ("reserved", None),
    }


def test_doctor_asks_nobody_for_nodes_who_only_uses_what_others_offer(cli, lent):
    _, acting = lent
    findings = {
        each["check"]: each for each in cli("doctor", *acting, "-o", "json").data["findings"]
    }
    assert (findings["nodes"]["result"], findings["nodes"]["hint"]) == ("ok", None)


@pytest.mark.parametrize("noun", ["reservation", "series", "token", "tenant", "policy", "site"])
def test_what_is_not_there_is_refused_with_the_list_that_has_it(cli, noun):
    said = cli(noun, "show", "nobody")
    assert (said.code, f"`apportion {noun} list` shows them" in said.err) == (1, True)
    assert cli(noun, "list").code == 0


def test_a_gang_is_told_which_of_its_members_has_no_room(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",), ("3g.40gb@4",))
    ask = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "1h")
    view = cli(*ask, "--gang", "3", "-o", "json").data
    said = cli("reservation", "explain", view["id"])
    assert "1 has no free 3g.40gb placement for member 3 of 3" in said.out
    assert "ask for 2 of its members" in said.out
    [told] = cli("reservation", "explain", view["id"], "-o", "json").data["pools"]
    assert told["what"] == "3g.40gb placement for member 3 of 3"


def test_hours_of_a_planned_change_can_be_read(cli, server):
    pool = server.pool("H100", "mig", ("3g.40gb@4",), ("3g.40gb@4",))
    ask = ("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "7h", "-o", "json")
    assert cli(*ask).data["state"] == "active"
    plan = ("layout", "plan", pool.name, "all-1g.10gb")
    said = cli(*plan).out
    assert re.search(r"idle while held +\d+\.\d\d GPU hours at most\n", said)
    assert re.search(rf"{pool.name}-n .* \d+\.\d\d\n", said)
    assert "/" in cli(*plan, "-o", "json").data["idle_gpu_hours"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--from", "9"), "--from: is no time of day (given: '9'); allowed: HH:MM such as 09:00"),
        (("--to", "24:00"), "--to: is no time of day (given: '24:00')"),
        (("--until", "friday"), "--until: is no date (given: 'friday'); allowed: YYYY-MM-DD"),
        (("--starting", "1.1.2036"), "--starting: is no date (given: '1.1.2036')"),
    ],
)
def test_times_of_a_series_are_refused_in_words(cli, server, change, said):
    pool = server.pool("H100", "mig", ("3g.40gb@4",))
    flags = {"--every": "weekday", "--from": "9:00", "--to": "17:00", "--zone": "Europe/Berlin"}
    flags |= {"--starting": "2036-01-01", "--until": "2036-01-09"}
    ask = ("reserve", "--pool", pool.name, "--mig", "3g.40gb")

    def words(given):
        return [word for pair in given.items() for word in pair]

    refused = cli(*ask, *words(flags | dict([change])))
    assert (refused.code, said in refused.err) == (2, True)
    assert "from 09:00 to 17:00" in cli(*ask, *words(flags)).out


@pytest.mark.parametrize(
    "words",
    [("pool", "create", "A B", "--gpu-model", "H100"), ("tenant", "create", "Équipe")],
    ids=["pool", "tenant"],
)
def test_a_name_that_cannot_be_one_is_refused_in_words(cli, words):
    said = cli(*words)
    assert said.code == 2
    assert "is not of the form that is allowed" in said.err
    assert "allowed: 1 to 63 lower-case letters" in said.err
    assert "^" not in said.err
