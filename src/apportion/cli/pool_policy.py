"""A pool's policy from the command line: given whole, or the current one with single edits."""

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from apportion.cli.documents import parse_json, read_json
from apportion.errors import InvalidInputError


def read_policy_argument(text: str, *, field: str) -> dict[str, Any]:
    """Read a JSON object from the argument itself, a file, or standard input (``-``)."""
    inline = text.lstrip().startswith("{")
    found = parse_json(text, field=field) if inline else read_json(text, field=field)
    if not isinstance(found, dict):
        raise InvalidInputError("is no JSON object", field=field, given=text[:60])
    return cast("dict[str, Any]", found)


def unknown_line(name: str) -> str:
    """Say of a field that nothing reads that it is kept, and which one may have been meant."""
    from apportion.pools.policy import near_miss

    near = near_miss(name)
    return f"unknown: {name} is stored as given" + (f"; did you mean {near}?" if near else "")


def tell_unknown(policy: Mapping[str, Any]) -> None:
    """Say on stderr which fields of a policy that was just stored nothing reads: most are slips."""
    from apportion.pools.policy import unknown_fields

    for name in unknown_fields(policy):
        sys.stderr.write(f"{unknown_line(name)}\n")


def edited(
    policy: Mapping[str, Any], settings: Sequence[str], removals: Sequence[str]
) -> dict[str, Any]:
    """Return the policy with ``KEY=VALUE`` set and ``KEY`` taken out; dots lead into objects.

    A value is JSON where it reads as such (``4``, ``true``, ``["a"]``), else the text itself.
    """
    fresh = copy.deepcopy(dict(policy))
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise InvalidInputError(
                "is no setting", field="--set", given=setting[:60], allowed="KEY=VALUE"
            )
        holder, name = _holder(fresh, path, field="--set")
        holder[name] = _value(value)
    for path in removals:
        holder, name = _holder(fresh, path, field="--unset")
        if name not in holder:
            raise InvalidInputError(
                "the policy has no such field",
                field="--unset",
                given=path,
                allowed=", ".join(holder) or "none: it is empty",
            )
        del holder[name]
    return fresh


def _holder(policy: dict[str, Any], path: str, *, field: str) -> tuple[dict[str, Any], str]:
    """Return the object that a path ends in, made where it is missing, and the last name."""
    *way, name = path.split(".")
    holder = policy
    for step in way:
        inner = holder.setdefault(step, {})
        if not isinstance(inner, dict):
            raise InvalidInputError(f"{step} is no object in the policy", field=field, given=path)
        holder = cast("dict[str, Any]", inner)
    return holder, name


def _value(text: str) -> Any:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parse_json(text, field="--set")
