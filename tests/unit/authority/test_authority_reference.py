"""The pages on access say what the engine does: tables, schema, and every policy that they show."""

import re
from pathlib import Path

import pytest

from apportion.authority.actions import ACTIONS, ATTRIBUTES, ROLES
from apportion.authority.engine import Policy, Question, check_policy, decide, schema_text

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "access.md").read_text("utf-8")
GUIDE = (DOCS / "guides" / "access.md").read_text("utf-8")
KINDS = {
    "the tenant": "tenant",
    "the tenant, a pool to be": "new_pool",
    "a pool": "pool",
    "a pool and an ask": "reservation",
}
CREATE = "compute:reservations:create"
CONTEXT = {
    "gpuModel": "H100",
    "class": "metal-host",
    "sharing": "exclusive",
    "region": "fra1",
    "owned": False,
    "gpuCount": 1,
    "gpuSlices": 0,
    "durationSeconds": 3600,
}


def question(action, role, **context):
    kind = ACTIONS[action].kind
    known = {**CONTEXT, **context}
    return Question(
        token="tok_1",
        role=role,
        home="acme",
        action=action,
        tenants=("root", "acme"),
        pool=("pool_1", "root") if kind in {"pool", "reservation"} else None,
        context={name: known[name] for name in ATTRIBUTES[kind]},
    )


def table(heading):
    """Give the rows of the table below a heading, its header left out."""
    section = REFERENCE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_roles_is_what_the_engine_decides():
    rows = {row[0].strip("`"): row[1:] for row in table("Roles")}
    assert [*rows] == [*ACTIONS]
    header = f"| action | decided on | {' | '.join(ROLES)} |"
    assert header in REFERENCE
    for action, (kind, *cells) in rows.items():
        assert KINDS[kind] == ACTIONS[action].kind
        for role, cell in zip(ROLES, cells, strict=True):
            assert (cell == "yes") == decide(question(action, role), []).allowed, (action, role)


def test_the_table_of_attributes_is_what_the_schema_has():
    words = {"new_pool": "a pool to be", "pool": "a pool", "reservation": "an ask"}
    rows = {row[0].strip("`"): row[1:3] for row in table("Policies")}
    assert [*rows] == [*ATTRIBUTES["reservation"]]
    for name, (kind, told) in rows.items():
        assert kind == ATTRIBUTES["reservation"][name]
        having = [word for each, word in words.items() if name in ATTRIBUTES[each]]
        assert told == ", ".join(having)


def test_the_schema_that_is_shown_is_the_one_that_is_used():
    [shown] = re.findall(r"```cedarschema\n(.*?)```", REFERENCE, re.DOTALL)
    assert shown == schema_text()


# What each policy on the pages is said to do: (action, role, context, allowed with it alone).
EXAMPLES = {
    "context.gpuCount > 8": [
        (CREATE, "member", {"gpuCount": 8}, True),
        (CREATE, "owner", {"gpuCount": 9}, False),
        (CREATE, "owner", {"gpuSlices": 9}, True),
    ],
    'context.region != "fra1"': [
        (CREATE, "owner", {}, True),
        (CREATE, "owner", {"region": "nyc1"}, False),
        ("compute:pools:create", "owner", {"region": "nyc1"}, False),
        ("compute:pools:read", "owner", {}, True),
    ],
    "context.durationSeconds > 86400": [
        (CREATE, "member", {"durationSeconds": 86400}, True),
        (CREATE, "member", {"durationSeconds": 86401}, False),
        (CREATE, "operator", {"durationSeconds": 86401}, True),
    ],
    "compute:audit:read": [
        ("compute:audit:read", "viewer", {}, True),
        ("compute:audit:read", "member", {}, False),
        ("compute:pools:create", "viewer", {}, False),
    ],
    "compute:pools:share": [
        ("compute:pools:share", "operator", {}, False),
        ("compute:pools:share", "owner", {}, True),
        ("compute:pools:share", "operator", {"gpuModel": "A100"}, True),
    ],
}
SHOWN = [
    *re.findall(r"```cedar\n(.*?)```", REFERENCE, re.DOTALL),
    *re.findall(r"<<'CEDAR'\n(.*?) +CEDAR\n", GUIDE, re.DOTALL),
]


@pytest.mark.parametrize("text", SHOWN)
def test_each_policy_that_is_shown_does_what_is_said_of_it(text):
    check_policy(text, field="text")
    [cases] = [cases for words, cases in EXAMPLES.items() if words in text]
    for action, role, context, allowed in cases:
        added = [Policy("pol_1", "root", "shown", text)]
        assert decide(question(action, role, **context), added).allowed == allowed, (action, role)


def test_the_pages_show_policies():
    assert len(SHOWN) == 8
