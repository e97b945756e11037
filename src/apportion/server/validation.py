"""What the schemas refuse, in the words of all other refusals: the field as its user writes it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fastapi.exceptions import RequestValidationError

from apportion.doors.problems import shown
from apportion.errors import InvalidInputError
from apportion.server.allowed import Allowed

_ERRORS_MAX: Final = 20
"""The most refusals of one request that are told: a long list of one mistake helps nobody."""

Path = tuple[str | int, ...]


def invalid_input(
    error: RequestValidationError, operation_id: str, allowed: Allowed
) -> InvalidInputError:
    """Return one error for all that is wrong with a request; its details list them one by one."""
    found: dict[str, dict[str, Any]] = {}
    for each in cast("Sequence[Mapping[str, Any]]", error.errors()):
        told = _tell(each, error.body, operation_id, allowed)
        # The members of a choice each refuse by themselves; for the user it is one field.
        found.setdefault(told["field"], told)
    listed = list(found.values())[:_ERRORS_MAX]
    first = listed[0]
    return InvalidInputError(
        first["message"],
        field=first["field"],
        given=first["given"],
        allowed=first["allowed"],
        details={"errors": listed, "count": len(found)} if len(found) > 1 else None,
    )


def _tell(
    error: Mapping[str, Any], body: object, operation_id: str, allowed: Allowed
) -> dict[str, Any]:
    place, *rest = cast("Sequence[str | int]", error["loc"])
    kind = str(error["type"])
    if place != "body":
        return {
            "field": str(rest[0]),
            "message": _message(error),
            "given": None if kind == "missing" else shown(error["input"]),
            "allowed": allowed.at(operation_id, str(place), rest),
        }
    path, given = _walk(body, rest, missing=kind == "missing")
    unknown = kind == "extra_forbidden" or rest[-1:] == ["[key]"]
    return {
        "field": _written(path) or "body",
        "message": "no such field" if unknown else _message(error),
        "given": shown(given),
        "allowed": allowed.fields(operation_id, path[:-1])
        if unknown
        else allowed.at(operation_id, "body", path),
    }


def _walk(body: object, location: Sequence[str | int], *, missing: bool) -> tuple[Path, object]:
    """Return as much of a location as the body has, and what stands there.

    Pydantic adds the names of choices to a location, which no user has written.
    """
    path: list[str | int] = []
    here = body
    for part in location:
        if isinstance(here, dict) and part in here:
            here = cast("dict[str | int, object]", here)[part]
        elif isinstance(here, list) and isinstance(part, int):
            here = cast("list[object]", here)[part]
        elif missing and isinstance(here, dict):
            return (*path, part), None
        else:
            break
        path.append(part)
    return tuple(path), cast("object", here)


def _written(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _message(error: Mapping[str, Any]) -> str:
    kind, message = str(error["type"]), str(error["msg"])
    if kind == "missing":
        return "is required"
    if kind == "string_pattern_mismatch":  # what is allowed tells the pattern, or better words
        return "is not of the form that is allowed"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "literal_error":
        return f"must be {error['ctx']['expected']}"
    _, should, rest = message.partition(" should ")
    # The rest of a sentence such as ", unable to parse string as an integer" says it once more.
    return f"must {rest.partition(', ')[0]}" if should else message
