"""What a fleet file may say, and how it is told what is wrong with it."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from apportion.errors import InvalidInputError
from apportion.fleet.documents import NODES_MAX, read_document
from apportion.fleet.exporting import to_yaml
from apportion.fleet.service import fleet_schema, read_fleet
from apportion.fleet.values import exact, limit_of, same, sent

HEAD = "apiVersion: apportion/v1\n"
COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "fleet.schema.json"


def told(text: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read_fleet(text, "fleet.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2.5", Decimal("2.5")),
        ("0.1", Decimal("0.1")),
        ("1e3", Decimal(1000)),
        ("12", 12),
        ("-7", -7),
        ("no", "no"),
        ("off", "off"),
        ("6:30", "6:30"),
        ("010", "010"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("true", True),
        ("~", None),
        ("'5'", "5"),
        (".inf", ".inf"),
    ],
)
def test_words_and_numbers_are_read_exactly_as_json_means_them(written, read):
    value = read_document(f"a: {written}", "f").value["a"]
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "2.5",
        "1e3",
        "true",
        "null",
        "",
        "a: b",
        "x\ny\n",
        "~",
        "é",
        "- a",
        " a\nb",
        "a\n\n",
        "0x1f",
        "\t",
        "#c",
        "1_0",
    ],
)
def test_what_is_written_is_read_as_the_same_text(value):
    assert read_document(to_yaml({"a": value}), "f").value == {"a": value}


@pytest.mark.parametrize("number", ["2.5", "0.000001", "1E-9", "1E-300", "123456789012345678.5"])
def test_what_is_written_is_read_as_the_same_number(number):
    assert read_document(to_yaml({"a": Decimal(number)}), "f").value == {"a": Decimal(number)}


def test_json_is_a_fleet_file_too_and_its_numbers_are_exact():
    text = '{"apiVersion": "apportion/v1",\n\t"pools": [{"name": "p", "site": "s",'
    text += '"gpu_model": "H100", "owner_quota": {"vcpu": 2.50, "memoryGiB": 0.1}}]}'
    [pool] = read_fleet(text, "fleet.json").fleet.pools
    assert pool.owner_quota == {"vcpu": "2.50", "memoryGiB": "0.1"}


def test_a_name_that_stands_twice_is_refused_with_its_line():
    assert told(HEAD + "sites: []\npools: []\nsites: []\n") == (
        "fleet.yaml:4: names a field twice (given: 'sites')"
    )
    assert "names a field twice (given: 'a')" in told('{"a": 1, "a": 2}')


def test_what_is_no_yaml_is_refused_with_its_line():
    assert told(HEAD + "pools:\n  - [\n").startswith("fleet.yaml:4: is not YAML:")
    assert "is empty" in told("# nothing\n")
    assert "has a tag" in told(HEAD + "sites: !!python/object:os.system []\n")
    assert told("[" * 5000).startswith("fleet.yaml")


def test_aliases_repeat_what_they_name_but_not_without_end():
    text = HEAD + "policies:\n- {name: a, text: &t 'permit(principal, action, resource);'}\n"
    fleet = read_fleet(text + "- {name: b, text: *t}\n", "fleet.yaml").fleet
    assert fleet.policies[0].text == fleet.policies[1].text
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{chr(98 + at)}: &{chr(98 + at)} [{','.join(['*' + chr(97 + at)] * 10)}]\n"
        for at in range(8)
    )
    assert f"{NODES_MAX} values" in told(bomb)
    assert "is too large" in told("a: &a [*a]\n")


def test_everything_that_is_wrong_is_told_at_once_each_with_its_line_and_path():
    said = told(
        HEAD
        + "pools:\n"
        + "  - name: Bad Name\n"
        + "    gpu_model: H100\n"
        + "    sharing: sliced\n"
        + "    color: red\n"
        + "    owner_quota: {gpu: -1, vcpu: 1/3, gold: 1}\n"
        + "    offers:\n"
        + "      acme: {quota: {gpu: 1}, priority: 1001}\n"
        + "      Acme: {quota: {}}\n"
    )
    assert said.startswith("8 things are wrong:")
    assert "fleet.yaml:3: pools[0].name: " in said
    assert "fleet.yaml:3: pools[0].site: is needed" in said
    assert (
        "fleet.yaml:5: pools[0].sharing: should be 'exclusive', 'mig', 'timeslice' or 'mps'" in said
    )
    assert "fleet.yaml:6: pools[0].color: no such field" in said
    assert "fleet.yaml:7: pools[0].owner_quota.gpu: is no limit (given: -1); allowed: " in said
    assert "fleet.yaml:7: pools[0].owner_quota.vcpu: is no limit" not in said
    assert "fleet.yaml:7: pools[0].owner_quota.gold: should be 'gpu'" in said
    assert "fleet.yaml:10: pools[0].offers.Acme: is written in another way" in said
    assert "fleet.yaml:9: pools[0].offers.acme.priority: " in said
    assert said.count("owner_quota.gpu:") == 1


def test_two_objects_of_one_name_are_refused():
    text = HEAD + "sites:\n- {name: a, region: r}\n- {name: a, region: r, tenant: t}\n"
    assert len(read_fleet(text, "f").fleet.sites) == 2
    assert "fleet.yaml:5: sites[2].name: is the name of sites[0] already" in told(
        text + "- {name: a, region: q}\n"
    )


@pytest.mark.parametrize(
    ("resource", "given", "shown"),
    [
        ("gpu", 8, 8),
        ("gpu", "8.0", 8),
        ("vcpu", "2.50", "2.5"),
        ("gpuEquivalents", "3.5", "7/2"),
        ("gpuEquivalents", "1/3", "1/3"),
        ("vcpu", "7/2", "3.5"),
        ("gpu", "unlimited", "unlimited"),
    ],
)
def test_a_limit_has_one_form_however_it_is_written(resource, given, shown):
    assert limit_of(resource, given) == shown


@pytest.mark.parametrize(
    ("resource", "given"), [("gpu", "2.5"), ("vcpu", "1/3"), ("gpuEquivalents", "1/97")]
)
def test_a_limit_that_a_resource_cannot_have_is_refused(resource, given):
    with pytest.raises(InvalidInputError, match="is no such amount"):
        limit_of(resource, given)


def test_values_of_a_policy_are_compared_exactly():
    assert same({"a": [0.1, 2.0]}, {"a": [Decimal("0.10"), 2]})
    assert not same({"a": True}, {"a": 1})
    assert not same({"a": "1"}, {"a": 1})
    assert not same({"a": None}, {})
    assert exact(0.1) == Decimal("0.1")
    assert sent({"a": Decimal("0.1")}) == {"a": 0.1}
    with pytest.raises(InvalidInputError, match="more digits"):
        sent({"a": Decimal("0.12345678901234567890123")})


def test_the_schema_that_editors_read_is_the_programs_own():
    assert json.loads(COMMITTED.read_text("utf-8")) == fleet_schema()


def test_every_reference_in_the_schema_leads_somewhere():
    schema = fleet_schema()
    text = json.dumps(schema)
    names = {each.split('"')[0] for each in text.split('"#/$defs/')[1:]}
    assert names
    assert names <= set(schema["$defs"])
