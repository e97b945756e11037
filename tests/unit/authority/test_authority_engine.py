"""What the policy engine permits, what it forbids, and which policies it refuses to take."""

import json

import pytest

from apportion.authority.actions import ACTIONS, ATTRIBUTES, GRANTS, ROLES, covers
from apportion.authority.engine import (
    BUILT_IN,
    PARTS_MAX,
    Policy,
    Question,
    check_policy,
    decide,
    effect_of,
    schema_text,
)
from apportion.errors import InvalidInputError

POOL = {
    "gpuModel": "H100",
    "class": "metal-host",
    "sharing": "mig",
    "region": "fra1",
    "owned": False,
}
ASK = {"gpuCount": 0, "gpuSlices": 0, "durationSeconds": 3600}
CREATE = "compute:reservations:create"
SCOPE = f'principal, action == Action::"{CREATE}", resource'


def question(action, role="owner", *, home="acme", tenants=("root", "acme"), **context):
    kind = ACTIONS[action].kind
    known = {**POOL, **ASK, **context}
    return Question(
        token="tok_1",
        role=role,
        home=home,
        action=action,
        tenants=tenants,
        pool=("pool_1", "root") if kind in {"pool", "reservation"} else None,
        context={name: known[name] for name in ATTRIBUTES[kind]},
    )


def policy(text, name="added", tenant="acme"):
    check_policy(text, field="text")
    return Policy(f"pol_{name}", tenant, name, text)


def allowed(asked, *texts):
    return decide(asked, [policy(text, f"p{at}") for at, text in enumerate(texts)]).allowed


def refusal(text):
    with pytest.raises(InvalidInputError) as caught:
        check_policy(text, field="text")
    assert caught.value.field == "text"
    assert caught.value.given == text
    return caught.value.message


def test_what_nothing_permits_is_denied_and_no_policy_is_named():
    ruling = decide(question("compute:pools:create", "viewer"), [])
    assert (ruling.allowed, ruling.policies, ruling.errors) == (False, (), ())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_role_permits_the_actions_of_its_groups_and_no_other(action, role):
    ruling = decide(question(action, role), [])
    assert ruling.allowed == (ACTIONS[action].group in GRANTS[role])
    assert [each.id for each in ruling.policies] == ([role] if ruling.allowed else [])


def test_an_added_policy_permits_what_the_role_does_not():
    text = 'permit(principal in Role::"viewer", action == Action::"compute:audit:read", resource);'
    assert not allowed(question("compute:audit:read", "viewer"))
    assert allowed(question("compute:audit:read", "viewer"), text)
    assert not allowed(question("compute:audit:read", "member"), text)
    assert not allowed(question("compute:webhooks:read", "viewer"), text)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_forbid_of_an_action_beats_every_permit_in_any_order(action):
    forbid = f'forbid(principal, action == Action::"{action}", resource);'
    permit = "permit(principal, action, resource);"
    for texts in ([forbid], [permit, forbid], [forbid, permit]):
        ruling = decide(question(action), [policy(text) for text in texts])
        assert not ruling.allowed
        assert [each.text for each in ruling.policies] == [forbid]
    other = next(each for each in ACTIONS if each != action)
    assert allowed(question(other), forbid)


def test_the_ruling_names_each_policy_that_made_it():
    first = policy('forbid(principal in Role::"owner", action, resource);', "first")
    second = policy('forbid(principal, action, resource == Pool::"pool_1");', "second")
    other = policy('forbid(principal in Role::"viewer", action, resource);', "other")
    assert decide(question(CREATE), [first, other, second]).policies == (first, second)


def test_whole_gpus_and_slices_are_two_things():
    cap = f"forbid({SCOPE}) when {{ %s }};"
    whole, slices = cap % "context.gpuCount > 8", cap % "context.gpuSlices > 8"
    for count, parts, by_whole, by_slices in (
        (8, 8, 1, 1),
        (9, 0, 0, 1),
        (0, 9, 1, 0),
        (9, 9, 0, 0),
    ):
        asked = question(CREATE, gpuCount=count, gpuSlices=parts)
        assert allowed(asked, whole) == bool(by_whole)
        assert allowed(asked, slices) == bool(by_slices)


@pytest.mark.parametrize(
    ("attribute", "inside", "outside"),
    [
        ('context.gpuModel == "H100"', {}, {"gpuModel": "A100"}),
        ('context.class == "metal-host"', {}, {"class": "vps-host"}),
        ('context.sharing == "mig"', {}, {"sharing": "exclusive"}),
        ('context.region == "fra1"', {}, {"region": "nyc1"}),
        ("context.owned", {"owned": True}, {"owned": False}),
        ("context.gpuCount <= 8", {"gpuCount": 8}, {"gpuCount": 9}),
        ("context.gpuSlices <= 7", {"gpuSlices": 7}, {"gpuSlices": 8}),
        ("context.durationSeconds <= 3600", {}, {"durationSeconds": 3601}),
    ],
)
def test_policies_decide_on_each_attribute(attribute, inside, outside):
    text = f"forbid({SCOPE}) unless {{ {attribute} }};"
    assert allowed(question(CREATE, **inside), text)
    assert not allowed(question(CREATE, **outside), text)


def test_a_guarded_attribute_holds_for_the_actions_that_have_it():
    text = (
        "forbid(principal, action, resource) when { context has gpuCount && context.gpuCount > 8 };"
    )
    assert allowed(question("compute:pools:read"), text)
    assert not allowed(question(CREATE, gpuCount=9), text)


def test_a_tenant_reaches_what_lies_below_it():
    text = 'forbid(principal, action, resource in Tenant::"acme");'
    read = "compute:pools:read"
    assert allowed(question(read, tenants=("root", "labs"), home="root"), text)
    assert not allowed(question(read, tenants=("root", "acme")), text)
    assert not allowed(question(read, tenants=("root", "acme", "team")), text)
    by_home = 'forbid(principal in Tenant::"acme", action, resource);'
    assert not allowed(question(read, tenants=("root", "acme", "team"), home="team"), by_home)
    assert allowed(question(read, tenants=("root", "acme"), home="root"), by_home)


def test_a_group_of_actions_can_be_named():
    text = 'forbid(principal, action in [Action::"operate"], resource);'
    assert not allowed(question("compute:pools:create"), text)
    assert allowed(question("compute:tokens:create"), text)


def test_odd_ids_are_ids_and_never_cedar_text():
    odd = 'x" } ; permit(principal, action, resource); //\\'
    asked = Question(
        token=odd,
        role="viewer",
        home=odd,
        action="compute:pools:share",
        tenants=("root", odd),
        pool=(odd, odd),
        context={**POOL, "region": odd},
    )
    assert not decide(asked, []).allowed
    named = policy(f"permit(principal == Token::{json.dumps(odd)}, action, resource);")
    assert decide(asked, [named]).allowed


def test_a_forbid_that_cannot_be_evaluated_forbids_and_a_permit_does_not_permit():
    grows = "context.gpuCount * 9223372036854775807 > 1"
    forbid = policy(f"forbid({SCOPE}) when {{ {grows} }};", "cap")
    ruling = decide(question(CREATE, gpuCount=2), [forbid])
    assert (ruling.allowed, ruling.policies) == (False, (forbid,))
    assert "`cap`" in ruling.errors[0]
    assert "overflow" in ruling.errors[0]
    assert decide(question(CREATE, gpuCount=0), [forbid]).allowed
    permit = policy(forbid.text.replace("forbid", "permit"), "grant")
    assert decide(question(CREATE, "member", gpuCount=2), [permit]).allowed
    assert not decide(question(CREATE, "viewer", gpuCount=2), [permit]).allowed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 policies"),
        ("// nothing", "has 0 policies"),
        ("permit(principal, action, resource);" * 2, "has 2 policies"),
        ("permit(principal == ?principal, action, resource);", "is a template"),
        ("permit(principal, action, resource)", "unexpected end of input"),
        ("permit(principal, action resource);", "unexpected token `resource`"),
        ("permt(principal, action, resource);", "invalid policy effect: permt"),
        (
            'permit(principal, action == Action::"compute:pools:raed", resource);',
            "compute:pools:raed",
        ),
        ('permit(principal in Role::"ownr", action, resource);', "ownr"),
        ('permit(principal in User::"ada", action, resource);', "User"),
        ("permit(principal, action, resource) when { principal.name == 1 };", "name"),
        (
            f"permit({SCOPE}) when {{ context.gpuCont > 1 }};",
            "there is no attribute gpuCont; did you mean gpuCount?",
        ),
        (
            "forbid(principal, action, resource) when { context has gpucount };",
            "there is no attribute gpucount; did you mean gpuCount?",
        ),
        (
            "forbid(principal, action, resource) when { context has gpuCont && true };",
            "there is no attribute gpuCont",
        ),
        (
            "permit(principal, action, resource) when { context.gpuCount > 1 };",
            "not every action that it is about has gpuCount: compute:atoms:read has not",
        ),
        (
            f'permit({SCOPE}) when {{ context.gpuCount > "1" }};',
            "expected Long but saw String",
        ),
        (
            f"permit({SCOPE}) when {{ context.region > 1 }};",
            "expected Long",
        ),
    ],
)
def test_what_is_not_one_valid_policy_is_refused_in_words(text, words):
    assert words in refusal(text)


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 4900 + "true" + ")" * 4900,
        "[" * 4900 + "]" * 4900,
        "{a:" * 2000 + "1" + "}" * 2000 + " == 1",
        "!(" * 3000 + "true" + ")" * 3000,
        "context" + ".a" * 4900,
        "context has a" + ".a" * 4900,
        " && ".join(["true"] * 1000),
        "if 1 then " * 500 + "1" + " else 1" * 500,
        # What looks like a comment or a text hides nothing.
        '"" // "\r' + "(" * 4900,
        '"\\"" == ' + "(" * 4900,
    ],
)
def test_nesting_that_would_end_the_engine_s_process_is_refused_before_it_reads_it(condition):
    text = f"permit(principal, action, resource) when {{ {condition} }};"
    assert f"more than {PARTS_MAX} brackets" in refusal(text)


def test_the_most_parts_of_a_policy_are_taken_and_those_in_texts_do_not_count():
    start, end = "permit(principal, action, resource) when {", "};"
    deep = PARTS_MAX - 2
    check_policy(start + "(" * deep + "true" + ")" * deep + end, field="text")
    assert "more than" in refusal(start + "(" * (deep + 1) + "true" + ")" * (deep + 1) + end)
    regions = ", ".join(f'"eu-west-{at}"' for at in range(500))
    head = f"permit({SCOPE})"
    check_policy(f"{head} when {{ [{regions}].contains(context.region) }};", field="text")


def test_the_schema_takes_every_role_and_knows_every_action():
    for each in BUILT_IN:
        check_policy(each.text, field="text")
        assert effect_of(each.text) == "permit"
    for action in ACTIONS:
        assert f'action "{action}"' in schema_text()


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("*", [*ACTIONS]),
        ("compute:*", [*ACTIONS]),
        ("compute:pools:read", ["compute:pools:read"]),
        (
            "compute:policies:*",
            [f"compute:policies:{verb}" for verb in ("read", "check", "manage")],
        ),
        ("compute:pool", []),
    ],
)
def test_a_scope_covers_an_action_a_family_or_everything(pattern, covered):
    assert [each for each in ACTIONS if covers(pattern, each)] == covered
