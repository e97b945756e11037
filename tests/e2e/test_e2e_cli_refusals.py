"""Every flag given wrongly: the answer names the flag, what was given and what is allowed."""

import pytest

CREATE = ("pool", "create", "new", "--gpu-model", "H100")
MIG = ("reserve", "--pool", "MIG", "--mig", "3g.40gb")
RESERVE = (*MIG, "--for", "1h")
WHOLE = ("reserve", "--pool", "MIG", "--gpus", "1")


@pytest.fixture(scope="module")
def pools(server):
    """Give a pool of each kind by the words that stand for them below."""
    return {
        "MIG": server.pool("H100", "mig", ("3g.40gb@0", "3g.40gb@4"), ()).name,
        "SLOTS": server.pool("T4", "mps", (), replicas=4).name,
        "SHARES": server.pool("T4", "timeslice", (), shares=100).name,
        "EMPTY": server.pool("H100", "mig").name,
    }


BAD_INPUT = [
    # pool create
    (("pool", "create", "Not_A_Name", "--gpu-model", "H100"), "NAME", "'Not_A_Name'"),
    (("pool", "create", "new"), "--gpu-model", "required"),
    (("pool", "create", "new", "--gpu-model", ""), "--gpu-model", "given: ''"),
    ((*CREATE, "--sharing", "half"), "--sharing", "'half'"),
    ((*CREATE, "--class", "cloud"), "--class", "'cloud'"),
    ((*CREATE, "--sharing", "mps", "--replicas", "49"), "--replicas", "1 to 48"),
    ((*CREATE, "--sharing", "mps", "--replicas", "four"), "--replicas", "'four'"),
    ((*CREATE, "--sharing", "mps"), "--replicas", "replicas 1 to 48, or shares 100"),
    ((*CREATE, "--shares"), "--shares", "exclusive"),
    ((*CREATE, "--policy", "{"), "--policy", "is not JSON"),
    ((*CREATE, "--policy", "no-such-file"), "--policy", "No such file"),
    ((*CREATE, "--policy", '{"maxPending": "soon"}'), "policy.maxPending", "'soon'"),
    ((*CREATE, "--policy", "{}", "--quota", "gpu.mig"), "--quota", "RESOURCE=LIMIT"),
    ((*CREATE, "--quota", "gpu.mig=-1"), "--quota", "7/2, or unlimited"),
    ((*CREATE, "--quota", "fpga=1"), "--quota", "fpga"),
    ((*CREATE, "--key", ""), "--key", "given: ''"),
    ((*CREATE, "--provider-account", "x"), "--provider-account", "provider"),
    # what all lists have
    (("pool", "list", "--limit", "0"), "--limit", "1 to 1000"),
    (("pool", "list", "--limit", "1001"), "--limit", "1 to 1000"),
    (("pool", "list", "--limit", "-3"), "--limit", "'-3'"),
    (("pool", "list", "--cursor", "rubbish"), "--cursor", "'rubbish'"),
    (("pool", "list", "--all", "--limit", "3"), "--limit", "--all"),
    (("pool", "list", "--output", "xml"), "--output", "'xml'"),
    (("pool", "list", "--url", "nowhere"), "--url", "http://HOST:PORT"),
    (("pool", "list", "--sharing", "half"), "--sharing", "'half'"),
    (("pool", "list", "--gpu-model", ""), "--gpu-model", "given: ''"),
    (("pool", "list", "--name", "x"), "--name", "unrecognized"),
    (("pool", "list", "--gpu-model", "\udcff"), "--gpu-model", "UTF-8"),
    # pool show
    (("pool", "show", "MIG", "--limit", "3"), "--limit", "--draw"),
    (("pool", "show", "MIG", "--node", "n"), "--node", "--draw"),
    (("pool", "show", "MIG", "--draw", "--limit", "0"), "--limit", "1 to 1000"),
    (("pool", "show", "MIG", "--draw", "--node", ""), "--node", "given: ''"),
    # nodes and atoms
    (("node", "import", "MIG", "no-such-file"), "FILE", "No such file"),
    (("node", "import", "MIG", "-"), "FILE", "is not JSON"),
    (("node", "list", "--health", "ill"), "--health", "'ill'"),
    (("node", "show", ""), "NODE", "given: ''"),
    (("atom", "list", "--class", "cpu"), "--class", "'cpu'"),
    (("atom", "list", "--profile", "big"), "--profile", "'big'"),
    (("atom", "list", "--gpu", ""), "--gpu", "given: ''"),
    (("atom", "list", "--bookable", "--unbookable"), "--unbookable", "not allowed with"),
    # quotas, usage, events
    (("quota", "set", "MIG", "fpga", "3"), "RESOURCE", "'fpga'"),
    (("quota", "set", "MIG", "gpu", "-1"), "LIMIT", "'-1'"),
    (("quota", "set", "MIG", "gpu", "99999999999999999"), "LIMIT", "9007199254740992"),
    (("usage", "--since", "yesterday"), "--since", "'yesterday'"),
    (("usage", "--since", "2036-01-01T00:00Z"), "--since", "future"),
    (("usage", "--until", "2000-01-01T00:00Z"), "--until", "after the start"),
    (("event", "list", "--type", ""), "--type", "given: ''"),
    (("event", "list", "--subject", ""), "--subject", "given: ''"),
    (("event", "list", "--follow", "--limit", "3"), "--limit", "--follow"),
    (("event", "list", "--follow", "-o", "yaml"), "--output", "table, json"),
    (("event", "list", "--follow", "--cursor", "x"), "--cursor", "'x'"),
    # reservations
    (("reservation", "list", "--state", "lost"), "--state", "'lost'"),
    (("reservation", "list", "--name", ""), "--name", "given: ''"),
    (("reservation", "release", "res_x", "--no"), "--no", "unrecognized"),
    # reserve: the ask
    (("reserve", "--mig", "3g.40gb", "--for", "1h"), "--pool", "required"),
    (("reserve", "--pool", "", "--gpus", "1", "--for", "1h"), "--pool", "POOL,POOL"),
    (("reserve", "--pool", "MIG,MIG", "--gpus", "1", "--for", "1h"), "--pool", "twice"),
    (("reserve", "--pool", "MIG", "--for", "1h"), "--mig", "--vcpu"),
    (("reserve", "--pool", "MIG", "--mig", "3g", "--for", "1h"), "--mig", "'3g'"),
    (("reserve", "--pool", "MIG", "--fraction", "0,5", "--for", "1h"), "--fraction", "'0,5'"),
    (("reserve", "--pool", "MIG", "--fraction", "1.5", "--for", "1h"), "--fraction", "whole"),
    (("reserve", "--pool", "MIG", "--memory", "20", "--for", "1h"), "--memory", "needs a unit"),
    (("reserve", "--pool", "SLOTS", "--slots", "0", "--for", "1h"), "--slots", "1 to 48"),
    (("reserve", "--pool", "MIG", "--gpus", "0", "--for", "1h"), "--gpus", "1 to 10000"),
    (("reserve", "--pool", "MIG", "--gpus", "65", "--for", "1h"), "--gpus", "64"),
    ((*RESERVE, "--fraction", "0.5"), "--fraction", "not allowed with"),
    ((*RESERVE, "--count", "0"), "--count", "1 or more"),
    ((*RESERVE, "--count", "65"), "--count", "64"),
    ((*WHOLE, "--for", "1h", "--count", "2"), "--count", "--gpus alone"),
    ((*RESERVE, "--isolation", "total"), "--isolation", "exclusive, hardware, soft"),
    ((*RESERVE, "--name", ""), "--name", "given: ''"),
    ((*RESERVE, "--name", "a\nb"), "--name", "printable"),
    ((*RESERVE, "--key", ""), "--key", "given: ''"),
    ((*RESERVE, "--select", "colour=red"), "--select", "'colour'"),
    ((*RESERVE, "--select", "numaNode>"), "--select", "empty value"),
    ((*RESERVE, "--select", "slot=1"), "--select", "interchangeable"),
    ((*RESERVE, "--vcpu", "0.0001"), "--vcpu", "1/1000"),
    ((*RESERVE, "--vcpu", "many"), "--vcpu", "'many'"),
    ((*RESERVE, "--host-memory-gib", "64Gi"), "--host-memory-gib", "'64Gi'"),
    (
        ("reserve", "--pool", "MIG", "--vcpu", "1", "--for", "1h", "--count", "2"),
        "--count",
        "--mig",
    ),
    (("reserve", "--pool", "MIG", "--vcpu", "0", "--for", "1h"), "--vcpu", "host resources"),
    # reserve: the window
    (MIG, "--for", "required"),
    ((*MIG, "--for", "forever"), "--for", "'forever'"),
    ((*MIG, "--for", "0h"), "--for", "longer than 0"),
    ((*MIG, "--for", "1h", "--until", "2036-01-01T00:00Z"), "--until", "not allowed with"),
    ((*MIG, "--until", "2036-01-01T00:00Z"), "--from", "needed beside an end"),
    ((*MIG, "--from", "tomorrow", "--for", "1h"), "--from", "'tomorrow'"),
    ((*MIG, "--from", "2020-01-01T00:00Z", "--for", "1h"), "--from", "in the past"),
    (
        (*MIG, "--from", "2036-01-02T00:00Z", "--until", "2036-01-01T00:00Z"),
        "--until",
        "after the start",
    ),
]

REFUSED = [
    (("pool", "show", "nobody"), "POOL", "`apportion pool list`"),
    (("pool", "show", "pool_nobody"), "POOL", "no such pool"),
    (("pool", "list", "--token-file", "no-such-file"), "--token-file", "cannot be read"),
    ((*CREATE, "--site", "site_nobody"), "--site", "site"),
    (("node", "import", "nobody", "-"), "POOL", "no such pool"),
    (("node", "list", "--pool", "nobody"), "--pool", "no such pool"),
    (("node", "show", "nobody"), "NODE", "`apportion node list`"),
    (("node", "show", "node_nobody"), "NODE", "no such node"),
    (("atom", "list", "--pool", "nobody"), "--pool", "no such pool"),
    (("quota", "list", "nobody"), "POOL", "no such pool"),
    (("quota", "set", "nobody", "gpu", "1"), "POOL", "no such pool"),
    (("reservation", "show", "res_nobody"), "ID", "no such reservation"),
    (("reservation", "release", "res_nobody", "--yes"), "ID", "no such reservation"),
    (("reservation", "list", "--pool", "nobody"), "--pool", "no such pool"),
    (("reserve", "--pool", "nobody", "--gpus", "1", "--for", "1h"), "--pool", "no such pool"),
    (("reserve", "--pool", "MIG", "--slots", "1", "--for", "1h"), "--slots", "no fixed slots"),
    (("reserve", "--pool", "SLOTS", "--slots", "5", "--for", "1h"), "--slots", "one GPU's 4"),
    (
        ("reserve", "--pool", "SHARES", "--mig", "3g.40gb", "--for", "1h"),
        "--mig",
        "not split by MIG",
    ),
    (
        ("reserve", "--pool", "MIG", "--mig", "5g.40gb", "--for", "1h"),
        "--mig",
        "no profile 5g.40gb",
    ),
    (("reserve", "--pool", "MIG", "--memory", "200Gi", "--for", "1h"), "--memory", "more than"),
    (("reserve", "--pool", "EMPTY", "--mig", "3g.40gb", "--for", "1h"), "", "has no GPUs yet"),
    ((*RESERVE, "--isolation", "exclusive"), "--mig", "hardware isolation"),
    (("plan", "x", "--fraction", "0.5", "--pool", "nobody"), "--pool", "no such pool"),
    (("plan", "x", "--fraction", "0.5", "--pool", "EMPTY"), "", "has no GPUs yet"),
]


def named(words: tuple[str, ...], pools: dict[str, str]) -> list[str]:
    return [",".join(pools.get(part, part) for part in word.split(",")) for word in words]


@pytest.mark.parametrize(("words", "flag", "said"), BAD_INPUT)
def test_bad_input_is_exit_code_2_and_names_the_flag(cli, pools, words, flag, said):
    answer = cli(*named(words, pools))
    assert (answer.code, answer.out) == (2, ""), answer.err
    assert answer.err.startswith("error: ")
    assert flag in answer.err
    assert said in answer.err


@pytest.mark.parametrize(("words", "flag", "said"), REFUSED)
def test_a_refusal_is_exit_code_1_and_names_the_flag(cli, pools, words, flag, said):
    answer = cli(*named(words, pools), stdin="{}")
    assert (answer.code, answer.out) == (1, ""), answer.err
    assert answer.err.startswith("error: ")
    assert flag in answer.err
    assert said in answer.err


@pytest.mark.parametrize("noun", ["pool", "node", "atom", "quota", "reservation", "event"])
def test_a_noun_without_its_verb_names_the_verbs(cli, noun):
    answer = cli(noun)
    assert answer.code == 2
    assert "list" in answer.err


def test_nothing_of_what_was_refused_was_written(cli, pools):
    assert "new" not in [
        pool["name"] for pool in cli("pool", "list", "--all", "-o=json").data["items"]
    ]


def test_without_a_token_the_answer_says_what_to_set(cli, monkeypatch):
    monkeypatch.delenv("APPORTION_TOKEN_FILE")
    answer = cli("pool", "list")
    assert (answer.code, "Set APPORTION_TOKEN" in answer.err) == (1, True)


def test_a_token_file_on_the_command_line_beats_a_token_of_the_environment(
    cli, monkeypatch, server
):
    monkeypatch.setenv("APPORTION_TOKEN", "apt_wrong")
    assert cli("pool", "list").code == 1
    assert cli("pool", "list", "--token-file", str(server.token_file)).code == 0


def test_a_wrong_address_of_the_environment_is_named_as_such(cli, monkeypatch):
    monkeypatch.setenv("APPORTION_URL", "nowhere")
    assert "APPORTION_URL: is not the address of a server" in cli("pool", "list").err
