"""What commands of the control plane make of words: policies edited, trees drawn, secrets kept."""

import argparse
import io
import json
import stat
import sys
from datetime import UTC, datetime

import pytest

from apportion.cli.audit import difference
from apportion.cli.confirming import is_confirmed
from apportion.cli.finding import is_id, the_one
from apportion.cli.pool_policy import edited, read_policy_argument
from apportion.cli.pool_words import RESOURCES, read_quota
from apportion.cli.secret_file import print_issued, secret_file
from apportion.cli.showing import fact_lines
from apportion.cli.tenant import tree_lines
from apportion.errors import InvalidInputError, NotFoundError, UnavailableError
from apportion.pools.schemas import QuotaResource, SiteView
from apportion.tenants.schemas import TenantView, TokenIssued, TokenView

NOW = datetime(2026, 12, 1, tzinfo=UTC)
POLICY = {"maxPending": "6h", "hostReserve": {"vcpu": 2}, "mine": [1]}


def tenant(tenant_id: str, parent: str | None, *, deleted: bool = False) -> TenantView:
    return TenantView(
        id=tenant_id,
        name=tenant_id.title(),
        parent_id=parent,
        ancestors=[tenant_id],
        created_at=NOW,
        deleted_at=NOW if deleted else None,
    )


def site(name: str, site_id: str) -> SiteView:
    return SiteView(
        id=site_id, tenant_id="root", name=name, region="fra", kind="shared", created_at=NOW
    )


@pytest.mark.parametrize(
    ("settings", "removals", "result"),
    [
        (["maxPending=1h"], [], {**POLICY, "maxPending": "1h"}),
        (["replicas=4"], [], {**POLICY, "replicas": 4}),
        (["openEnded=true"], [], {**POLICY, "openEnded": True}),
        (["note=a=b"], [], {**POLICY, "note": "a=b"}),
        (["hostReserve.memoryGiB=8"], [], {**POLICY, "hostReserve": {"vcpu": 2, "memoryGiB": 8}}),
        (["iommu.mode=on"], [], {**POLICY, "iommu": {"mode": "on"}}),
        ([], ["mine", "hostReserve.vcpu"], {"maxPending": "6h", "hostReserve": {}}),
        (["mine=[2]"], ["maxPending"], {"hostReserve": {"vcpu": 2}, "mine": [2]}),
    ],
)
def test_single_fields_of_a_policy_are_edited_and_the_rest_is_kept(settings, removals, result):
    before = json.dumps(POLICY)
    assert edited(POLICY, settings, removals) == result
    assert json.dumps(POLICY) == before  # the one that was read stays as it is


@pytest.mark.parametrize(
    ("settings", "removals", "said"),
    [
        (["maxPending"], [], "--set: is no setting"),
        (["=1h"], [], "--set: is no setting"),
        (["mine.a=1"], [], "--set: mine is no object"),
        (["x=[NaN]"], [], "no number of JSON"),
        ([], ["nothing"], "--unset: the policy has no such field"),
        ([], ["hostReserve.gone"], "allowed: vcpu"),
    ],
)
def test_an_edit_that_makes_no_sense_names_its_flag(settings, removals, said):
    with pytest.raises(InvalidInputError) as caught:
        edited(POLICY, settings, removals)
    assert said in str(caught.value)


def test_a_policy_comes_inline_from_a_file_or_from_standard_input(tmp_path, monkeypatch):
    file = tmp_path / "policy.json"
    file.write_text('{"a": 1}')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"b": 2}')))
    assert read_policy_argument(str(file), field="--policy") == {"a": 1}
    assert read_policy_argument("-", field="--policy") == {"b": 2}
    assert read_policy_argument(' {"c": 3}', field="--policy") == {"c": 3}
    file.write_text("[]")
    with pytest.raises(InvalidInputError, match="is no JSON object"):
        read_policy_argument(str(file), field="--policy")


def test_a_quota_is_a_resource_and_a_limit():
    assert read_quota("gpu=32", field="--quota") == ("gpu", 32)
    for text in ("gpu", "=3", "gpu=many"):
        with pytest.raises(InvalidInputError, match="is no limit"):
            read_quota(text, field="--quota")


def test_the_command_line_knows_every_resource_of_the_api():
    assert set(RESOURCES) == set(QuotaResource.__args__)


def test_tenants_are_drawn_as_a_tree():
    tenants = [
        tenant("acme-ml", "acme"),
        tenant("beta", "root"),
        tenant("root", None),
        tenant("acme", "root"),
        tenant("acme-old", "acme", deleted=True),
    ]
    assert tree_lines(tenants, boxes=True) == [
        "root              Root",
        "├── acme          Acme",
        "│   ├── acme-ml   Acme-Ml",
        "│   └── acme-old  Acme-Old (deleted)",
        "└── beta          Beta",
    ]
    assert tree_lines(tenants, boxes=False)[-1].startswith("`-- beta")


def test_a_tenant_whose_parent_is_not_seen_stands_at_the_left():
    lines = tree_lines([tenant("acme", "root"), tenant("acme-ml", "acme")], boxes=True)
    assert [line.split()[-2] for line in lines] == ["acme", "acme-ml"]
    assert lines[0].startswith("acme")


def test_an_object_is_found_by_its_name_alone_where_one_has_it():
    found = [site("fra1", "site_1"), site("twin", "site_2"), site("twin", "site_3")]
    assert the_one(found, "fra1", field="SITE", what="site").id == "site_1"
    with pytest.raises(NotFoundError, match="no such site"):
        the_one(found, "ber1", field="SITE", what="site")
    with pytest.raises(InvalidInputError, match="several have this name") as caught:
        the_one(found, "twin", field="SITE", what="site")
    assert "site_2, site_3" in str(caught.value)
    assert (is_id("site_1"), is_id("fra1.north-2")) == (True, False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "goes_on"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)]
)
def test_a_person_is_asked_and_only_yes_is_yes(monkeypatch, capsys, typed, goes_on):
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert is_confirmed(argparse.Namespace(yes=False), "Delete it?") is goes_on
    said = capsys.readouterr()
    assert said.err == "Delete it? [y/N] "
    assert said.out == ("" if goes_on else "Nothing was changed.\n")


def test_where_nobody_can_be_asked_yes_is_required(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidInputError, match="nobody can be asked") as caught:
        is_confirmed(argparse.Namespace(yes=False), "Delete it?")
    assert caught.value.field == "--yes"
    assert is_confirmed(argparse.Namespace(yes=True), "Delete it?")
    assert capsys.readouterr().err == ""


def test_a_secret_is_written_for_its_owner_alone(tmp_path):
    path = tmp_path / "ci.token"
    with secret_file(path, replace=False) as keep:
        assert not path.exists()
        keep("apt_secret")
    assert path.read_text() == "apt_secret\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_refused_request_leaves_no_file_and_the_old_secret(tmp_path):
    path = tmp_path / "ci.token"
    path.write_text("old\n")
    with pytest.raises(NotFoundError), secret_file(path, replace=True):
        raise NotFoundError("no such token")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_secret_does_not_replace_another_file(tmp_path):
    path = tmp_path / "root.token"
    path.write_text("root\n")
    with pytest.raises(InvalidInputError, match="is there already") as caught:
        secret_file(path, replace=False).__enter__()
    assert caught.value.field == "--out"
    assert path.read_text() == "root\n"


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_issued(tmp_path):
    with pytest.raises(UnavailableError, match="--out: cannot be written: No such file"):
        secret_file(tmp_path / "nowhere" / "ci.token", replace=False).__enter__()


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
@pytest.mark.parametrize("out", [None, "ci.token"])
def test_a_secret_is_printed_only_where_no_file_holds_it(capsys, output, out):
    record = TokenView(
        id="tok_1",
        tenant_id="acme",
        name="ci",
        role="member",
        actions=["*"],
        created_by="tok_0",
        created_at=NOW,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
        state="active",
    )
    issued = TokenIssued(token="apt_secret", record=record)
    args = argparse.Namespace(output=output, out=out)
    assert print_issued(args, issued, issued.token, ["ci"], []) == 0
    said = capsys.readouterr().out
    assert ("apt_secret" in said) is (out is None)
    assert "ci" in said


def test_an_audit_record_shows_what_differs():
    before, after = {"max": 32, "used": 4, "name": "a"}, {"max": 40, "used": 4, "name": "a"}
    assert difference(before, after) == "max 32 → 40"
    assert difference(None, {"name": "a", "policy": {}}) == "name a, policy {}"
    assert difference({"name": "a"}, None) == "gone"
    assert difference({"a": 1}, {"b": 2}) == "a 1 → null, b null → 2"


def test_facts_that_there_are_not_are_left_out():
    assert fact_lines("t", {"id": "x", "deleted": None, "version": 2}) == [
        "t",
        "  id       x",
        "  version  2",
    ]
