"""Tenants, tokens, sites, pools, offers, policies and webhooks from the command line."""

import itertools
import json
import re
import signal
import stat
import subprocess
import sys

import pytest
from said import Said

from apportion.testing.builders import gpu, inventory

_numbers = itertools.count(1)
FORBID = """\
forbid (principal, action == Action::"compute:reservations:create", resource)
when { context.gpuCount > 1 };
"""


@pytest.fixture
def tenant(cli):
    """Create a tenant of this test's own under root."""
    name = f"acme-{next(_numbers)}"
    assert cli("tenant", "create", name).code == 0
    return name


@pytest.fixture
def token(cli, tenant, tmp_path):
    """Give the file with an owner's token of the tenant."""
    path = tmp_path / "acme.token"
    made = cli(
        "token", "create", "admin", "--role", "owner", "--tenant", tenant, "--out", str(path)
    )
    assert made.code == 0, made.err
    return str(path)


@pytest.fixture
def pool(cli, server):
    """Make a pool of one T4 with its owner root."""
    made = server.pool("T4", "exclusive")
    with server.client() as client:
        node = f"{made.name}-n"
        client.join_node(made.id, inventory(node, gpu("T4", 0, node=node)))
    return made


def data(said: Said):
    assert said.code == 0, said.err
    return said.data


# the whole story ----------------------------------------------------------------------------------


def test_a_tenant_gets_a_pool_uses_it_and_gives_it_back(cli, tenant, token, pool, tmp_path):
    as_tenant = ("--token-file", token)
    reserve = ("reserve", "--pool", pool.name, "--for", "1h", *as_tenant)
    before = cli(*reserve, "--gpus", "1")
    assert (before.code, "no such pool" in before.err) == (1, True)

    offered = data(
        cli("pool", "offer", pool.name, tenant, "--quota=gpu=32", "--priority=10", "-o", "json")
    )
    assert (offered["priority"], offered["include_descendants"]) == (10, False)
    [seen] = data(cli("pool", "list", *as_tenant, "-o", "json"))["items"]
    assert (seen["owned"], seen["archived"], seen["id"]) == (False, False, pool.id)
    assert {q["resource"]: q["max"] for q in seen["quotas"]}["gpu"] == 32
    assert data(cli(*reserve, "--gpus", "1", "-o", "json"))["state"] == "active"

    explained = data(cli("quota", "explain", pool.name, "gpu", "--of", tenant, "-o", "json"))
    assert (explained["quota"]["used"], explained["accounted"]) == (1, 1)
    [user] = explained["reservations"]
    assert user["id"] in cli("quota", "explain", pool.name, "gpu", *as_tenant).out
    assert "available 31" in cli("quota", "show", pool.name, "gpu", "--of", tenant).out

    file = tmp_path / "at-most-1.cedar"
    file.write_text(FORBID)
    assert cli("policy", "create", "at-most-1", "-f", str(file), *as_tenant).code == 0
    refused = cli(*reserve, "--gpus", "2")
    assert refused.code == 1
    assert "at-most-1" in refused.err

    assert cli("pool", "unoffer", pool.name, tenant, "--yes").out == (
        f"{pool.name} is no longer offered to {tenant}\n"
    )
    assert data(cli("pool", "list", *as_tenant, "-o", "json"))["items"] == []
    states = [
        each["state"] for each in data(cli("reservation", "list", *as_tenant, "-o=json"))["items"]
    ]
    assert states == ["active"]  # what runs runs on

    assert "(archived)" in cli("pool", "archive", pool.name, "--yes").out
    gone = data(cli("tenant", "delete", tenant, "--yes", "-o", "json"))
    assert (gone["tenant"]["id"], gone["ended_reservations"], gone["revoked_tokens"]) == (
        tenant,
        1,
        1,
    )
    assert cli("caller", "show", *as_tenant).code == 1


# tenants and callers ------------------------------------------------------------------------------


def test_the_caller_is_shown_and_so_is_for_whom_it_acts(cli, tenant):
    own = cli("caller", "show")
    assert own.out.startswith("tenant root\n")
    assert "token of" not in own.out
    acting = cli("caller", "show", "--tenant", tenant)
    assert acting.out.startswith(f"tenant {tenant}\n")
    assert re.search(r"token of +root", acting.out)
    assert data(cli("caller", "show", "-o", "json"))["role"] == "owner"


def test_a_variable_says_for_whom_one_acts_and_the_flag_beats_it(cli, tenant, monkeypatch):
    monkeypatch.setenv("APPORTION_TENANT", tenant)
    assert data(cli("caller", "show", "-o=json"))["tenant_id"] == tenant
    assert data(cli("caller", "show", "--tenant", "root", "-o=json"))["tenant_id"] == "root"


def test_a_tenant_that_is_not_below_is_not_found(cli, token):
    said = cli("caller", "show", "--tenant", "root", "--token-file", token)
    never = cli("caller", "show", "--tenant", "never-was", "--token-file", token)
    assert (said.code, never.code) == (1, 1)
    assert said.err.replace("root", "X") == never.err.replace("never-was", "X")


def test_tenants_are_drawn_listed_renamed_and_deleted(cli, tenant):
    child = f"{tenant}-ml"
    made = cli("tenant", "create", child, "--parent", tenant, "--name", "Machine Learning")
    assert f"root > {tenant} > {child}" in made.out
    tree = cli("tenant", "list", "--tree").out
    assert re.search(rf"── {child} +Machine Learning", tree)
    listed = data(cli("tenant", "list", "--parent", tenant, "-o", "json"))["items"]
    assert [each["id"] for each in listed] == [child]
    assert cli("tenant", "rename", child, "ML").out.startswith("ML\n")
    assert data(cli("tenant", "show", child, "-o", "json"))["name"] == "ML"
    living = cli("tenant", "delete", tenant, "--yes")
    assert (living.code, child in living.err) == (1, True)
    assert cli("tenant", "delete", child, "--yes").code == 0
    ids = [each["id"] for each in data(cli("tenant", "list", "--all", "-o=json"))["items"]]
    assert child not in ids
    assert f"{child}" in cli("tenant", "list", "--deleted", "--all").out


def test_what_ends_something_is_not_done_where_nobody_can_be_asked(cli, tenant, pool):
    for words in [
        ("tenant", "delete", tenant),
        ("pool", "archive", pool.name),
        ("pool", "unoffer", pool.name, tenant),
        ("token", "revoke", "tok_x"),
    ]:
        said = cli(*words)
        assert (said.code, said.out) == (2, "")
        assert "--yes: nobody can be asked" in said.err
    assert data(cli("tenant", "show", tenant, "-o=json"))["deleted_at"] is None
    assert data(cli("pool", "show", pool.id, "-o=json"))["archived"] is False


# tokens -------------------------------------------------------------------------------------------


def test_a_secret_goes_to_a_file_and_is_never_printed(cli, tenant, tmp_path):
    path = tmp_path / "ci.token"
    words = ("token", "create", "ci", "--role", "member", "--tenant", tenant, "--for", "90d")
    made = cli(*words, "--out", str(path), "-o", "json")
    secret = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.startswith("apt_")
    assert secret not in made.out + made.err
    assert set(data(made)) == {"record"}
    shown = cli("caller", "show", "--token-file", str(path))
    assert re.search(r"role +member", shown.out)
    assert cli("tenant", "create", "x", "--token-file", str(path)).code == 1

    token_id = data(made)["record"]["id"]
    turned = cli("token", "rotate", token_id, "--tenant", tenant, "--out", str(path))
    assert turned.code == 0, turned.err
    assert path.read_text().strip() not in {secret, ""}
    assert cli("caller", "show", "--token-file", str(path)).code == 0
    (tmp_path / "old.token").write_text(secret)
    assert cli("caller", "show", "--token-file", str(tmp_path / "old.token")).code == 1

    assert "revoked" in cli("token", "revoke", token_id, "--tenant", tenant, "--yes").out
    assert cli("caller", "show", "--token-file", str(path)).code == 1
    listed = cli("token", "list", "--state", "revoked", "--tenant", tenant).out
    assert token_id in listed


def test_a_secret_without_a_file_is_shown_once(cli, tenant):
    words = ("token", "create", "seen", "--role", "viewer", "--tenant", tenant)
    made = data(cli(*words, "--action", "compute:pools:*", "-o", "json"))
    assert made["token"].startswith("apt_")
    assert made["record"]["actions"] == ["compute:pools:*"]
    assert re.search(r"^apt_\S+$", cli(*words).out, re.MULTILINE)
    token_id = made["record"]["id"]
    shown = cli("token", "show", token_id, "--tenant", tenant)
    assert "apt_" not in shown.out
    assert made["token"] not in cli("token", "list", "--tenant", tenant, "-o", "json").out


def test_a_file_that_is_there_stops_the_creation_before_it_happens(cli, tenant, tmp_path):
    path = tmp_path / "kept"
    path.write_text("mine")
    words = ("token", "create", "never", "--role", "viewer", "--tenant", tenant)
    said = cli(*words, "--out", str(path))
    assert (said.code, path.read_text()) == (2, "mine")
    assert data(cli("token", "list", "--tenant", tenant, "-o=json"))["items"] == []


# policies -----------------------------------------------------------------------------------------


def test_a_policy_is_added_explained_changed_and_taken_away(cli, tenant, pool, tmp_path):
    file = tmp_path / "p.cedar"
    file.write_text(FORBID)
    here = ("--tenant", tenant)
    made = data(cli("policy", "create", "few", "-f", str(file), *here, "-o=json"))
    assert (made["effect"], made["version"]) == ("forbid", 1)
    assert "few" in cli("policy", "list", *here).out

    ask = ("policy", "check", "compute:reservations:create", "--role", "member", *here)
    attributes = ("--gpu-model=T4", "--class=metal-host", "--sharing=exclusive", "--region=fra1")
    asked = (*ask, *attributes, "--no-owned", "--for", "4h")
    denied = cli(*asked, "--gpu-count", "2")
    assert (denied.code, denied.out.split(":")[0]) == (1, "denied")
    assert "forbid by few (of tenant" in denied.out
    assert "context.gpuCount > 1" in denied.out
    allowed = cli(*asked, "--gpu-count", "1", "--gpu-slices", "5")
    assert (allowed.code, allowed.out.split(":")[0]) == (0, "allowed")
    assert "permit by role member (built in)" in allowed.out
    assert cli(*asked, "--gpu-count", "2", "-o", "json").data["allowed"] is False
    by_pool = cli("policy", "check", "compute:pools:manage", "--pool", pool.name)
    assert by_pool.code == 0, by_pool.err

    file.write_text(FORBID.replace("> 1", "> 4"))
    changed = data(cli("policy", "update", "few", "-f", str(file), *here, "-o=json"))
    assert changed["version"] == 2
    assert cli(*asked, "--gpu-count", "2").code == 0  # with the very next request
    late = cli("policy", "update", "few", "-f", str(file), "--version", "1", *here)
    assert (late.code, "--version" in late.err) == (1, True)
    assert cli("policy", "delete", "few", "--yes", *here).code == 0
    assert cli("policy", "list", *here).out.startswith("No policies")


def test_roles_are_shown_by_action(cli):
    said = cli("role", "list")
    assert said.out.split("\n")[0].split() == [
        *("ACTION", "OWNER", "OPERATOR", "MEMBER", "VIEWER", "NODE")
    ]
    row = next(line for line in said.out.splitlines() if "compute:tenants:delete" in line)
    assert row.split() == ["compute:tenants:delete", "yes"]
    roles = {each["role"]: each for each in data(cli("role", "list", "-o=json"))["items"]}
    assert "compute:reservations:create" in roles["member"]["actions"]


# sites and pools ----------------------------------------------------------------------------------


def test_a_site_is_created_changed_and_deleted(cli, tenant):
    here = ("--tenant", tenant)
    made = data(cli("site", "create", "cellar", "--region", "eu", *here, "-o=json"))
    assert (made["kind"], made["region"]) == ("custom", "eu")
    assert (
        data(cli("site", "update", "cellar", "--region", "us", *here, "-o=json"))["region"] == "us"
    )
    pool = data(cli("pool", "create", "own", "--gpu-model=T4", "--site=cellar", *here, "-o=json"))
    assert (pool["region"], pool["owned"], pool["site_id"]) == ("us", True, made["id"])
    full = cli("site", "delete", "cellar", "--yes", *here)
    assert full.code == 1
    assert cli("site", "show", made["id"], *here).code == 0
    elsewhere = cli("pool", "list", "--site", "cellar")
    assert (elsewhere.code, "--site: no such site" in elsewhere.err) == (1, True)


def test_a_pool_is_updated_by_single_fields_and_never_unseen(cli, server):
    pool = server.pool("T4", "exclusive", maxPending="6h")
    changed = data(
        cli("pool", "update", pool.name, "--set", "maxPending=4h", "--set", "mine.a=1", "-o=json")
    )
    assert (changed["policy"], changed["version"]) == ({"maxPending": "4h", "mine": {"a": 1}}, 2)
    same = cli("pool", "update", pool.name, "--set", "maxPending=4h")
    assert "Nothing had to be changed." in same.out
    late = cli("pool", "update", pool.name, "--unset", "mine", "--version", "1")
    assert (late.code, "--version" in late.err) == (1, True)
    whole = data(cli("pool", "update", pool.name, "--policy", '{"maxPending": "1h"}', "-o=json"))
    assert whole["policy"] == {"maxPending": "1h"}
    bad = cli("pool", "update", pool.name, "--set", "maxPending=soon")
    assert (bad.code, "policy.maxPending" in bad.err, "'soon'" in bad.err) == (2, True, True)


def test_validate_says_all_that_would_be_refused_and_changes_nothing(cli, pool):
    words = ("pool", "validate", "judged", "--gpu-model", "H100")
    policy = '{"maxPending": "soon", "replicas": 99, "mine": 1}'
    said = cli(*words, "--policy", policy)
    assert said.code == 1
    assert "--policy (policy.maxPending): is not a duration (given: 'soon')" in said.out
    assert "--replicas" in said.out
    assert "unknown: mine is stored as given" in said.out
    assert "It would be refused." in said.out
    assert cli(*words).out == "It would be accepted.\n"
    assert data(cli(*words, "-o", "json")) == {"valid": True, "problems": [], "unknown_fields": []}
    names = [each["name"] for each in data(cli("pool", "list", "--all", "-o=json"))["items"]]
    assert "judged" not in names
    change = cli("pool", "validate", "--pool", pool.name, "--gpu-model", "H100")
    assert change.code == 1  # a node contradicts it
    assert data(cli("pool", "show", pool.id, "-o=json"))["gpu_model"] == "T4"


def test_lists_of_pools_are_narrowed(cli, server, tenant):
    pool = server.pool("L4", "exclusive")
    cli("pool", "offer", pool.name, tenant)
    here = ("--tenant", tenant, "-o", "json")

    def names(*words: str) -> list[str]:
        return [each["name"] for each in data(cli("pool", "list", *words))["items"]]

    assert names(*here) == [pool.name]
    assert names("--no-owned", *here) == [pool.name]
    assert names("--owned", *here) == []
    assert names("--class", "provider", *here) == []
    cli("pool", "archive", pool.name, "--yes")
    assert names(*here) == []
    assert pool.name not in names("--gpu-model", "L4", "-o", "json")
    assert names("--archived", "--gpu-model", "L4", "-o", "json") == [pool.name]
    again = cli("pool", "archive", pool.name, "--yes")
    assert (again.code, f"{pool.name} (archived)" in again.out) == (0, True)


def test_of_pools_of_one_name_ones_own_is_meant(cli, tenant, server):
    pool = server.pool("T4", "exclusive")
    cli("pool", "offer", pool.name, tenant, "--include-descendants")
    here = ("--tenant", tenant)
    assert data(cli("pool", "show", pool.name, *here, "-o=json"))["id"] == pool.id
    cli("site", "create", "own", "--region", "eu", *here)
    own = data(cli("pool", "create", pool.name, "--gpu-model=T4", *here, "-o=json"))
    assert data(cli("pool", "show", pool.name, *here, "-o=json"))["id"] == own["id"]
    assert data(cli("pool", "show", pool.id, *here, "-o=json"))["id"] == pool.id

    child = f"{tenant}-c"
    cli("tenant", "create", child, "--parent", tenant)
    cli("pool", "offer", own["id"], child, *here)
    said = cli("pool", "show", pool.name, "--tenant", child)
    assert (said.code, pool.id in said.err, own["id"] in said.err) == (2, True, True)


def test_offers_are_listed_changed_and_withdrawn_once(cli, tenant, pool):
    empty = cli("pool", "offers", pool.name)
    assert empty.out.startswith(f"No offers. Make one: apportion pool offer {pool.name} TENANT")
    made = cli("pool", "offer", pool.name, tenant, "--quota", "gpu=8", "--include-descendants")
    assert f"{pool.name} is offered to {tenant} and all below it, priority 0" in made.out
    assert f"apportion pool show {pool.name} --tenant {tenant}" in made.out
    cli("pool", "offer", pool.name, tenant, "--quota=gpu=4", "--priority=-1000")
    row = cli("pool", "offers", pool.name).out.splitlines()[1].split()
    assert row[:6] == [tenant, "-1000", "no", "gpu", "0", "of"]
    assert row[6] == "4"
    assert "is no longer offered" in cli("pool", "unoffer", pool.name, tenant, "--yes").out
    again = cli("pool", "unoffer", pool.name, tenant, "--yes", "-o", "json")
    assert data(again) == {"removed": False}


def test_a_limit_is_set_for_another_tenant_and_exactly(cli, tenant, pool):
    cli("pool", "offer", pool.name, tenant, "--quota", "gpu=8")
    set_ = ("quota", "set", pool.name, "gpuEquivalents", "7/2", "--of", tenant)
    assert cli(*set_).out == f"{pool.name} gpuEquivalents: limit 7/2, used 0, available 7/2\n"
    rows = data(cli("quota", "list", pool.name, "--of", tenant, "-o=json"))["items"]
    assert {each["resource"]: each["max"] for each in rows} == {"gpu": 8, "gpuEquivalents": "7/2"}
    one = ("quota", "list", pool.name, "--resource", "gpu", "--tenant", tenant, "-o=json")
    assert [each["max"] for each in data(cli(*one))["items"]] == [8]
    nothing = cli("quota", "explain", pool.name, "gpu", "--of", tenant)
    assert "Nothing uses it." in nothing.out
    denied = cli("quota", "set", pool.name, "gpu", "99", "--tenant", tenant)
    assert denied.code == 1  # only the owner sets limits


def test_who_uses_a_quota_is_told_page_by_page(cli, server):
    pool = server.pool("T4", "mps", (), replicas=4)
    for _ in range(3):
        assert cli("reserve", "--pool", pool.name, "--slots", "1", "--for", "1h").code == 0
    explain = ("quota", "explain", pool.name, "gpu.slot")
    whole = data(cli(*explain, "--all", "-o=json"))
    assert (len(whole["reservations"]), whole["accounted"]) == (3, 3)
    page = cli(*explain, "--limit", "2")
    assert len(page.out.splitlines()) == 5  # the limit, a blank line, the header and two
    cursor = re.search(r"--cursor (\S+)\)", page.err)[1]
    rest = data(cli(*explain, "--limit", "2", "--cursor", cursor, "-o=json"))
    assert (len(rest["reservations"]), rest["next_cursor"]) == (1, None)
    assert {each["amount"] for each in whole["reservations"]} == {1}


# what happens -------------------------------------------------------------------------------------


def test_the_audit_says_who_did_what(cli, pool):
    cli("pool", "update", pool.name, "--set", "maxPending=4h")
    me = data(cli("caller", "show", "-o=json"))["token_id"]
    said = cli("audit", "list", "--subject", pool.id, "--action", "pool.")
    lines = said.out.splitlines()
    assert "pool.updated" in lines[1]
    assert me in lines[1]
    assert '{} → {"maxPending": "4h"}' in lines[1]
    record = data(cli("audit", "list", "--subject", pool.id, "--limit=1", "-o=json"))["items"][0]
    assert (record["before"]["version"], record["after"]["version"]) == (1, 2)
    same = cli("audit", "list", "--request", record["request_id"], "-o=json")
    assert [each["id"] for each in data(same)["items"]] == [record["id"]]
    assert cli("audit", "list", "--until", "2020-01-01T00:00Z").out == "No such records.\n"


def test_events_are_watched_live_and_from_where_one_left(cli, server, pool):
    command = [sys.executable, "-m", "apportion", "event", "watch", "--type", "pool.", "-o", "json"]

    def watch(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, text=True, env=server.environment()
        )

    process = watch("--from-start", "--subject", pool.id)
    try:
        first = json.loads(process.stdout.readline())
        assert (first["type"], first["subject"]) == ("pool.created", pool.id)
        cli("pool", "update", pool.name, "--set", "maxPending=1h")
        assert json.loads(process.stdout.readline())["type"] == "pool.updated"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    later = watch("--after", first["id"], "--subject", pool.id)
    try:
        assert json.loads(later.stdout.readline())["type"] == "pool.updated"
    finally:
        later.kill()
        later.communicate()


def test_a_webhook_is_created_changed_rotated_and_deleted(cli, tenant, tmp_path):
    here, path = ("--tenant", tenant), tmp_path / "hook.secret"
    words = ("webhook", "create", "billing", "--to", "https://billing.example/hook", *here)
    made = cli(*words, "--type", "pool.", "--disabled", "--out", str(path))
    assert made.code == 0, made.err
    secret = path.read_text().strip()
    assert secret.startswith("whsec_")
    assert secret not in made.out
    changed = cli("webhook", "update", "billing", "--all-types", "--enable", *here, "-o=json")
    assert (data(changed)["types"], data(changed)["enabled"]) == ([], True)
    assert "billing" in cli("webhook", "list", *here).out
    none = cli("webhook", "deliveries", "billing", "--state", "dead", *here)
    assert none.out.startswith("Nothing waits")
    turned = data(cli("webhook", "rotate", "billing", *here, "-o=json"))
    assert turned["secret"].startswith("whsec_")
    assert turned["secret"] != secret
    absent = cli("webhook", "resend", "billing", "dlv_none", *here)
    assert (absent.code, absent.err.startswith("error: DELIVERY")) == (1, True)
    assert cli("webhook", "delete", "billing", "--yes", *here).code == 0
    assert cli("webhook", "list", *here).out.startswith("No webhooks. Create one:")


# any operation ------------------------------------------------------------------------------------


def test_any_operation_is_called_by_its_id(cli, tenant, pool, tmp_path):
    file = tmp_path / "offer.json"
    file.write_text(json.dumps({"quota": {"gpu": 3}}))
    parts = ("-p", f"pool_id={pool.id}", "-p", f"tenant_id={tenant}")
    offered = data(cli("api", "offer_pool", *parts, "-f", str(file)))
    assert offered["tenant_id"] == tenant
    seen = data(cli("api", "list_pools", "--tenant", tenant, "-p", f"name={pool.name}"))
    assert [each["id"] for each in seen["items"]] == [pool.id]
    here = ("--tenant", tenant)
    body = '{"name": "piped", "region": "eu"}'
    site = data(cli("api", "create_site", "-f", "-", *here, stdin=body))
    assert site["name"] == "piped"
    assert data(cli("api", "get_site", "-p", f"site_id={site['id']}", *here)) == site
    several = ("api", "list_reservations", "-p", "state=active", "-p", "state=pending")
    assert "items" in data(cli(*several))
    assert "items:" in cli(*several, "-o", "yaml").out


def test_all_operations_are_listed_with_their_rights(cli):
    rows = {line.split()[0]: line.split()[-1] for line in cli("api", "--list").out.splitlines()[1:]}
    assert rows["offer_pool"] == "compute:pools:share"
    assert rows["get_health"] == "-"
    items = {each["id"]: each for each in data(cli("api", "--list", "-o=json"))["items"]}
    assert (items["create_pool"]["method"], items["create_pool"]["body"]) == ("POST", "needed")
    assert items["offer_pool"]["parameters"] == ["pool_id", "tenant_id"]


def test_an_operation_that_is_refused_names_what_was_wrong(cli):
    said = cli("api", "get_pool", "-p", "pool_id=pool_none")
    assert (said.code, said.out) == (1, "")
    assert "no such pool" in said.err


# what is wrong ------------------------------------------------------------------------------------

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


def test_tables_of_the_tenants_own_things_fit_a_wide_terminal(cli, tenant, pool):
    cli("pool", "offer", pool.name, tenant, "--quota", "gpu=8")
    for words in [
        ("tenant", "list"),
        ("pool", "offers", pool.name),
        ("role", "list"),
        ("api", "--list"),
    ]:
        assert max(map(len, cli(*words).out.splitlines())) <= 120, words
