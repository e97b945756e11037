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
    if place == "body":
        path = _given_path(body, rest, missing=kind == "missing")
    else:
        path = tuple(rest[:1])
    if kind == "extra_forbidden":
        may = allowed.fields(operation_id, path[:-1])
    else:
        may = allowed.at(operation_id, str(place), path)
    return {
        "field": _written(path) or "body",
        "message": _message(kind, str(error["msg"])),
        "given": None if kind == "missing" else shown(error["input"]),
        "allowed": may,
    }


def _given_path(body: object, location: Sequence[str | int], *, missing: bool) -> Path:
    """Return as much of a location as the body has: pydantic adds the names of choices to it."""
    path: list[str | int] = []
    here = body
    for part in location:
        if isinstance(here, dict) and part in here:
            here = cast("dict[str | int, object]", here)[part]
        elif isinstance(here, list) and isinstance(part, int):
            here = cast("list[object]", here)[part]
        elif missing and isinstance(here, dict):
            return (*path, part)
        else:
            break
        path.append(part)
    return tuple(path)


def _written(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _message(kind: str, message: str) -> str:
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "no such field"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    _, should, rest = message.partition(" should ")
    if not should:
        return message
    return f"must {rest.partition(', ')[0]}"
