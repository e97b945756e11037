"""A plan as a person reads it."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from difflib import unified_diff
from typing import Any, Final

from apportion.fleet.steps import Change, Plan, Step

_SIGNS: Final = {"create": "+", "update": "~", "delete": "-"}
_VERBS: Final = {("pool", "delete"): "archive", ("offer", "delete"): "unoffer"}
_NOTHING: Final = "No changes: the server is as the file says."


def plan_lines(plan: Plan) -> list[str]:
    """Return what is to be done, what cannot be, and how much of each."""
    lines = [line for step in plan.steps for line in step_lines(step)]
    lines += [f"  ({left})" for left in plan.left]
    if plan.refusals:
        lines += ["", "Refused, and so nothing is done:"]
        lines += [f"! {each}" for each in plan.refusals]
    if not plan.steps:
        return [*lines, _NOTHING] if not plan.refusals else lines
    return [*lines, "", counts_line(plan)]


def counts_line(plan: Plan) -> str:
    """Return how many steps of each kind a plan has."""
    count = dict.fromkeys(_SIGNS, 0)
    for step in plan.steps:
        count[step.action] += 1
    line = (
        f"Plan: {count['create']} to create, {count['update']} to change, "
        f"{count['delete']} to remove"
    )
    return f"{line}, {len(plan.refusals)} refused." if plan.refusals else f"{line}."


def step_lines(step: Step) -> Iterator[str]:
    """Give a step in a line, and what changes in lines below where it is more than one thing."""
    line = f"{_SIGNS[step.action]} {title_of(step)}"
    if facts := _facts(step):
        line += f" ({facts})"
    texts = [each for each in step.changes if _is_long(each)]
    short = [_change_text(each) for each in step.changes if not _is_long(each)]
    if len(short) == 1 and not texts:
        yield f"{line}: {short[0]}"
    else:
        yield line
        yield from (f"    {each}" for each in short)
    for each in texts:
        yield f"    {each.field}:"
        yield from (f"      {each}" for each in _text_changes(each))
    yield from (f"    {each}" for each in step.also)


def title_of(step: Step) -> str:
    """Return what a step does, in the words of the commands."""
    verb = _VERBS.get((step.kind, step.action), step.action)
    match step.kind:
        case "tenant":
            return f"{verb} tenant {step.name}"
        case "offer":
            toward = "from" if step.action == "delete" else "to"
            what = "unoffer" if step.action == "delete" else "offer"
            return f"{what} {step.name} of {step.tenant} {toward} {step.to}"
        case "quota":
            return f"update quota of {step.tenant} on {step.name}"
        case _:
            return f"{verb} {step.kind} {step.name} of {step.tenant}"


def _facts(step: Step) -> str:
    if step.action != "create":
        return ""
    body = step.body
    match step.kind:
        case "tenant":
            facts = [body["name"], f"below {body['parent_id']}"]
        case "site":
            facts = [body["region"], body["kind"]]
        case "pool":
            facts = [f"site {step.site}", body["sharing"], body["gpu_model"], body["class"]]
        case "offer":
            facts = [_limits_text(body["quota"]), f"priority {body['priority']}"]
            facts += ["with descendants"] if body["include_descendants"] else []
        case _:
            facts = [body.get("description")]
    return ", ".join(str(each) for each in facts if each)


def _limits_text(limits: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {limit}" for name, limit in limits.items()) or "no limits: nothing"


def _change_text(change: Change) -> str:
    before, after = (
        "none" if each is None else _value(each) for each in (change.before, change.after)
    )
    return f"{change.field} {before} → {after}"


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    text = json.dumps(value, ensure_ascii=False, default=_number)
    # What a policy holds may be anything: on a terminal it must not move the cursor.
    return text if text.isprintable() else json.dumps(value, default=_number)


def _number(value: Decimal) -> Any:
    return float(value)


def _is_long(change: Change) -> bool:
    return any(isinstance(each, str) and "\n" in each for each in (change.before, change.after))


def _text_changes(change: Change) -> list[str]:
    before, after = str(change.before).splitlines(), str(change.after).splitlines()
    return list(unified_diff(before, after, lineterm="", n=1))[3:]
