"""A plan as a person reads it, line by line."""

from apportion.errors import InvalidStateError
from apportion.fleet.reading import Refusal
from apportion.fleet.rendering import plan_lines
from apportion.fleet.steps import Change, Plan, Step


def test_each_step_is_a_line_with_what_matters_of_it():
    plan = Plan(
        [
            Step("create", "tenant", "root", "acme", body={"name": "Acme", "parent_id": "root"}),
            Step("create", "site", "root", "fra1", body={"region": "eu", "kind": "shared"}),
            Step(
                "create",
                "pool",
                "root",
                "a100-mig",
                site="fra1",
                body={"sharing": "mig", "gpu_model": "A100", "class": "metal-host"},
            ),
            Step(
                "update",
                "pool",
                "root",
                "h100",
                changes=(
                    Change("policy.maxPending", "6h", "12h"),
                    Change("policy.preemptible", None, True),
                ),
            ),
            Step("update", "quota", "root", "h100", to="gpu", changes=(Change("gpu", 8, 16),)),
            Step("delete", "offer", "root", "h100", to="acme"),
            Step("delete", "pool", "root", "old", also=("acme loses it",)),
        ],
        left=["site s of root stays"],
    )
    assert plan_lines(plan) == [
        "+ create tenant acme (Acme, below root)",
        "+ create site fra1 of root (eu, shared)",
        "+ create pool a100-mig of root (site fra1, mig, A100, metal-host)",
        "~ update pool h100 of root",
        "    policy.maxPending 6h → 12h",
        "    policy.preemptible none → true",
        "~ update quota of root on h100: gpu 8 → 16",
        "- unoffer h100 of root from acme",
        "- archive pool old of root",
        "    acme loses it",
        "  (site s of root stays)",
        "",
        "Plan: 3 to create, 2 to change, 2 to remove.",
    ]


def test_a_text_of_several_lines_is_shown_by_its_changed_lines():
    change = Change("text", "forbid (a)\nwhen { x > 8 };\n", "forbid (a)\nwhen { x > 4 };\n")
    plan = Plan([Step("update", "policy", "acme", "at-most-8", changes=(change,))])
    assert plan_lines(plan)[:5] == [
        "~ update policy at-most-8 of acme",
        "    text:",
        "       forbid (a)",
        "      -when { x > 8 };",
        "      +when { x > 4 };",
    ]


def test_refusals_stand_apart_each_with_its_place_and_what_would_help():
    error = InvalidStateError("never changes", given="mig", allowed="mps", hint="Create another")
    plan = Plan(refusals=[Refusal(("pools", 0), "f:3: pools[0].sharing", error)])
    assert plan_lines(plan) == [
        "",
        "Refused, and so nothing is done:",
        "! f:3: pools[0].sharing: never changes (given: 'mig'); allowed: mps. Create another",
    ]


def test_an_empty_plan_says_so():
    assert plan_lines(Plan()) == ["No changes: the server is as the file says."]


def test_what_would_move_the_cursor_of_a_terminal_is_written_out():
    change = Change("policy.note", "\x1b[2J", "\x9b2J")
    plan = Plan([Step("update", "pool", "root", "p", changes=(change,))])
    assert plan_lines(plan)[0] == (r'~ update pool p of root: policy.note "\u001b[2J" → "\u009b2J"')
