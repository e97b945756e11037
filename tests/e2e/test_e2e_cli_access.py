"""Callers, tenants, tokens, roles and policies from the command line, and a tenant's story."""

import re
import stat

from said import data

FORBID = """\
forbid (principal, action == Action::"compute:reservations:create", resource)
when { context.gpuCount > 1 };
"""


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
