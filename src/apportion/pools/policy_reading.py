"""Reading a policy: the values in it, and all that is wrong with it, each with its JSON path."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from apportion.errors import ApportionError, InvalidInputError
from apportion.pools.policy_fields import REPLICAS_MAX, SHARES, PoolPolicy
from apportion.pools.policy_types import OpenSection

_LONGEST_STEP: Final = 60
_ALIKE: Final = 3 / 4
"""How alike two names must be for one to be a slip for the other; colour is none for rollout."""


def read_policy(policy: Mapping[str, Any], sharing: str) -> PoolPolicy:
    """Read and check the values of a policy for a pool of this sharing mode.

    Raises InvalidInputError whose field is the JSON path of the first bad value.
    """
    read, found = parse(policy)
    for problem in (*found, *split_problems(policy, sharing)):
        raise problem
    return read


def read_stored(policy: Mapping[str, Any]) -> PoolPolicy:
    """Read a policy that was accepted once.

    A field that was unknown then and stored as given may be a known one by now. What does not read
    counts as absent: it must not make the pool unusable.
    """
    return parse(policy)[0]


def parse(policy: Mapping[str, Any]) -> tuple[PoolPolicy, list[InvalidInputError]]:
    """Return what can be read of a policy, and what is wrong with the rest."""
    try:
        return PoolPolicy.model_validate(policy), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        bad = {each["loc"][0] for each in errors}
        rest = {name: value for name, value in policy.items() if name not in bad}
        return PoolPolicy.model_validate(rest), [_problem(each) for each in errors]


def split_problems(policy: Mapping[str, Any], sharing: str) -> Iterator[InvalidInputError]:
    """Tell what is wrong with how a pool of this mode splits its GPUs."""
    if sharing != "timeslice" and policy.get("timeSlice") is not None:
        yield InvalidInputError(
            f"only timeslice pools take turns, not {sharing} ones",
            field="policy.timeSlice",
            given=policy["timeSlice"],
            allowed="no timeSlice here",
        )
    given = {name: policy.get(name) for name in ("replicas", "shares")}
    if sharing not in ("timeslice", "mps"):
        for name, value in given.items():
            if value is not None:
                yield InvalidInputError(
                    f"only timeslice and mps pools split a GPU by {name}, not {sharing} ones",
                    field=f"policy.{name}",
                    given=value,
                    allowed=f"no {name} here",
                )
    elif len([value for value in given.values() if value is not None]) != 1:
        yield InvalidInputError(
            f"a {sharing} pool needs replicas (fixed slots) or shares (hundredths), not both",
            field="policy.replicas",
            given=given["replicas"],
            allowed=f"replicas 1 to {REPLICAS_MAX}, or shares {SHARES}",
        )


def unknown_fields(policy: Mapping[str, Any]) -> list[str]:
    """Return the paths of fields that this version does not read; they are stored as given."""
    return sorted(_unknown(policy, PoolPolicy, ""))


def near_miss(name: str) -> str | None:
    """Return the known field that an unknown one is spelled almost like."""
    known = {each.casefold(): each for each in names_of(PoolPolicy)}
    near = get_close_matches(name.casefold(), known, n=1, cutoff=_ALIKE)
    return known[near[0]] if near else None


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy."""
    return PoolPolicy.model_json_schema(schema_generator=_Schema)


class _Schema(GenerateJsonSchema):
    """A field is called by its name: pydantic would title ``maxPending`` "Maxpending"."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        """Give no field a title."""
        return False


def names_of(model: type[BaseModel]) -> list[str]:
    """Return the names of a model's fields as JSON has them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _unknown(value: Any, model: type[BaseModel], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for at, each in enumerate(cast("list[Any]", value)):
            yield from _unknown(each, model, f"{path[:-1]}[{at}].")
    if not isinstance(value, dict):
        return
    for name, each in cast("dict[str, Any]", value).items():
        inner = _model_at((name,), model)
        if name not in names_of(model):
            # What a closed object does not know is refused, and so is no unknown field.
            if issubclass(model, OpenSection):
                yield f"{path}{name}"
        elif inner is not None:
            yield from _unknown(each, inner, f"{path}{name}.")


def _problem(error: ErrorDetails) -> InvalidInputError:
    path, given, context = _path(error["loc"]), error["input"], error.get("ctx", {})
    match error["type"]:
        case "refused":
            refused: ApportionError = context["error"]
            return InvalidInputError(
                refused.message,
                field=path,
                given=refused.given,
                allowed=refused.allowed,
                hint=refused.hint,
            )
        case "extra_forbidden":
            return _no_such_field(error["loc"], path, given)
        case "missing":
            return InvalidInputError("is needed here", field=path)
        case "model_type" | "dict_type":
            words, allowed = "must be an object", "an object"
            model = _model_at(error["loc"], PoolPolicy)
            if model is not None:
                allowed += f" with {', '.join(names_of(model))}"
        case "list_type":
            words, allowed = "must be a list", "a list"
        case "too_long":
            words, allowed = "has too many entries", f"at most {context['max_length']}"
        case "too_short":
            words, allowed = "has too few entries", f"at least {context['min_length']}"
        case _:
            words, allowed = error["msg"], None
    return InvalidInputError(words, field=path, given=given, allowed=allowed)


def _no_such_field(loc: Sequence[int | str], path: str, given: object) -> InvalidInputError:
    model = _model_at(loc[:-1], PoolPolicy)
    known = [] if model is None else names_of(model)
    near = get_close_matches(str(loc[-1]), known, n=1)
    return InvalidInputError(
        "no such field",
        field=path,
        given=given,
        allowed=", ".join(known),
        hint=f"Did you mean {near[0]}?" if near else None,
    )


def _model_at(loc: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model of the object at a path; None where there is none."""
    found: type[BaseModel] | None = model
    for step in loc:
        if isinstance(step, int):
            continue
        fields = {} if found is None else found.model_fields
        here = [field for name, field in fields.items() if (field.alias or name) == step]
        found = _model_in(here[0].annotation) if here else None
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for each in get_args(annotation) if (m := _model_in(each))), None)


def _path(loc: Sequence[int | str]) -> str:
    path = "policy"
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "[key]":
            continue
        elif re.fullmatch(r"\w{1,60}", step, re.ASCII):
            path += f".{step}"
        else:
            path += f"[{json.dumps(step[:_LONGEST_STEP])}]"
    return path
