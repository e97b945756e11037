"""What the commands of the control plane refuse, and how they name what was wrong or is missing."""

import pytest
from said import data

BAD_INPUT = [
    (("tenant", "create", "Not An Id"), "ID", "'Not An Id'"),
    (("tenant", "create", "x", "--name", ""), "--name", "given: ''"),
    (("tenant", "list", "--tree", "--limit", "3"), "--limit", "--tree"),
    (("tenant", "list", "--tree", "-o", "json"), "--output", "--tree"),
    (("token", "create", "x", "--role", "king"), "--role", "'king'"),
    (("token", "create", "x"), "--role", "required"),
    (("token", "create", "x", "--role", "viewer", "--for", "ever"), "--for", "'ever'"),
    (("token", "create", "x", "--role", "viewer", "--until", "soon"), "--until", "'soon'"),
    (("token", "create", "x", "--role", "viewer", "--action", "compute"), "--action", "compute"),
    (("token", "list", "--state", "lost"), "--state", "'lost'"),
    (("policy", "create", "x", "-f", "no-such-file"), "--file", "No such file"),
    (("policy", "create", "x", "-f", "-"), "--file", "no Cedar policy"),
    (("policy", "check", "compute:pools:creat"), "ACTION", "compute:pools:create"),
    (("policy", "check", "compute:pools:create"), "pool", "gpuModel"),
    (("policy", "check", "compute:pools:create", "--role", "king"), "--role", "'king'"),
    (
        ("policy", "check", "compute:reservations:create", "--gpu-count", "-1"),
        "--gpu-count",
        "'-1'",
    ),
    (("policy", "check", "compute:pools:read", "--for", "long"), "--for", "'long'"),
    (("site", "create", "x"), "--region", "required"),
    (("site", "create", "X Y", "--region", "eu"), "NAME", "'X Y'"),
    (("site", "create", "x", "--region", "eu", "--kind", "cloud"), "--kind", "'cloud'"),
    (("pool", "validate"), "NAME", "--pool POOL"),
    (("pool", "validate", "x"), "--gpu-model", "needed"),
    (("pool", "validate", "x", "--gpu-model=T4", "--set", "a=1"), "--set", "without --pool"),
    (("pool", "validate", "--pool", "P", "--site", "x"), "--site", "together with --pool"),
    (("pool", "update", "P"), "--policy", "--set"),
    (("pool", "update", "P", "--set", "a"), "--set", "KEY=VALUE"),
    (("pool", "update", "P", "--unset", "a"), "--unset", "no such field"),
    (("pool", "update", "P", "--policy", "[]"), "--policy", ""),
    (("pool", "offer", "P", "T", "--quota", "gpu"), "--quota", "RESOURCE=LIMIT"),
    (("pool", "offer", "P", "T", "--quota", "fpga=1"), "--quota", "fpga"),
    (("pool", "offer", "P", "T", "--priority", "1001"), "--priority", "1001"),
    (("pool", "offer", "P", "T", "--priority=-1001"), "--priority", "-1001"),
    (("pool", "offer", "P", "T", "--priority", "high"), "--priority", "'high'"),
    (("pool", "offer", "P", "root"), "TENANT", ""),
    (("quota", "explain", "P", "gpu", "--limit", "0"), "--limit", "1 to 1000"),
    (("quota", "set", "P", "gpu", "2.5"), "LIMIT", "2.5"),
    (("event", "watch", "--after", "rubbish"), "--after", "'rubbish'"),
    (("event", "watch", "-o", "yaml"), "--output", "table, json"),
    (("audit", "list", "--since", "yesterday"), "--since", "'yesterday'"),
    (("webhook", "create", "x", "--to", "ftp://x"), "--to", "'ftp://x'"),
    (("webhook", "create", "x", "--to", "https://x.example", "--type", "P!"), "--type", "P!"),
    (("api",), "OPERATION", "--list"),
    (("api", "get_caller", "--list"), "OPERATION", "--list"),
    (("api", "get_calle"), "OPERATION", "Did you mean get_caller"),
    (("api", "stream_events"), "OPERATION", "event watch"),
    (("api", "get_pool"), "--parameter", "pool_id=…"),
    (("api", "get_caller", "-p", "x=1"), "--parameter", "no such parameter"),
    (("api", "get_caller", "-p", "x"), "--parameter", "is no parameter"),
    (("api", "list_pools", "-p", "name=a", "-p", "name=b"), "--parameter", "twice"),
    (("api", "list_pools", "-p", "name=\udcff"), "--parameter", "UTF-8"),
    (("api", "get_caller", "-f", "{}"), "--file", "takes no body"),
    (("api", "create_site"), "--file", "needs a body"),
    (("api", "create_site", "-f", "{"), "--file", "is not JSON"),
    (("caller", "show", "--tenant", "a b"), "--tenant", "'a b'"),
    (("completion", "powershell"), "SHELL", "'powershell'"),
]
REFUSED = [
    (("tenant", "show", "never-was"), "ID", "no such tenant"),
    (("tenant", "create", "x", "--parent", "never-was"), "--parent", "no such tenant"),
    (("tenant", "delete", "root", "--yes"), "ID", "root"),
    (("tenant", "create", "T"), "ID", "taken"),
    (("token", "show", "tok_none"), "ID", "no such token"),
    (("token", "revoke", "tok_none", "--yes"), "ID", "no such token"),
    (("policy", "show", "nothing"), "POLICY", "`apportion policy list`"),
    (("policy", "show", "pol_none"), "POLICY", "no such policy"),
    (("policy", "check", "compute:pools:read", "--token", "tok_none"), "--token", "no such token"),
    (("site", "show", "nowhere"), "SITE", "`apportion site list`"),
    (("site", "delete", "site_none", "--yes"), "SITE", "no such site"),
    (("pool", "create", "x", "--gpu-model=T4", "--site", "nowhere"), "--site", "no such site"),
    (("pool", "update", "nobody", "--set", "a=1"), "POOL", "no such pool"),
    (("pool", "archive", "nobody", "--yes"), "POOL", "no such pool"),
    (("pool", "offer", "P", "never-was"), "TENANT", "no such tenant"),
    (("pool", "offers", "nobody"), "POOL", "no such pool"),
    (("quota", "set", "P", "gpu", "1", "--of", "never-was"), "--of", "no such tenant"),
    (("quota", "show", "P", "gpu", "--of", "never-was"), "RESOURCE", "no such quota"),
    (("webhook", "show", "nothing"), "WEBHOOK", "`apportion webhook list`"),
    (("webhook", "show", "whk_none"), "WEBHOOK", "no such webhook"),
]


@pytest.fixture(scope="module")
def standing(server):
    """Give a pool P and a tenant T for all that is refused."""
    name = "standing"
    with server.client() as client:
        client.create_tenant({"id": name, "name": name})
    return {"P": server.pool("T4", "exclusive").name, "T": name}


@pytest.mark.parametrize(("words", "flag", "said"), BAD_INPUT)
def test_bad_input_is_exit_code_2_and_names_the_flag(cli, standing, words, flag, said):
    answer = cli(*(standing.get(word, word) for word in words), stdin="permit")
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ")
    assert flag in answer.err
    assert said in answer.err


@pytest.mark.parametrize(("words", "flag", "said"), REFUSED)
def test_a_refusal_is_exit_code_1_and_names_the_flag(cli, standing, words, flag, said):
    answer = cli(*(standing.get(word, word) for word in words))
    assert (answer.code, answer.out) == (1, ""), answer
    assert answer.err.startswith("error: ")
    assert flag in answer.err
    assert said in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("token", "list"),
        ("policy", "list"),
        ("site", "list"),
        ("pool", "list"),
        ("webhook", "list"),
        ("quota", "list"),
    ],
)
def test_an_empty_list_says_what_to_type(cli, tenant, words):
    said = cli(*words, "--tenant", tenant)
    assert (said.code, said.out[:2], said.err) == (0, "No", "")
    assert f"apportion {words[0]} " in said.out
    assert data(cli(*words, "--tenant", tenant, "-o", "json"))["items"] == []


@pytest.mark.parametrize(
    "noun", ["caller", "tenant", "token", "role", "policy", "site", "audit", "webhook"]
)
def test_a_noun_without_its_verb_names_the_verbs(cli, noun):
    answer = cli(noun)
    assert (answer.code, answer.out) == (2, "")
    assert f"see apportion {noun} --help" in answer.err
    assert "required: " in answer.err
