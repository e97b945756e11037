"""Cedar decides as a few lines of Python do that know nothing of Cedar."""

import operator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from apportion.authority.actions import ACTIONS, ATTRIBUTES, GRANTS, ROLES
from apportion.authority.engine import Policy, Question, check_policy, decide

PATH = ("root", "acme", "team")
VALUES = {
    "gpuModel": ("H100", "A100"),
    "class": ("metal-host", "vps-host"),
    "sharing": ("mig", "exclusive"),
    "region": ("fra1", 'odd"\\region'),
    "owned": (True, False),
    "gpuCount": (0, 1, 8, 9),
    "gpuSlices": (0, 1, 8, 9),
    "durationSeconds": (60, 3600),
}
COMPARE = {"==": operator.eq, "!=": operator.ne}
ORDER = {**COMPARE, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = ("gpuCount", "gpuSlices", "durationSeconds")


@dataclass(frozen=True)
class Comparison:
    """One comparison of an attribute, true only where the action has it."""

    name: str
    sign: str
    value: object

    def holds(self, context):
        return self.name in context and ORDER[self.sign](context[self.name], self.value)

    def cedar(self):
        return f"(context has {self.name} && context.{self.name} {self.sign} {written(self.value)})"


@dataclass(frozen=True)
class Rule:
    effect: str
    principal: tuple[str, str] | None
    actions: tuple[str, ...] | None
    resource: str | None
    joint: str
    when: tuple[Comparison, ...]
    unless: tuple[Comparison, ...]

    def matches(self, asked: Question):
        home = PATH[: PATH.index(asked.home) + 1]
        owner = asked.tenants[-1] if asked.pool is None else asked.pool[1]
        principal = self.principal in (
            None,
            ("==", "Token", asked.token),
            ("in", "Role", asked.role),
            *[("in", "Tenant", tenant) for tenant in home],
        )
        action = self.actions is None or asked.action in self.actions
        resource = self.resource is None or self.resource in PATH[: PATH.index(owner) + 1]
        join = all if self.joint == "&&" else any
        when = not self.when or join(test.holds(asked.context) for test in self.when)
        unless = bool(self.unless) and join(test.holds(asked.context) for test in self.unless)
        return principal and action and resource and when and not unless

    def cedar(self):
        principal = "principal"
        if self.principal is not None:
            sign, kind, name = self.principal
            principal += f" {sign} {kind}::{written(name)}"
        action = "action"
        if self.actions is not None:
            action += f" in [{', '.join(f'Action::{written(each)}' for each in self.actions)}]"
        resource = "resource" + (f" in Tenant::{written(self.resource)}" if self.resource else "")
        text = f"{self.effect}({principal}, {action}, {resource})"
        for word, tests in (("when", self.when), ("unless", self.unless)):
            if tests:
                text += f" {word} {{ {f' {self.joint} '.join(test.cedar() for test in tests)} }}"
        return f"{text};"


def written(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(sorted(VALUES)))
    signs = sorted(ORDER if name in NUMBERS else COMPARE)
    return Comparison(name, draw(st.sampled_from(signs)), draw(st.sampled_from(VALUES[name])))


ANYONE = [
    None,
    ("==", "Token", "tok_1"),
    ("==", "Token", "tok_2"),
    *[("in", "Role", role) for role in ROLES],
    *[("in", "Tenant", tenant) for tenant in (*PATH, "labs")],
]
RULES = st.builds(
    Rule,
    effect=st.sampled_from(["permit", "forbid"]),
    principal=st.sampled_from(ANYONE),
    actions=st.none() | st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1).map(tuple),
    resource=st.none() | st.sampled_from((*PATH, "labs")),
    joint=st.sampled_from(["&&", "||"]),
    when=st.lists(comparisons(), max_size=2).map(tuple),
    unless=st.lists(comparisons(), max_size=2).map(tuple),
)


@st.composite
def questions(draw):
    action = draw(st.sampled_from(sorted(ACTIONS)))
    kind = ACTIONS[action].kind
    tenants = PATH[: draw(st.integers(1, len(PATH)))]
    on_pool = kind in {"pool", "reservation"}
    return Question(
        token="tok_1",
        role=draw(st.sampled_from(ROLES)),
        home=draw(st.sampled_from(tenants)),
        action=action,
        tenants=tenants,
        pool=("pool_1", draw(st.sampled_from(tenants))) if on_pool else None,
        context={name: draw(st.sampled_from(VALUES[name])) for name in ATTRIBUTES[kind]},
    )


@given(questions(), st.lists(RULES, max_size=6))
def test_cedar_decides_as_the_model_does(asked, rules):
    for rule in rules:
        check_policy(rule.cedar(), field="text")
    added = [Policy(str(at), "root", str(at), rule.cedar()) for at, rule in enumerate(rules)]
    matching = [rule for rule in rules if rule.matches(asked)]
    permitted = ACTIONS[asked.action].group in GRANTS[asked.role] or any(
        rule.effect == "permit" for rule in matching
    )
    forbidden = any(rule.effect == "forbid" for rule in matching)
    ruling = decide(asked, added)
    assert ruling.errors == ()
    assert ruling.allowed == (permitted and not forbidden)
    deciding = "forbid" if forbidden else "permit"
    named = {each.id for each in ruling.policies if each.tenant_id is not None}
    assert named == {
        str(at) for at, rule in enumerate(rules) if rule in matching and rule.effect == deciding
    }
