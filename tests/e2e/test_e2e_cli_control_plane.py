"""Sites, pools, offers, quotas, audit, events, webhooks and any operation from the command line."""

import json
import re
import signal
import subprocess
import sys

from said import data


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


def test_tables_of_the_tenants_own_things_fit_a_wide_terminal(cli, tenant, pool):
    cli("pool", "offer", pool.name, tenant, "--quota", "gpu=8")
    for words in [
        ("tenant", "list"),
        ("pool", "offers", pool.name),
        ("role", "list"),
        ("api", "--list"),
    ]:
        assert max(map(len, cli(*words).out.splitlines())) <= 120, words
